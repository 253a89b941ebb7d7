r"""bytea in hex form, `\x` and two digits a byte, and in binary form, its very bytes. The escape form
never comes: the session pins bytea_output. (PostgreSQL: Binary Data Types.)
"""

import binascii
import mmap

import numpy as np
import pyarrow as pa

from sluice.ingest.encode.types.reading import Reading
from sluice.ingest.encode.views import Texts, null_mask, offsets_of
from sluice.protocol.buffers import LARGE_BYTES, give_back, private_memory

_BACKSLASH, _X = rb"\x"


_PIECE_BYTES = 4 << 20
"""Of large values so many digits are turned into bytes at a time, an even number."""


def read_bytea(texts: Texts, arrow_type: pa.DataType) -> Reading:
    """All digits of the column are laid out in one run and turned into bytes in one call, but for
    columns with a large value.
    """
    marked = (texts.byte(0) == _BACKSLASH) & (texts.byte(1) == _X) & (texts.length >= 2) & (texts.length % 2 == 0)
    if not np.all(marked | ~texts.present):
        raise texts.unreadable("bytea in hex form")
    counts = np.where(texts.present, (texts.length - 2) // 2, 0)
    try:
        values = (
            _large(texts, int(counts.sum()))
            if int(counts.max(initial=0)) >= LARGE_BYTES
            else _usual(texts, int(counts.sum()))
        )
    except binascii.Error:
        raise texts.unreadable("bytea in hex form") from None
    absent = null_mask(texts.present)
    validity = None if absent is None else pa.py_buffer(np.packbits(texts.present, bitorder="little"))
    return Reading(
        pa.Array.from_buffers(arrow_type, len(texts), [validity, offsets_of(counts).buffers()[1], pa.py_buffer(values)])
    )


def _usual(texts: Texts, size: int) -> bytes:
    _, _, digits = texts.trimmed(front=2).binary().buffers()
    return binascii.unhexlify(memoryview(digits or b"")[: 2 * size])


def _large(texts: Texts, size: int) -> mmap.mmap:
    """The same value by value and piece by piece. Digits that nobody reads again give their memory
    back on the way.
    """
    values = private_memory(size)
    digits = memoryview(texts.raw)
    at = 0
    for row in np.flatnonzero(texts.present).tolist():
        start = int(texts.start[row])
        end = start + int(texts.length[row])
        for first in range(start + 2, end, _PIECE_BYTES):
            last = min(first + _PIECE_BYTES, end)
            piece = binascii.unhexlify(digits[first:last])
            values[at : at + len(piece)] = piece
            at += len(piece)
            if texts.read_once:
                give_back(texts.raw, first, last)
    return values


def read_bytea_binary(fields: Texts, arrow_type: pa.DataType) -> Reading:
    return Reading(fields.binary().cast(arrow_type))

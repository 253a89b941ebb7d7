r"""bytea in hex form, `\x` and two digits a byte, and in binary form, its very bytes. The escape form
never comes: the session pins bytea_output. (PostgreSQL: Binary Data Types.)
"""

import binascii

import numpy as np
import pyarrow as pa

from sluice.ingest.encode.types.reading import Reading
from sluice.ingest.encode.views import Texts, null_mask, offsets_of

_BACKSLASH, _X = rb"\x"


def _digits(texts: Texts, count: int) -> memoryview:
    """The digits of all values, one behind the other: `count` of them. One value alone, which may
    be large, is not copied for that.
    """
    present = np.flatnonzero(texts.present)
    if len(present) == 1:
        start = int(texts.start[present[0]]) + 2
        return memoryview(texts.raw)[start : start + count]
    _, _, digits = texts.trimmed(front=2).binary().buffers()
    return memoryview(digits or b"")[:count]


def read_bytea(texts: Texts, arrow_type: pa.DataType) -> Reading:
    """All digits of the column are laid out in one run and turned into bytes in one call."""
    marked = (texts.byte(0) == _BACKSLASH) & (texts.byte(1) == _X) & (texts.length >= 2) & (texts.length % 2 == 0)
    if not np.all(marked | ~texts.present):
        raise texts.unreadable("bytea in hex form")
    counts = np.where(texts.present, (texts.length - 2) // 2, 0)
    try:
        values = binascii.unhexlify(_digits(texts, 2 * int(counts.sum())))
    except binascii.Error:
        raise texts.unreadable("bytea in hex form") from None
    absent = null_mask(texts.present)
    validity = None if absent is None else pa.py_buffer(np.packbits(texts.present, bitorder="little"))
    return Reading(
        pa.Array.from_buffers(arrow_type, len(texts), [validity, offsets_of(counts).buffers()[1], pa.py_buffer(values)])
    )


def read_bytea_binary(fields: Texts, arrow_type: pa.DataType) -> Reading:
    return Reading(fields.binary().cast(arrow_type))

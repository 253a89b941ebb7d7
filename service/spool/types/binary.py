r"""bytea in hex form, `\x` and two digits a byte. The escape form never comes: the session pins bytea_output. (PostgreSQL: Binary Data Types.)"""

import binascii

import numpy as np
import pyarrow as pa

from service.spool.types.reading import Reading
from service.spool.views import Texts, null_mask, offsets_of

_BACKSLASH, _X = rb"\x"


def read_bytea(texts: Texts, arrow_type: pa.DataType) -> Reading:
    """All digits of the column are laid out in one run and turned into bytes in one call."""
    marked = (texts.byte(0) == _BACKSLASH) & (texts.byte(1) == _X) & (texts.length >= 2) & (texts.length % 2 == 0)
    if not np.all(marked | ~texts.present):
        raise texts.unreadable("bytea in hex form")
    _, _, digits = texts.trimmed(front=2).binary().buffers()
    counts = np.where(texts.present, (texts.length - 2) // 2, 0)
    try:
        values = binascii.unhexlify(memoryview(digits)[: 2 * int(counts.sum())]) if digits else b""
    except binascii.Error:
        raise texts.unreadable("bytea in hex form") from None
    absent = null_mask(texts.present)
    validity = None if absent is None else pa.py_buffer(np.packbits(texts.present, bitorder="little"))
    return Reading(pa.Array.from_buffers(arrow_type, len(texts), [validity, offsets_of(counts).buffers()[1], pa.py_buffer(values)]))

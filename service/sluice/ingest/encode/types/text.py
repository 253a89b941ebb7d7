"""Text, and every type that is kept as the server's own text. In binary form text is the same bytes,
jsonb has a version before them, and uuid is spelled here. (PostgreSQL: Character Types, JSON Types,
UUID Type.)
"""

import numpy as np
import pyarrow as pa

from sluice.ingest.encode.types.binary import unreadable
from sluice.ingest.encode.types.reading import Reading
from sluice.ingest.encode.views import PADDING, Texts

_JSONB_VERSION = 1
_HEX = np.frombuffer(b"".join(f"{byte:02x}".encode() for byte in range(256)), np.uint16)
"""The two digits of each byte, as one number in the machine's own order."""
_UUID_BYTES, _UUID_TEXT = 16, 36
_UUID_PARTS = ((0, 8), (9, 13), (14, 18), (19, 23), (24, 36))
"""Where digits stand, between the dashes."""


def read_text(texts: Texts, arrow_type: pa.DataType) -> Reading:  # noqa: ARG001 - one form for every family
    return Reading(texts.string())


def jsonb_text(fields: Texts) -> Texts:
    """The text behind the version byte."""
    if np.any(fields.present & ((fields.length < 1) | (fields.byte(0) != _JSONB_VERSION))):
        raise unreadable(fields, "jsonb")
    return fields.trimmed(front=1)


def uuid_text(fields: Texts) -> Texts:
    """In the spelling of uuid_out: digits in lower case, a dash behind 8, 12, 16 and 20 of them."""
    chosen = np.flatnonzero(fields.present)
    if np.any(fields.length[chosen] != _UUID_BYTES):
        raise unreadable(fields, "uuid")
    windows = np.ndarray((len(fields.raw) - _UUID_BYTES + 1,), f"V{_UUID_BYTES}", buffer=fields.raw, strides=(1,))
    content = windows[fields.start[chosen]].view(np.uint8)
    digits = _HEX.take(content).view(np.uint8).reshape(len(chosen), 2 * _UUID_BYTES)
    spelled = np.full((len(chosen), _UUID_TEXT), ord("-"), np.uint8)
    for dashes, (begin, end) in enumerate(_UUID_PARTS):
        spelled[:, begin:end] = digits[:, begin - dashes : end - dashes]
    start = np.zeros(len(fields), np.int64)
    start[chosen] = np.arange(len(chosen)) * _UUID_TEXT
    return Texts(
        spelled.tobytes() + PADDING,
        start,
        np.where(fields.present, np.int32(_UUID_TEXT), np.int32(0)),
        fields.present,
        fields.where,
    )

"""Values in binary form: what the send functions of their types make of them. (PostgreSQL: Logical
Replication Message Formats, TupleData; CREATE TYPE.)

Invariant: a column read from this form is the column that its text would have given, value for
value, special values and their texts included. `FORMS` are all that can be read so; anything else
in binary form is refused by name. Lengths are checked before bytes are read.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from sluice.errors import UnsupportedChange
from sluice.ingest.encode.types.reading import Reading
from sluice.ingest.encode.types.sent_bytes import absent, fixed, unreadable
from sluice.ingest.encode.types.sent_numeric import read_numeric
from sluice.ingest.encode.types.sent_times import read_date, read_timestamp
from sluice.ingest.encode.views import PADDING, Texts

_JSONB_VERSION = 1
_HEX = np.frombuffer(b"".join(f"{byte:02x}".encode() for byte in range(256)), np.uint16)
"""The two digits of each byte, as one number in the machine's own order."""
_UUID_BYTES, _UUID_TEXT = 16, 36
_UUID_PARTS = ((0, 8), (9, 13), (14, 18), (19, 23), (24, 36))
"""Where digits stand, between the dashes."""

Reader = Callable[[Texts, pa.DataType], Reading]


def texts_of(sent: Texts, form: str) -> Texts | None:
    """The column as text, for the forms of types that the lake keeps as text; None for the others."""
    if form == "text":
        return sent
    if form == "jsonb":
        if np.any(sent.present & ((sent.length < 1) | (sent.byte(0) != _JSONB_VERSION))):
            raise unreadable(sent, form)
        return sent.trimmed(front=1)
    return _uuid(sent) if form == "uuid" else None


def read_sent(sent: Texts, form: str, arrow_type: pa.DataType) -> Reading:
    """The column's values. Raises DecodeError for bytes that the type never sends."""
    return _READERS[form](sent, arrow_type)


def require_form(form: str, where: str) -> None:
    """Raises UnsupportedChange for a column whose binary form cannot be read."""
    if not form:
        raise UnsupportedChange(
            f"{where}: its values arrive in binary form, from which this type cannot be read exactly",
            hint="set source.binary to false, or leave the column out by a column list of the "
            "publication; then copy the table again",
        )


def _numbers(name: str, dtype: str) -> Reader:
    def read(sent: Texts, arrow_type: pa.DataType) -> Reading:
        values = fixed(sent, name, dtype)
        return Reading(pa.array(values.astype(np.dtype(dtype).newbyteorder("=")), mask=absent(sent)).cast(arrow_type))

    return read


def _boolean(sent: Texts, arrow_type: pa.DataType) -> Reading:
    values = fixed(sent, "boolean", "u1").astype(np.uint8)
    if np.any(sent.present & (values > 1)):
        raise unreadable(sent, "boolean")
    return Reading(pa.array(values == 1, arrow_type, mask=absent(sent)))


def _bytea(sent: Texts, arrow_type: pa.DataType) -> Reading:
    return Reading(sent.binary().cast(arrow_type))


def _uuid(sent: Texts) -> Texts:
    """In the spelling of uuid_out: digits in lower case, a dash behind 8, 12, 16 and 20 of them."""
    chosen = np.flatnonzero(sent.present)
    if np.any(sent.length[chosen] != _UUID_BYTES):
        raise unreadable(sent, "uuid")
    windows = np.ndarray((len(sent.raw) - _UUID_BYTES + 1,), f"V{_UUID_BYTES}", buffer=sent.raw, strides=(1,))
    content = windows[sent.start[chosen]].view(np.uint8)
    digits = _HEX.take(content).view(np.uint8).reshape(len(chosen), 2 * _UUID_BYTES)
    spelled = np.full((len(chosen), _UUID_TEXT), ord("-"), np.uint8)
    for dashes, (begin, end) in enumerate(_UUID_PARTS):
        spelled[:, begin:end] = digits[:, begin - dashes : end - dashes]
    start = np.zeros(len(sent), np.int64)
    start[chosen] = np.arange(len(chosen)) * _UUID_TEXT
    return Texts(
        spelled.tobytes() + PADDING,
        start,
        np.where(sent.present, np.int32(_UUID_TEXT), np.int32(0)),
        sent.present,
        sent.where,
    )


_READERS: dict[str, Reader] = {
    "boolean": _boolean,
    "int2": _numbers("smallint", ">i2"),
    "int4": _numbers("integer", ">i4"),
    "int8": _numbers("bigint", ">i8"),
    "oid": _numbers("oid", ">u4"),
    "float4": _numbers("real", ">f4"),
    "float8": _numbers("double precision", ">f8"),
    "numeric": read_numeric,
    "bytea": _bytea,
    "date": read_date,
    "timestamp": read_timestamp,
    "timestamptz": read_timestamp,
}

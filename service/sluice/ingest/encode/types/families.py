"""Which Arrow type and which readers serve a lake type: the only place that knows every family.

Invariant: a column read from binary form is the column that its text would have given, value for
value, special values and their texts included. Anything that cannot be read so is refused by name.
"""

from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract.types import LakeType, decimal_parts
from sluice.errors import UnsupportedChange
from sluice.ingest.encode.types.arrays import read_array
from sluice.ingest.encode.types.boolean import read_boolean, read_boolean_binary
from sluice.ingest.encode.types.bytea import read_bytea, read_bytea_binary
from sluice.ingest.encode.types.numbers import number_binary, read_float, read_integer
from sluice.ingest.encode.types.numeric import read_numeric, read_numeric_binary
from sluice.ingest.encode.types.reading import Reading
from sluice.ingest.encode.types.text import jsonb_text, read_text, uuid_text
from sluice.ingest.encode.types.times import (
    read_date,
    read_date_binary,
    read_timestamp,
    read_timestamp_binary,
    read_timestamptz,
)
from sluice.ingest.encode.views import Texts

_ARROW = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", "UTC"),
}

Reader = Callable[[Texts, pa.DataType], Reading]

_READERS: dict[str, Reader] = {
    "text": read_text,
    "bytea": read_bytea,
    "boolean": read_boolean,
    "integer": read_integer,
    "float": read_float,
    "numeric": read_numeric,
    "date": read_date,
    "timestamp": read_timestamp,
    "timestamptz": read_timestamptz,
}


_BINARY_READERS: dict[str, Reader] = {
    "boolean": read_boolean_binary,
    "int2": number_binary("smallint", ">i2"),
    "int4": number_binary("integer", ">i4"),
    "int8": number_binary("bigint", ">i8"),
    "oid": number_binary("oid", ">u4"),
    "float4": number_binary("real", ">f4"),
    "float8": number_binary("double precision", ">f8"),
    "numeric": read_numeric_binary,
    "bytea": read_bytea_binary,
    "date": read_date_binary,
    "timestamp": read_timestamp_binary,
    "timestamptz": read_timestamp_binary,
}
_BINARY_TEXTS: dict[str, Callable[[Texts], Texts]] = {
    "text": lambda fields: fields,
    "jsonb": jsonb_text,
    "uuid": uuid_text,
}
"""Forms of types that the lake keeps as text."""
_SPELLED = {
    "boolean": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "bytea": pa.binary(),
}
"""Other ones of which the text is known to be the server's."""


def arrow_type(lake: LakeType) -> pa.DataType:
    return pa.list_(pa.field("element", _arrow_scalar(lake.element))) if lake.is_array else _arrow_scalar(lake.sql)


def read(texts: Texts, lake: LakeType) -> Reading:
    """The column's values in the lake type's Arrow type. Raises DecodeError for text that the type
    never prints, UnsupportedChange for text that is not UTF-8.
    """
    target = arrow_type(lake)
    if not texts.present.any():
        return Reading(pa.nulls(len(texts), target))
    return _reader(lake.family)(texts, target)


def read_binary(fields: Texts, form: str, lake: LakeType) -> Reading:
    """The column's values from the binary form `form`. Raises DecodeError for bytes that the type
    never sends.
    """
    return _BINARY_READERS[form](fields, arrow_type(lake))


def binary_as_text(fields: Texts, form: str) -> Texts | None:
    """The column as text, for the forms of types that the lake keeps as text; None for the others."""
    return _BINARY_TEXTS[form](fields) if form in _BINARY_TEXTS else None


def spelled(fields: Texts, form: str) -> Texts | None:
    """The text that the server prints for values of the binary form `form`, None where that is not known exactly."""
    plain = binary_as_text(fields, form)
    if plain is not None or form not in _SPELLED:
        return plain
    array = _BINARY_READERS[form](fields, _SPELLED[form]).array
    if form == "boolean":
        array = pc.if_else(array, "t", "f")
    elif form == "bytea":
        array = pa.array([None if value is None else f"\\x{value.hex()}" for value in array.to_pylist()], pa.string())
    return Texts.of(array.cast(pa.string()), fields.where)


def require_binary_form(form: str, where: str) -> None:
    """Raises UnsupportedChange for a column whose binary form cannot be read."""
    if not form:
        raise UnsupportedChange(
            f"{where}: its values arrive in binary form, from which this type cannot be read exactly",
            hint="set source.binary to false, or leave the column out by a column list of the "
            "publication; then resync the table",
        )


def _reader(family: str) -> Reader:
    if family.endswith("[]"):
        return partial(read_array, read_element=_READERS[family[:-2]])
    return _READERS[family]


def _arrow_scalar(sql: str) -> pa.DataType:
    parts = decimal_parts(sql)
    return pa.decimal128(*parts) if parts else _ARROW[sql]

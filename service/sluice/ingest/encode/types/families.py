"""Which Arrow type and which reader serve a lake type: the only place that knows every family."""

from collections.abc import Callable
from functools import partial

import pyarrow as pa

from sluice.contract.types import LakeType, decimal_parts
from sluice.ingest.encode.types.arrays import read_array
from sluice.ingest.encode.types.binary import read_bytea
from sluice.ingest.encode.types.boolean import read_boolean
from sluice.ingest.encode.types.numbers import read_float, read_integer, read_numeric
from sluice.ingest.encode.types.reading import Reading
from sluice.ingest.encode.types.text import read_text
from sluice.ingest.encode.types.times import read_date, read_timestamp, read_timestamptz
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


def _reader(family: str) -> Reader:
    if family.endswith("[]"):
        return partial(read_array, read_element=_READERS[family[:-2]])
    return _READERS[family]


def _arrow_scalar(sql: str) -> pa.DataType:
    parts = decimal_parts(sql)
    return pa.decimal128(*parts) if parts else _ARROW[sql]

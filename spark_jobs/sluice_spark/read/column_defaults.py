"""A column's constant default, from PostgreSQL's text to the lake's type: what rows older than the
column have.

Owns exactness of that one value: it is typed without loss, or marked, as ingest does with the values of
rows. Nothing that a server has as a constant default is refused. (PostgreSQL: pg_attribute, attmissingval;
Arrays, Array Input and Output Syntax.)
"""

import re
from decimal import Decimal, InvalidOperation

import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract.schema import ColumnSchema
from sluice.contract.types import decimal_parts
from sluice.errors import UnsupportedChange

_PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_ELEMENT = re.compile(r'"((?:[^"\\]|\\.)*)"|([^",{}\\]+)', re.DOTALL)
_ARRAY = re.compile(rf"\A{{(?:(?:{_ELEMENT.pattern})(?:,(?:{_ELEMENT.pattern}))*)?}}\Z", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def arrow_type(sql: str) -> pa.DataType:
    """The Arrow type of a lake type's spelling."""
    if sql.startswith("array<"):
        return pa.list_(arrow_type(sql[6:-1]))
    parts = decimal_parts(sql)
    return pa.decimal128(*parts) if parts else _PLAIN[sql]


def missing_value(column: ColumnSchema) -> tuple[pa.Scalar, str | None]:
    """The value of rows that are older than `column`, and its exact text where the type cannot hold
    it. Raises UnsupportedChange for a text that no server wrote.
    """
    kind = arrow_type(column.lake.sql)
    if column.missing is None:
        return pa.scalar(None, kind), None
    try:
        return _typed(column.missing, kind), None
    except (pa.ArrowException, ValueError, InvalidOperation) as error:
        if column.lake.special:
            return pa.scalar(None, kind), column.missing
        raise UnsupportedChange(
            f"the constant default of column {column.name!r} cannot be carried to rows that are older than it"
        ) from error


def _typed(text: str, kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_string(kind):
        return pa.scalar(text, kind)
    if pa.types.is_boolean(kind):
        return pa.scalar(
            {"t": True, "f": False, "true": True, "false": False}[text]
            if text in ("t", "f", "true", "false")
            else _refuse(),
            kind,
        )
    if pa.types.is_binary(kind):
        return pa.scalar(bytes.fromhex(text[2:]) if text.startswith("\\x") else _refuse(), kind)
    if pa.types.is_decimal(kind):
        return pa.scalar(Decimal(text), kind)
    if pa.types.is_list(kind):
        items = [None if item is None else _typed(item, kind.value_type).as_py() for item in elements(text)]
        return pa.scalar(items, kind)
    return pc.cast(pa.scalar(text), kind)


def elements(text: str) -> list[str | None]:
    """The texts of the elements of an array of one dimension that begins at 1, as array_out writes it. Raises
    ValueError for any other.
    """
    if not _ARRAY.match(text):
        raise ValueError("it is no array of one dimension")
    return [_element(*item.groups()) for item in _ELEMENT.finditer(text, 1, len(text) - 1)]


def _element(quoted: str | None, plain: str | None) -> str | None:
    if quoted is not None:
        return _ESCAPED.sub(r"\1", quoted)
    return None if plain == "NULL" else plain


def _refuse() -> bool:
    raise ValueError

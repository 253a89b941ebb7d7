"""Values in a form in which only equal ones are equal, whichever library they come from."""

import datetime as dt
import struct
from collections import Counter
from collections.abc import Mapping
from typing import Any

from sluice.contract import envelope
from tests.spark.pools import Marked, Value

Row = dict[str, Value]
Rows = Counter[tuple[Any, ...]]


def typed(row: Row) -> Row:
    """The values that their columns can hold."""
    return {name: None if isinstance(value, Marked) else value for name, value in row.items()}


def marks(row: Row) -> dict[str, str] | None:
    """The texts of the others."""
    return {name: str(value) for name, value in row.items() if isinstance(value, Marked)} or None


def marked(special: Mapping[str, str] | None) -> Row:
    return {name: Marked(text) for name, text in (special or {}).items()}


def canonical_row(row: Row) -> tuple[Any, ...]:
    """A row in a form that tells values apart that are not the same, whichever library they come from."""
    return tuple((name, canonical(row[name], name=name)) for name in sorted(row))


def canonical(value: Value, *, key: bool = False, name: str = "") -> Any:
    """As in `canonical_row`; with `key` the two zeros are one value."""
    if isinstance(value, Marked):
        return ("marked", str(value))
    if isinstance(value, float):
        if value != value:
            return ("float", "nan")
        return ("float", struct.pack(">d", value + 0.0 if key else value))
    if name == envelope.OLD_SPECIAL:
        return ("map", tuple(sorted(dict(value).items()))) if value is not None else None
    if isinstance(value, dict):
        return ("struct", tuple((inner, canonical(item)) for inner, item in sorted(value.items())))
    if isinstance(value, list | tuple):
        return ("list", tuple(canonical(item) for item in value))
    if isinstance(value, bool | bytes | str) or value is None:
        return (type(value).__name__, value)
    if isinstance(value, dt.datetime):
        return ("datetime", value.isoformat(), value.tzinfo is not None)
    return (type(value).__name__, str(value))

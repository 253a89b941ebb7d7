"""Statistics of a data file, as Delta collects them: with them readers and later windows pass over
files that cannot hold a row.

Owns: bounds are never narrower than the values. A text is cut at 32 characters and its upper bound
made greater, a timestamp is widened to whole milliseconds. A column whose bounds cannot be stated
has none, nor has a column of floating-point numbers: engines do not agree on where NaN and minus
zero lie. (Delta protocol: Per-file Statistics.)
"""

import json
from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_PREFIX = 32
_GREATEST = "\U0010ffff"
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_000
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""The years 1 to 9999; others have no form that every reader takes."""


def statistics(table: pa.Table, *, leading: int, also: Collection[str] = ()) -> str:
    """Statistics of the first `leading` columns of a data file (-1: of all) and of those in `also`."""
    low, high, nulls = [], [], {}
    for position, name in enumerate(table.column_names):
        column = table.column(position)
        if pa.types.is_nested(column.type) or (0 <= leading <= position and name not in also):
            continue
        nulls[name] = column.null_count
        bounds = _bounds(column) if column.null_count < len(column) else None
        if bounds is not None:
            low.append(f"{json.dumps(name)}:{bounds[0]}")
            high.append(f"{json.dumps(name)}:{bounds[1]}")
    return (
        f'{{"numRecords":{len(table)},"minValues":{{{",".join(low)}}},"maxValues":{{{",".join(high)}}},'
        f'"nullCount":{json.dumps(nulls)},"tightBounds":true}}'
    )


def _bounds(column: pa.ChunkedArray) -> tuple[str, str] | None:
    """The least and the greatest value as JSON."""
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_binary(kind) or pa.types.is_floating(kind):
        return None
    if pa.types.is_timestamp(kind):
        return _times(*_extremes(column.cast(pa.int64())), suffix="Z" if kind.tz else "")
    if pa.types.is_date(kind):
        return _days(*_extremes(column.cast(pa.int32())))
    least, greatest = _extremes(column)
    if pa.types.is_string(kind):
        return _texts(least, greatest)
    if pa.types.is_decimal(kind):
        return format(least, "f"), format(greatest, "f")
    return repr(least), repr(greatest)


def _extremes(column: pa.ChunkedArray) -> tuple[Any, Any]:
    found = pc.min_max(column)
    return found["min"].as_py(), found["max"].as_py()


def _texts(least: str, greatest: str) -> tuple[str, str] | None:
    if len(greatest) > _PREFIX:
        if greatest[_PREFIX] == _GREATEST:
            return None
        greatest = greatest[:_PREFIX] + _GREATEST
    return json.dumps(least[:_PREFIX], ensure_ascii=False), json.dumps(greatest, ensure_ascii=False)


def _times(least: int, greatest: int, *, suffix: str) -> tuple[str, str] | None:
    if not _FIRST_US <= least <= greatest <= _LAST_US:
        return None
    low, high = np.datetime64(least // 1000, "ms"), np.datetime64(-(-greatest // 1000), "ms")
    return f'"{low}{suffix}"', f'"{high}{suffix}"'


def _days(least: int, greatest: int) -> tuple[str, str] | None:
    if not _FIRST_DAY <= least <= greatest <= _LAST_DAY:
        return None
    return f'"{np.datetime64(least, "D")}"', f'"{np.datetime64(greatest, "D")}"'

"""What settlements have in common: net changes with values that only the lake has, and those values put in.

Owns that a value which was not sent is the one of the lake's row, its marked text included. Pure.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from sluice.contract import envelope
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.errors import UnsupportedChange
from sluice_spark.fold.fold import KEEP, MATCH, special_of
from sluice_spark.fold.row_identity import Claims, Numbers, special_rows, whole
from sluice_spark.fold.timeline import States, Timeline

BASE = "_sluice_base"
"""The place in its table of the row that looks for the lake's row which has this one's unsent values."""
NO_ROW = "a value was not sent and the lake has no row to keep it from"


def refuse_without_key(schema: TableSchema, what: str) -> None:
    """Raises UnsupportedChange for a table of which `what` cannot be kept."""
    if not schema.key_columns:
        raise UnsupportedChange(
            f"{schema.qualified_name}: {what} needs a key to identify its rows, and the table has none;"
            " give it a primary key or a replica identity index, or choose another kind of lake table"
        )


def payload(
    timeline: Timeline, states: States, columns: Sequence[ColumnSchema], *, lake: Claims
) -> dict[str, pa.Array]:
    """The values of `states` by column, with KEEP for each column whose value may be one of the lake. Of those in
    `lake` all values are.
    """
    changes = timeline.changes
    rows = np.where(lake, 0, states.row)
    made: dict[str, pa.Array] = {}
    flags: dict[str, pa.Array] = {}
    sources: dict[int, Numbers] = {}
    for column in columns:
        source = states.sources.get(column.attnum, rows)
        kept = lake | (source < 0)
        made[column.name] = whole(changes[column.name]).take(pa.array(np.where(kept, 0, source), mask=kept))
        sources[column.attnum] = np.where(kept, -1, source)
        if bool(kept.any()):
            flags[f"{KEEP}{column.attnum}"] = pa.array(kept)
    made[envelope.SPECIAL] = special_of(changes, columns, rows, sources, but=lake)
    return made | flags


def with_keys(rows: dict[str, pa.Array], timeline: Timeline, key: Numbers, *, match: Claims) -> pa.Table:
    """`rows` with what a commit looks for: the key of each, and whether it does."""
    return pa.table(rows | dict(timeline.keys.origin(key)) | {MATCH: pa.array(match)})


def at(values: pa.Array, places: Numbers) -> pa.Array:
    """Values by place, NULL for a place below 0."""
    missing = places < 0
    return values.take(pa.array(np.where(missing, 0, places), mask=missing)) if len(values) else values


def where_found(count: int, found: Numbers) -> Numbers:
    """For each of `count` rows which of the lake's rows it found, -1 for none."""
    places = np.full(count, -1, dtype=np.int64)
    places[found] = np.arange(len(found))
    return places


def with_kept_values(rows: pa.Table, old: pa.Table, places: Numbers, schema: TableSchema) -> pa.Table:
    """`rows` with the values that they keep from `old`, where `places` says (-1: nowhere). Raises UnsupportedChange."""
    kept = [column for column in schema.columns if f"{KEEP}{column.attnum}" in rows.column_names]
    if not kept:
        return rows
    flags = {column.name: rows[f"{KEEP}{column.attnum}"].to_numpy() for column in kept}
    for column in kept:
        flag = flags[column.name]
        if bool((flag & (places < 0)).any()):
            raise UnsupportedChange(NO_ROW)
        values = chosen(rows[column.name], old[column.name], np.where(flag, places, -1))
        rows = replaced(rows, column.name, values)
    if envelope.SPECIAL in rows.column_names and any(column.lake.special for column in kept):
        rows = replaced(rows, envelope.SPECIAL, _marks(rows, old, places, kept, flags))
    return rows


def chosen(mine: pa.ChunkedArray, theirs: pa.ChunkedArray, places: Numbers) -> pa.Array:
    """`theirs` at `places`, `mine` where those are below 0."""
    own = whole(mine).cast(theirs.type)
    take = np.where(places < 0, np.arange(len(own)), len(own) + places)
    return pa.concat_arrays([own, whole(theirs)]).take(pa.array(take))


def replaced(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    """`rows` with other values in a column."""
    return rows.set_column(rows.column_names.index(name), name, values)


def _marks(
    rows: pa.Table, old: pa.Table, places: Numbers, kept: Iterable[ColumnSchema], flags: dict[str, Claims]
) -> pa.Array:
    column = whole(rows[envelope.SPECIAL])
    marks, theirs = dict(special_rows(column)), special_rows(old[envelope.SPECIAL])
    marked = np.fromiter(theirs, dtype=np.int64)
    for one in kept:
        for row in np.flatnonzero(flags[one.name] & np.isin(places, marked)).tolist() if one.lake.special else ():
            text = theirs[int(places[row])].get(one.name)
            if text is not None:
                marks[row] = {**marks.get(row, {}), one.name: text}
    spelled = [list(marks[row].items()) if row in marks else None for row in range(len(rows))]
    return pa.array(spelled, column.type)

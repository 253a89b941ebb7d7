"""Values that the source did not send: they come from the row that is replaced.

Owns: such a value never becomes NULL or anything else than the lake's own, its marked text included. Executors do the
same in `distributed.kept_values_stage`, MERGE in `lake.merge`, and settlements in `fold.settle`.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from sluice.contract import envelope
from sluice_spark.fold.fold import KEEP
from sluice_spark.fold.row_identity import Claims, Numbers, special_rows, whole
from sluice_spark.lake.failures import no_row_to_keep_from
from sluice_spark.lake.layout import TableLayout
from sluice_spark.lake.plan import MergePlan

Old = tuple[Callable[[list[str]], pa.Table], Numbers, Numbers]
"""Replaced rows of one data file: how its columns are read, the rows' positions, and the window's rows
that replace them.
"""


def with_kept_values(rows: pa.Table, old: Sequence[Old], plan: MergePlan, layout: TableLayout) -> pa.Table:
    """`rows` of a window with the values of the columns in `plan.kept` from the rows that they replace.
    Raises UnsupportedChange when there is no such row.
    """
    flags = {column.attnum: rows[f"{KEEP}{column.attnum}"].to_numpy() for column in plan.kept}
    needed: Claims = np.logical_or.reduce(list(flags.values()))
    fields = [layout.field(column.name) for column in plan.kept]
    special = any(column.lake.special for column in plan.kept)
    if special:
        fields.append(layout.field(envelope.SPECIAL))
    places, values = _old_values(len(rows), needed, old, pa.schema(fields))
    if bool((needed & (places < 0)).any()):
        raise no_row_to_keep_from()
    for column in plan.kept:
        field = layout.field(column.name)
        both = pa.concat_arrays([whole(rows[column.name]).cast(field.type), whole(values[field.name])])
        flag = flags[column.attnum]
        chosen = both.take(pa.array(np.where(flag, len(rows) + places, np.arange(len(rows)))))
        rows = rows.set_column(rows.column_names.index(column.name), column.name, chosen)
    if special:
        old_marks = special_rows(values[layout.field(envelope.SPECIAL).name])
        marks = _merged(rows, plan, flags, places, old_marks)
        rows = rows.set_column(rows.column_names.index(envelope.SPECIAL), envelope.SPECIAL, marks)
    return rows


def old_rows(stored: pa.Table, at: pa.Array, schema: pa.Schema) -> pa.Table:
    """The rows at the positions `at` of `stored`, columns of a data file, as `schema` has them. A file
    that is older than a column holds NULL for it.
    """
    arrays = [
        stored[field.name].take(at).cast(field.type)
        if field.name in stored.column_names
        else pa.nulls(len(at), field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def logical(stored: pa.Table, layout: TableLayout) -> pa.Table:
    """Rows with all columns of a data file under the names that the lake table has for them."""
    return stored.rename_columns([column.name for column in layout.columns])


def _old_values(count: int, needed: Claims, old: Sequence[Old], schema: pa.Schema) -> tuple[Numbers, pa.Table]:
    """For each of `count` rows where its replaced row is among the values (-1: nowhere)."""
    places = np.full(count, -1, dtype=np.int64)
    parts: list[pa.Table] = [schema.empty_table()]
    size = 0
    for read, positions, ordinals in old:
        wanted = needed[ordinals]
        if not bool(wanted.any()):
            continue
        at, into = pa.array(positions[wanted]), ordinals[wanted]
        parts.append(old_rows(read(schema.names), at, schema))
        places[into] = size + np.arange(len(into))
        size += len(into)
    return places, pa.concat_tables(parts)


def _merged(
    rows: pa.Table,
    plan: MergePlan,
    flags: dict[int, Claims],
    places: Numbers,
    old_marks: dict[int, dict[str, str]],
) -> pa.Array:
    """The marked values: of the columns that are kept the lake's, of the others the window's."""
    column = whole(rows[envelope.SPECIAL])
    marks = special_rows(column)
    changed = dict(marks)
    for kept in plan.kept:
        for row in np.flatnonzero(flags[kept.attnum]).tolist() if kept.lake.special else ():
            text = old_marks.get(int(places[row]), {}).get(kept.name)
            if text is not None:
                changed[row] = {**changed.get(row, {}), kept.name: text}
    spelled: list[list[tuple[str, str]] | None] = [None] * len(rows)
    for row, found in changed.items():
        spelled[row] = list(found.items())
    return pa.array(spelled, column.type)

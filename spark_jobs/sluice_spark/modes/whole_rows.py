"""The lake table equals a source table that has no key: rows are counted, not named. It sends whole old
rows, or it is one that PostgreSQL lets nobody update or delete from.

Owns multiplicity: of three equal rows one delete leaves two. A window is the difference in number
of each distinct row; one MERGE removes all copies of the rows that became fewer and puts back those
that remain. It must remove as many as were counted beforehand. Which of several equal rows keeps its
LSN and commit time is not defined: they take the last change's.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract import envelope
from sluice.contract.schema import TableSchema
from sluice.errors import UnsupportedChange
from sluice_spark.fold.fold import MATCH, after_truncate, in_order, old_values, row_numbers, unchanged_flags
from sluice_spark.fold.row_identity import Numbers, special_rows, special_texts, whole
from sluice_spark.lake.columns import mirror_columns, mirror_metadata
from sluice_spark.lake.failures import translated_errors
from sluice_spark.lake.merge import equal_rows, special_text_column
from sluice_spark.lake.plan import CommitPlan, RowsMergePlan
from sluice_spark.lake.rows_to_commit import HeldRows
from sluice_spark.modes.mirror import refuse_unplaced
from sluice_spark.modes.target import Target

ROW = "_sluice_row"
_VIEW = "sluice_counted_rows"
ROWS_AT_ONCE = 100_000


@dataclass(frozen=True, slots=True)
class Counted:
    """One row per distinct row whose number changed, and by how much. `replaces` says that nothing
    of the lake's rows remains.
    """

    rows: pa.Table
    net: Numbers
    replaces: bool


def count(rows: pa.Table, schema: TableSchema) -> Counted:
    """The net number of each distinct row in a window. Raises UnsupportedChange."""
    rows, replaces = after_truncate(in_order(rows))
    if unchanged_flags(rows, schema):
        raise UnsupportedChange(f"{schema.qualified_name}: a value was not sent although the identity is full")
    operation = rows[envelope.OP]
    adds = pc.is_in(operation, pa.array([envelope.OP_INSERT, envelope.OP_UPDATE])).to_numpy()
    removes = pc.is_in(operation, pa.array([envelope.OP_UPDATE, envelope.OP_DELETE])).to_numpy()
    # Rows without columns are all equal, and segments have no old rows of them.
    has_old = (
        rows[envelope.OLD].is_valid().to_numpy()
        if envelope.OLD in rows.column_names
        else np.zeros(len(rows), dtype=bool)
    )
    if schema.columns and bool(np.any(removes & ~has_old)):
        raise UnsupportedChange(f"{schema.qualified_name}: a change came without the whole old row")
    after, before = row_numbers(rows, schema)
    size = int(max(after.max(initial=-1), before.max(initial=-1))) + 1
    net = np.bincount(after[adds], minlength=size) - np.bincount(before[removes], minlength=size)
    place = np.zeros(size, dtype=np.int64)
    place[before[removes]] = np.flatnonzero(removes) + len(rows)
    place[after[adds]] = np.flatnonzero(adds)
    changed = np.flatnonzero(net)
    if replaces and bool(np.any(net < 0)):
        raise UnsupportedChange(f"{schema.qualified_name}: a row was removed that does not exist")
    return Counted(_taken(rows, schema, place[changed]), net[changed], replaces)


def _taken(rows: pa.Table, schema: TableSchema, places: Numbers) -> pa.Table:
    # Places from len(rows) on mean the old row of a change.
    chosen, length = pa.array(places), len(rows)
    base = pa.array(places % max(length, 1))
    names, arrays = [], []
    for column in schema.columns:
        both = pa.concat_arrays([whole(rows[column.name]), old_values(rows, column.name)])
        names.append(column.name)
        arrays.append(both.take(chosen))
    special = pa.concat_arrays([whole(rows[envelope.SPECIAL]), whole(rows[envelope.OLD_SPECIAL])]).take(chosen)
    names += [envelope.LSN, envelope.TS, envelope.SPECIAL]
    arrays += [whole(rows[envelope.LSN]).take(base), whole(rows[envelope.TS]).take(base), special]
    return pa.table(arrays, names=names)


def plan(target: Target, portions: Iterable[pa.Table], pieces: HeldRows, *, keyed: bool = False) -> CommitPlan | None:
    """Counts the rows of a window and hands the difference to `pieces`. The window comes in
    portions, no two of which have the same row; `keyed` says that there may be several. Reads from
    the lake how often it holds the rows that become fewer.

    Returns None when the changes cancel out.
    """
    columns = mirror_columns(target.schema, metadata=target.metadata)
    action: Literal["append", "overwrite"] | None = None
    removed = 0
    for rows in portions:
        counted = count(rows, target.schema)
        refuse_unplaced(counted.rows, target.schema)
        action = "overwrite" if counted.replaces else "append" if not keyed and bool(np.all(counted.net > 0)) else None
        present = None if action else _numbers_in_lake(target, counted)
        removed += 0 if present is None else int(present.sum())
        for piece in (
            _repeated(counted.rows, counted.net) if present is None else _source(counted, present, target.schema)
        ):
            pieces.add(piece)
    if action:
        return CommitPlan(action, tuple(columns))
    if not pieces.rows:
        return None
    metadata = mirror_metadata(target.schema, wanted=target.metadata)
    merge = RowsMergePlan(target.schema, metadata, removed)
    return CommitPlan(merge, (*columns, *_texts(target.schema), (MATCH, "boolean")))


def _numbers_in_lake(target: Target, counted: Counted) -> Numbers:
    present = np.zeros(len(counted.net), dtype=np.int64)
    fewer = np.flatnonzero(counted.net < 0)
    if not len(fewer):
        return present
    table = _with_texts(counted.rows.take(pa.array(fewer)), target.schema).append_column(ROW, pa.array(fewer))
    columns = mirror_columns(target.schema, metadata=target.metadata) + _texts(target.schema) + [(ROW, "bigint")]

    with translated_errors(), target.handover.pieces() as pieces:
        pieces.add(table)
        pieces.frame(columns).createOrReplaceTempView(_VIEW)
        text = (
            f"SELECT s.{ROW}, count(*) FROM {target.lake.expression} t JOIN {_VIEW} s ON "
            f"{equal_rows(target.schema)} GROUP BY s.{ROW}"
        )
        try:
            found = target.lake.session.sql(text).toArrow()
        finally:
            target.lake.session.catalog.dropTempView(_VIEW)
        present[found.column(0).to_numpy()] = found.column(1).to_numpy()
    if bool(np.any(present[fewer] + counted.net[fewer] < 0)):
        raise UnsupportedChange(f"{target.schema.qualified_name}: a row was removed that the lake does not have")
    return present


def _source(counted: Counted, present: Numbers, schema: TableSchema) -> Iterator[pa.Table]:
    """Each row that became fewer once, to remove all its copies, and every row as often as it must
    be added.
    """
    fewer = counted.net < 0
    rows = _with_texts(counted.rows, schema)
    removed = rows.filter(pa.array(fewer))
    yield removed.append_column(MATCH, pa.repeat(pa.scalar(value=True), len(removed)))
    for piece in _repeated(rows, np.where(fewer, present + counted.net, counted.net)):
        yield piece.append_column(MATCH, pa.repeat(pa.scalar(value=False), len(piece)))


def _repeated(rows: pa.Table, copies: Numbers) -> Iterator[pa.Table]:
    """Each row as often as `copies` says, some at a time: one row may stand for any number in the
    lake.
    """
    ends = np.cumsum(copies)
    total = int(ends[-1]) if len(ends) else 0
    for start in range(0, total, ROWS_AT_ONCE):
        places = np.searchsorted(ends, np.arange(start, min(start + ROWS_AT_ONCE, total)), side="right")
        yield rows.take(pa.array(places))


def _texts(schema: TableSchema) -> list[tuple[str, str]]:
    return [(special_text_column(column), "string") for column in schema.columns if column.lake.special]


def _with_texts(rows: pa.Table, schema: TableSchema) -> pa.Table:
    marked = special_rows(rows[envelope.SPECIAL])
    for column in schema.columns:
        if column.lake.special:
            rows = rows.append_column(special_text_column(column), special_texts(marked, column.name, len(rows)))
    return rows

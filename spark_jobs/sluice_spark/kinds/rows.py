"""The lake table equals a source table that has no key: rows are counted, not named. It sends whole old
rows, or it is one that PostgreSQL lets nobody update or delete from.

A window is the difference in number of each distinct row; one MERGE removes all copies of the rows that became
fewer and puts back those that remain. It must remove as many as were counted beforehand.
"""

from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
import pyarrow as pa

from sluice.contract import envelope, lake_kinds
from sluice.contract.entries import Segment
from sluice.contract.schema import TableSchema
from sluice.errors import UnsupportedChange
from sluice_spark.fold.counted import Counted, count
from sluice_spark.fold.fold import MATCH
from sluice_spark.fold.row_identity import Numbers, special_rows, special_texts
from sluice_spark.kinds.kind import Kind, Target, refuse_unplaced
from sluice_spark.lake.failures import translated_errors
from sluice_spark.lake.merge import equal_rows, special_text_column
from sluice_spark.lake.plan import CommitPlan, RowsMergePlan
from sluice_spark.lake.rows_to_commit import HeldRows
from sluice_spark.read.changes import only_inserts

ROW = "_sluice_row"
_VIEW = "sluice_counted_rows"
ROWS_AT_ONCE = 100_000


class Rows(Kind):
    """A mirror of whole rows. `plan` reads from the lake how often it holds the rows that become fewer."""

    name = lake_kinds.WHOLE_ROWS
    reads_lake = True
    only_by_statement = "the table has no key"

    def only_adds(self, segments: Iterable[Segment], schema: TableSchema, *, removals_sent: bool) -> bool:
        # An inserted row is one more, whatever the lake holds.
        return only_inserts(segments)

    def net(self, rows: pa.Table, schema: TableSchema, *, keyed: bool = False, removals_sent: bool = True) -> Counted:
        counted = count(rows, schema)
        refuse_unplaced(counted.rows, schema)
        return counted

    def plan(self, target: Target, portions: Iterable[pa.Table], pieces: HeldRows, *, keyed: bool) -> CommitPlan | None:
        schema, columns = target.schema, self.columns(target.schema, metadata=target.metadata)
        action: Literal["append", "overwrite"] | None = None
        removed = 0
        for rows in portions:
            counted = self.net(rows, schema)
            grows = not keyed and bool(np.all(counted.net > 0))
            action = "overwrite" if counted.replaces else "append" if grows else None
            present = None if action else _numbers_in_lake(target, counted, columns)
            removed += 0 if present is None else int(present.sum())
            for piece in _repeated(counted.rows, counted.net) if present is None else _source(counted, present, schema):
                pieces.add(piece)
        if action:
            return CommitPlan(action, tuple(columns))
        if not pieces.rows:
            return None
        merge = RowsMergePlan(schema, self.metadata(schema, wanted=target.metadata), removed)
        return CommitPlan(merge, (*columns, *_texts(schema), (MATCH, "boolean")))


ROWS = Rows()


def _numbers_in_lake(target: Target, counted: Counted, columns: list[tuple[str, str]]) -> Numbers:
    present = np.zeros(len(counted.net), dtype=np.int64)
    fewer = np.flatnonzero(counted.net < 0)
    if not len(fewer):
        return present
    table = _with_texts(counted.rows.take(pa.array(fewer)), target.schema).append_column(ROW, pa.array(fewer))
    columns = columns + _texts(target.schema) + [(ROW, "bigint")]

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

"""The lake table holds every change, appended in the form the segments have.

Owns that no part of a change is lost: unsent values, old rows and marked values have their own
columns where the table can have them. A TRUNCATE is a row as well.
"""

from collections.abc import Iterable, Mapping
from decimal import Decimal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from sluice.contract import envelope
from sluice.contract.entries import Segment
from sluice.contract.lake_kinds import KINDS
from sluice.contract.schema import TableSchema
from sluice_spark.fold.counted import Counted, count
from sluice_spark.fold.fold import in_order
from sluice_spark.fold.spill import Versioned
from sluice_spark.kinds.kind import Kind, Origins, Target
from sluice_spark.lake.plan import CommitPlan
from sluice_spark.lake.rows_to_commit import HeldRows
from sluice_spark.lake.sql import quote
from sluice_spark.read.changes import unite
from sluice_spark.read.column_defaults import arrow_type

_OF_OLD_ROWS = (envelope.UNCHANGED, envelope.OLD_SPECIAL)
"""A table without identity has none."""


class Changelog(Kind):
    """Every change, with its old row as it was sent. Columns of metadata are part of a change, so none is left out."""

    name = "changelog"
    sign = envelope.OP
    keeps_changes = True
    not_in_parts = "what happened between the moments of two chunks is no change of a changelog"

    def metadata(self, schema: TableSchema, *, wanted: bool) -> tuple[str, ...]:
        every = KINDS[self.name].adds
        return every if schema.identity_columns else tuple(name for name in every if name not in _OF_OLD_ROWS)

    def columns(self, schema: TableSchema, *, metadata: bool) -> list[tuple[str, str]]:
        # The type of old rows follows the identity columns.
        columns = super().columns(schema, metadata=metadata)
        if schema.identity_columns:
            fields = ", ".join(f"{quote(column.name)}: {column.lake.sql}" for column in schema.identity_columns)
            columns.append((envelope.OLD, f"struct<{fields}>"))
        return columns

    def united(self, parts: Iterable[Versioned], schema: TableSchema, origins: Origins) -> pa.Table:
        # Changes stay as they were sent: what a column means for older rows is no change.
        rows = with_origins(unite(parts, schema, defaults=False), origins)
        return rows.append_column(envelope.SNAPSHOT, pa.repeat(pa.scalar(value=False), len(rows)))

    def arrived(self, rows: pa.Table) -> pa.Table:
        # No transaction of the source wrote them.
        rows = rows.append_column(envelope.SNAPSHOT, pa.repeat(pa.scalar(value=True), len(rows)))
        return rows.drop_columns([envelope.XID]) if envelope.XID in rows.column_names else rows

    def only_adds(self, segments: Iterable[Segment], schema: TableSchema, *, removals_sent: bool) -> bool:
        return True

    def added(self, rows: pa.Table, schema: TableSchema) -> pa.Table:
        return in_order(rows)

    def net(self, rows: pa.Table, schema: TableSchema, *, keyed: bool = False, removals_sent: bool = True) -> Counted:
        # Of a table without identity: rows are inserted, and all are truncated.
        return count(rows, schema)

    def plan(self, target: Target, portions: Iterable[pa.Table], pieces: HeldRows, *, keyed: bool) -> CommitPlan | None:
        return self.appended(portions, pieces, self.columns(target.schema, metadata=target.metadata))

    def not_comparable(self, schema: TableSchema) -> str:
        if schema.identity_columns:
            return "a changelog has every change, and not one row for each row of the source"
        return ""

    def present(self, frame: DataFrame) -> DataFrame:
        # The inserts behind the last TRUNCATE: all that a table without identity has.
        op, lsn, ordinal = (quote(name) for name in (envelope.OP, envelope.LSN, envelope.ORDINAL))
        last = (
            frame.where(f"{op} = '{envelope.OP_TRUNCATE}'")
            .selectExpr(f"max(struct({lsn} AS l, {ordinal} AS o)) AS last")
            .first()
        )
        frame = frame.where(f"{op} = '{envelope.OP_INSERT}'")
        if last is None or last[0] is None:
            return frame
        at, place = int(last[0][0]), int(last[0][1])
        return frame.where(f"{lsn} > {at} OR ({lsn} = {at} AND {ordinal} > {place})")


KIND = Changelog()


def with_origins(rows: pa.Table, origins: Mapping[int, tuple[str, int]]) -> pa.Table:
    """`rows` with where their transactions came from; `origins` is by commit end LSN, and what is
    not in it began at the source.
    """
    known = pc.index_in(rows[envelope.LSN], value_set=pa.array(list(origins), pa.int64()))
    names = pa.array([name for name, _ in origins.values()], pa.string())
    positions = pa.array(
        [Decimal(position) if position else None for _, position in origins.values()],
        arrow_type(envelope.LAKE_TYPES[envelope.ORIGIN_LSN]),
    )
    return rows.append_column(envelope.ORIGIN, names.take(known)).append_column(
        envelope.ORIGIN_LSN, positions.take(known)
    )

"""The plan of a window that this process folds: at once where it fits in memory, else in portions."""

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from sluice.contract.schema import TableSchema
from sluice.manifest.values import TableState
from sluice_spark.fold.spill import Versioned
from sluice_spark.kinds.kind import Kind, Origins, Target
from sluice_spark.kinds.registry import kind_of
from sluice_spark.lake.plan import CommitPlan
from sluice_spark.lake.rows_to_commit import HeldRows, SparkHandover
from sluice_spark.lake.table import LakeTable
from sluice_spark.options import ApplyOptions
from sluice_spark.read.changes import Count, WindowChanges


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans windows for `target`, which is of `kind`. `origins` are the window's."""

    options: ApplyOptions
    target: Target
    kind: Kind
    origins: Origins

    @staticmethod
    def of(
        options: ApplyOptions,
        lake: LakeTable,
        handover: SparkHandover,
        state: TableState,
        schema: TableSchema,
        *,
        removals_sent: bool,
        origins: Origins,
    ) -> "Planner":
        """For the lake table of `state` in the schema version `schema`."""
        target = Target(lake, handover, schema, removals_sent=removals_sent, metadata=options.metadata_columns)
        return Planner(options, target, kind_of(state, schema), origins)

    @property
    def basis(self) -> tuple[object, ...]:
        """What a plan depends on besides the changes, and for some kinds the lake."""
        target = self.target
        return self.kind, target.schema, target.removals_sent, target.metadata, self.origins

    def at_once(self, changes: Iterable[Versioned], pieces: HeldRows) -> CommitPlan | None:
        """The plan for `changes`, whose rows go to `pieces`; None when there is nothing to commit."""
        return self.kind.plan(self.target, [self._united(changes)], pieces, keyed=False)

    def in_portions(
        self, changes: WindowChanges, count: Count, versions: Sequence[TableSchema], pieces: HeldRows
    ) -> CommitPlan | None:
        """The same for changes of `versions`, which `count` counts, in portions that fit in memory."""
        limit, kind, target = self.options.max_memory_bytes, self.kind, self.target
        if kind.only_adds(changes.segments, target.schema, removals_sent=target.removals_sent):
            tables = changes.tables(count, limit=limit)
            added = (kind.added(self._united([item]), target.schema) for item in tables)
            return kind.appended(added, pieces, kind.columns(target.schema, metadata=target.metadata))
        with closing(changes.portions(count, versions, limit=limit, each_transaction=kind.keeps_rows)) as cut:
            return kind.plan(target, map(self._united, cut), pieces, keyed=True)

    def _united(self, parts: Iterable[Versioned]) -> pa.Table:
        return self.kind.united(parts, self.target.schema, self.origins)

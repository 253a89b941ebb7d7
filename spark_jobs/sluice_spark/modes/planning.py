"""The plan of a window that this process folds: at once where it fits in memory, else in portions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from sluice.contract.schema import TableSchema
from sluice_spark.fold.spill import Versioned
from sluice_spark.lake.plan import CommitPlan
from sluice_spark.lake.rows_to_commit import HeldRows, SparkHandover
from sluice_spark.lake.table import LakeTable
from sluice_spark.modes import changelog, choice, mirror, whole_rows
from sluice_spark.modes.target import Target
from sluice_spark.options import CHANGELOG, ApplyOptions
from sluice_spark.read.changes import Count, WindowChanges, only_inserts, unite


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans windows for `target`. `origins` are the window's."""

    options: ApplyOptions
    target: Target
    origins: Mapping[int, tuple[str, int]]

    @staticmethod
    def of(
        options: ApplyOptions,
        lake: LakeTable,
        handover: SparkHandover,
        schema: TableSchema,
        *,
        removals_sent: bool,
        origins: Mapping[int, tuple[str, int]],
    ) -> "Planner":
        """For the lake table in the schema version `schema`."""
        target = Target(lake, handover, schema, removals_sent=removals_sent, metadata=options.metadata_columns)
        return Planner(options, target, origins)

    @property
    def needs_changes_alone(self) -> bool:
        """Whether a plan follows from `basis` and the changes. Rows without a key are counted in the lake."""
        return self._mode != choice.ROWS_MODE

    @property
    def basis(self) -> tuple[object, ...]:
        """What a plan depends on besides the changes, and in some modes the lake."""
        target = self.target
        return self._mode, target.schema, target.removals_sent, target.metadata, self.origins

    def at_once(self, changes: Iterable[Versioned], pieces: HeldRows) -> CommitPlan | None:
        """The plan for `changes`, whose rows go to `pieces`; None when there is nothing to commit."""
        rows = self._united()(changes)
        if self._mode == CHANGELOG:
            return changelog.plan([rows], pieces, columns=self._columns)
        return self._net_effect(self.target, [rows], pieces)

    def in_portions(
        self, changes: WindowChanges, count: Count, versions: Sequence[TableSchema], pieces: HeldRows
    ) -> CommitPlan | None:
        """The same for changes of `versions`, which `count` counts, in portions that fit in memory."""
        limit, united = self.options.max_memory_bytes, self._united()
        if self._mode == CHANGELOG:
            return changelog.plan(
                (united([item]) for item in changes.tables(count, limit=limit)), pieces, columns=self._columns
            )
        # Where rows have no key, an inserted row is one more, whatever the lake holds.
        if only_inserts(changes.segments) and (self.target.removals_sent or self._mode == choice.ROWS_MODE):
            new = (mirror.all_new(united([item]), self.target.schema) for item in changes.tables(count, limit=limit))
            return changelog.plan(new, pieces, columns=self._columns)
        with closing(changes.portions(count, versions, limit=limit)) as cut:
            return self._net_effect(self.target, map(united, cut), pieces, keyed=True)

    @property
    def _mode(self) -> str:
        return choice.mode_of(self.options, self.target.schema)

    @property
    def _columns(self) -> list[tuple[str, str]]:
        return choice.lake_columns(self.options, self.target.schema)

    def _united(self) -> Callable[..., pa.Table]:
        schema = self.target.schema
        if self._mode != CHANGELOG:
            return partial(unite, schema=schema, defaults=True)
        # A changelog keeps changes as they were sent: what a column means for older rows is no
        # change.
        return lambda parts: changelog.with_origins(unite(parts, schema, defaults=False), self.origins)

    @property
    def _net_effect(self) -> Callable[..., CommitPlan | None]:
        return whole_rows.plan if self._mode == choice.ROWS_MODE else mirror.plan

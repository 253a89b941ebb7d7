"""How far one table is, why its windows fail, and the window that a worker may take next.

Owns when a table whose window failed is tried again, and after how many attempts it is quarantined.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple

from sluice.backoff import doubling
from sluice.contract.applied import CATALOG, CHECKPOINT, LAYOUT, Maintenance
from sluice.contract.reasons import Reason, ReasonCode, lake_differs
from sluice.contract.resyncs import text
from sluice.errors import UnsupportedChange
from sluice.manifest.values import TableState
from sluice_spark.lake.commit_way import CommitWay
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.progress import cadence
from sluice_spark.read.window import BEFORE, PendingChanges, Window

ATTEMPTS = 5
"""Failures in a row after which a table is quarantined."""
WAITS_SECONDS = doubling(0.4, 300.0)
"""Before the next attempt, after one failure, two and so on; the last one repeats."""


@dataclass(slots=True)
class TableProgress:
    """One table in its newest generation. `place` is where its lake table stands."""

    pending: PendingChanges
    place: ExaminedVersion = field(default_factory=ExaminedVersion)
    stale: Reason | None = None
    """Why the lake table is known to differ from the source."""
    problem: Reason | None = None
    """Why the last attempt at a window failed, and when the next one is due, while it is tried again."""
    failures: int = 0
    not_before: float = 0.0
    """When it may be tried again, on the loop's clock."""
    begun_seq: int = 0
    """The last entry that this process has begun a window for, whether it was applied or not."""
    begun_at: float = BEFORE
    """When its last window with work was begun, on the loop's clock."""
    window_seconds: float = 0.0
    """What its last small window took, 0 before the first."""
    looked_at: float | None = None
    """When the lake table was last looked at or about to be, on the loop's clock."""
    commit_time_us: int = 0
    rows_applied: int = 0
    schema_version: int = 0
    way: CommitWay = field(default_factory=CommitWay)
    """How the newest changes were committed."""
    files: int = -1
    """Data files in the lake table, -1 when not counted."""
    maintenance: Maintenance = field(default_factory=Maintenance)

    @staticmethod
    def new(state: TableState, before: "TableProgress | None") -> "TableProgress":
        """Of a generation that begins. `before` is that of the one before, whose files are still there."""
        first = state.generation_seq
        pending = PendingChanges(state.generation, first, first, takes_repairs=not state.keeps_changes)
        return TableProgress(pending, maintenance=before.maintenance if before is not None else Maintenance())

    @property
    def committed_seq(self) -> int:
        """The last entry whose changes the Delta version holds, 0 before the snapshot."""
        return self.place.marker or 0

    def due_at(self, freshness_seconds: float, *, max_bytes: int) -> float | None:
        """When the next window is due, on the loop's clock, None while nothing waits; see `cadence.due_at`."""
        if self.failures:
            return self.not_before
        return cadence.due_at(
            self.pending,
            begun_at=self.begun_at,
            window_seconds=self.window_seconds,
            freshness_seconds=freshness_seconds,
            max_bytes=max_bytes,
        )

    @property
    def can_continue(self) -> bool:
        """Whether the changes that wait for the table can become windows now."""
        return not self.failures and (self.pending.has_snapshot or self.pending.snapshot_final)

    @property
    def quarantined(self) -> bool:
        return self.failures >= ATTEMPTS

    def turns_stale(self, error: Exception) -> None:
        """The lake table cannot be brought to what the source has."""
        self.stale = lake_differs(error)

    def lacks_changes(self) -> None:
        """Changes since its snapshot are lost, and it is to keep each of them: what closes the gap is rows."""
        lost = "changes of it are lost, so that it cannot have every change since the last snapshot"
        self.turns_stale(UnsupportedChange(lost))

    def shown_maintenance(self, *, maintained: bool) -> Maintenance:
        """What fails and is not tried again is no problem any more. Checkpoints are written for every table, and each
        lies as it is configured.
        """
        if maintained:
            return self.maintenance
        always = (CATALOG, CHECKPOINT, LAYOUT)
        failing = {turn: why for turn, why in self.maintenance.failing.items() if turn in always}
        return replace(self.maintenance, failing=failing)

    def went_well(self, *, unarranged: str | None) -> None:
        """An attempt did not fail. `unarranged` is what `Applied` says."""
        self.failures, self.problem, self.not_before = 0, None, 0.0
        if unarranged is None or unarranged == self.maintenance.failing.get(LAYOUT, ""):
            return
        others = {turn: why for turn, why in self.maintenance.failing.items() if turn != LAYOUT}
        failing = {**others, LAYOUT: unarranged} if unarranged else others
        self.maintenance = replace(self.maintenance, failing=failing)

    def turns_stale_at_taken_path(self, state: TableState, holder: TableState) -> None:
        """The lake table would stand where that of `holder` stands: it is not written."""
        self.stale = Reason(ReasonCode.PATH_TAKEN, {"path": state.path, "other": holder.title})

    def failed(self, what: str, *, now: float, at: float, passing: bool) -> None:
        """An attempt failed, `now` on the loop's clock and `at` in unix seconds. An error that is
        `passing` is no fault of the table and never quarantines it.
        """
        self.failures = min(self.failures + 1, ATTEMPTS - 1) if passing else self.failures + 1
        wait = WAITS_SECONDS[min(self.failures, len(WAITS_SECONDS)) - 1]
        self.not_before = now + wait
        again = text(datetime.fromtimestamp(at + wait, UTC))
        said = {"attempt": str(self.failures), "what": what, "again": again}
        self.problem = Reason(ReasonCode.FAILING, said)


class Work(NamedTuple):
    """A window that a worker may apply now."""

    table_id: str
    progress: TableProgress
    state: TableState
    window: Window

    @property
    def is_small(self) -> bool:
        """Whether it costs what the smallest window costs."""
        return self.window.bytes < cadence.SMALL_BYTES

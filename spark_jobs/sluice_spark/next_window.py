"""The next window of a table, read, folded and looked for while the one before it is committed.

Owns that what is prepared can be useless, never wrong. Changes follow from segments that never change, a
plan from changes and the basis of a `Planner`, positions from data files that never change: nothing of
it depends on how the commit before ends. Who applies the window compares what it was prepared for with
what it is, and prepares it again where they differ. An error is forgotten as well: the window meets it
again in its turn, where it counts. Both windows together weigh no more than one may.
"""

import threading
from concurrent.futures import Executor, Future
from dataclasses import dataclass

import structlog

from sluice import faults
from sluice_spark.fold.partition import weight
from sluice_spark.kinds.planning import Planner
from sluice_spark.lake.plan import CommitPlan
from sluice_spark.lake.rows_to_commit import HeldRows
from sluice_spark.read.changes import Count, Taken, WindowChanges
from sluice_spark.read.window import Window

_log = structlog.get_logger("sluice.apply")


@dataclass(frozen=True, slots=True)
class Planned:
    """What folding gave on `basis`: `plan` with `rows`, and `count` of the changes."""

    basis: tuple[object, ...]
    plan: CommitPlan | None
    rows: HeldRows
    count: Count


@dataclass(frozen=True, slots=True)
class Ready:
    """The `changes` of a window as its segments have them. `planned` is None where folding needs the
    lake as the window before leaves it.
    """

    changes: Taken
    planned: Planned | None


class Ahead:
    """Prepares `window` in a thread of `pool`: once `begin` was called, until `take` or `drop`."""

    def __init__(self, window: Window, pool: Executor) -> None:
        self.window = window
        self._pool = pool
        self._dropped = threading.Event()
        self._future: Future[Ready | None] | None = None

    def begin(self, changes: WindowChanges, planner: Planner, *, before: Window, beside: Taken, limit: int) -> None:
        """Starts to prepare `changes`, those of the window, as `planner` would plan it. `beside`, the
        changes of the window `before` it, is held at the same time: nothing is prepared when both
        weigh more than `limit`, or would if they take as much memory for a byte.
        """
        held = sum(weight(rows, version) for rows, version in beside)
        expected = held * self.window.bytes // max(before.bytes, 1)
        if not self._dropped.is_set() and held + expected <= limit:
            self._future = self._pool.submit(self._run, changes, planner, limit - held)

    def take(self, window: Window) -> Ready | None:
        """What was prepared of `window`, for which it waits; None when another window was prepared or
        nothing came of it.
        """
        if self._future is None or window != self.window or self._future.cancel():
            self.drop()
            return None
        return self._future.result()

    def drop(self) -> None:
        """Nobody will take it. From any thread."""
        self._dropped.set()
        if self._future is not None:
            self._future.cancel()

    def _run(self, changes: WindowChanges, planner: Planner, limit: int) -> Ready | None:
        try:
            faults.point("apply.ahead.before")
            taken = changes.read_within(limit, wanted=lambda: not self._dropped.is_set())
            ready = Ready(taken, self._planned(changes, taken, planner)) if taken else None
            faults.point("apply.ahead.after")
        except Exception as error:  # noqa: BLE001 - see above
            _log.debug("the next window was not prepared", kind=type(error).__name__)
            return None
        return ready

    def _planned(self, changes: WindowChanges, taken: Taken, planner: Planner) -> Planned | None:
        target = planner.target
        newest = max(self.window.schema_version, *(version.version for _, version in taken))
        if planner.kind.reads_lake or newest > target.schema.version or self._dropped.is_set():
            return None
        count, rows = Count(), HeldRows()
        plan = planner.at_once(count.over(changes.onto(target.schema).projected(taken)), rows)
        if plan is not None:
            target.lake.search_ahead(plan, rows)
        return Planned(planner.basis, plan, rows, count)

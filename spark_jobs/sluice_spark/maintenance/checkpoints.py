"""Writes the checkpoints of a pipeline's lake tables and cleans their logs, one table at a time, in a thread of its
own: it takes no worker, and windows of the same table go on meanwhile.

Owns: every table whose commits go on gets its checkpoint, whatever share maintenance has, and also where it leaves
the files of the table alone. A failure concerns the log of that table alone: it is named and tried again, and so is a
checkpoint that is long overdue for any reason. For the applier's loop: one thread.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import structlog
from pyspark.sql import SparkSession

from sluice import faults
from sluice.backoff import RetryTime, doubling
from sluice.contract.applied import CHECKPOINT, MaintenanceRun, time_text
from sluice.errors import ServiceError, StoreUnavailable, WriterFenced
from sluice.manifest.values import TableState
from sluice_spark.beside import Beside
from sluice_spark.lake.failures import SparkGone
from sluice_spark.lake.log_upkeep import SETTINGS, LogState, LogUpkeep
from sluice_spark.lake.opening import Lake
from sluice_spark.maintenance.tasks import Call
from sluice_spark.options import ApplyOptions
from sluice_spark.progress.ledger import Ledger
from sluice_spark.progress.reports import Reports
from sluice_spark.progress.table_progress import TableProgress
from sluice_spark.session import private
from sluice_spark.telemetry import ApplyTelemetry

CHECK_SECONDS = 1.0
"""Between two searches for a table whose log needs something."""
LOOK_VERSIONS = 50
"""New versions of a table after which its log is looked at again: somebody else may have written a checkpoint."""
OVERDUE = 4
"""Intervals without a checkpoint after which that is a problem: readers take longer for each version."""
LONGEST_SECONDS = 600.0
"""For one checkpoint; then it is called off, for others wait."""
WAITS_SECONDS = doubling(60.0, 3600.0)
"""Before the next attempt at the log of a table, after one failure, two and so on."""
STOP_SECONDS = 10.0
"""A stop does not wait longer for what does not answer: a kill at any moment is harmless."""

_log = structlog.get_logger("sluice.apply")


@dataclass(slots=True)
class _TableLog:
    """What is known of the log of one generation of a table. `looked` is the version at which it was looked at.
    Entries may be left that a checkpoint has made unnecessary: they are removed at `clean_at` (loop's clock).
    """

    progress: TableProgress
    state: LogState | None = None
    looked: int = -1
    clean_at: float = float("inf")
    retry: RetryTime = field(default_factory=lambda: RetryTime(WAITS_SECONDS))

    def behind(self, version: int) -> int:
        """Versions at `version` since the newest checkpoint, 0 while that is not known."""
        return 0 if self.state is None else max(0, version - self.state.checkpoint)

    def need(self, version: int) -> float:
        """How many times over a checkpoint is due at `version`: nothing below 1."""
        return 0.0 if self.state is None else self.behind(version) / self.state.interval

    def wants_look(self, version: int) -> bool:
        """Whether the log has to be looked at before `need` means anything."""
        return self.state is None or version - self.looked >= min(self.state.interval, LOOK_VERSIONS)


class _Item(NamedTuple):
    """A table whose log may need something. `version` is the one that was durably reported."""

    table_id: str
    state: TableState
    known: _TableLog
    version: int

    @property
    def need(self) -> float:
        return self.known.need(self.version)


@dataclass(frozen=True, slots=True)
class _Kept:
    """What became of the log of a table in so many `seconds`. `checkpoint` says whether one was written."""

    checkpoint: bool
    cleaned: bool
    seconds: float


_Outcome = LogState | _Kept | Exception


@dataclass(frozen=True, slots=True)
class _Running:
    """What the thread does since `began` (loop's clock): it looks at the logs of `items`, or keeps one short."""

    items: list[_Item]
    call: Call | None
    began: float
    future: "Future[dict[str, _Outcome]]"


class Checkpoints:
    """Keeps the logs of the tables of `ledger` short. `reports` says through which versions readers may look back."""

    def __init__(
        self,
        options: ApplyOptions,
        ledger: Ledger,
        *,
        lake: Lake,
        reports: Reports,
        session: SparkSession,
        telemetry: ApplyTelemetry,
    ) -> None:
        self._retention_seconds = options.log_retention_seconds
        self._ledger = ledger
        self._lake = lake
        self._reports = reports
        self._parent = session
        self._session: SparkSession | None = None
        self._telemetry = telemetry
        self._logs: dict[str, _TableLog] = {}
        self._next_check = float("-inf")
        self._running: _Running | None = None
        self._stopped = threading.Event()
        self._thread: Beside[dict[str, _Outcome]] = Beside("checkpoint")

    def turn(self, *, now: float) -> bool:
        """Takes what has ended, and begins what is due. Whether a report may have something new to say. Raises
        WriterFenced, SparkGone.
        """
        ended = self._collect(now=now)
        running = self._running
        if running is not None and running.call is not None and now - running.began > LONGEST_SECONDS:
            running.call.call_off()
        if now < self._next_check and not ended:
            return False
        self._next_check = now + CHECK_SECONDS
        items = list(self._items())
        # Also while something is under way, which may hang.
        self._telemetry.checkpoint_lag(max((item.known.behind(item.version) for item in items), default=0))
        named = [item for item in items if self._tell(item)]
        if running is None:
            self._begin_due(items, now=now)
        return ended or bool(named)

    def _begin_due(self, items: list[_Item], *, now: float) -> None:
        ready = [item for item in items if item.known.retry.due(now)]
        # A look is two small objects: all of them at once. Of checkpoints one comes after the other.
        looks = [item for item in ready if item.known.wants_look(item.version)]
        if looks:
            self._begin(looks, self._looked, now=now)
        elif due := [item for item in ready if item.need >= 1 or (item.known.clean_at <= now and self._may_clean())]:
            self._begin([max(due, key=lambda item: item.need)], self._kept_short, now=now)

    def finish(self, stop: threading.Event) -> None:
        """Writes what is due now, until `stop`: a process that ends with the backlog may run for seconds only, and
        the next one, too. Raises WriterFenced, SparkGone.
        """
        self._next_check = float("-inf")
        while not stop.is_set():
            self.turn(now=time.monotonic())
            if self._running is None:
                return
            wait([self._running.future], timeout=CHECK_SECONDS)

    def stop(self) -> None:
        """Calls off what is under way. Raises SparkGone."""
        self._stopped.set()
        if self._running is not None and self._running.call is not None:
            self._running.call.call_off()

    def close(self) -> None:
        """Takes what was called off, if it ends soon. Nothing begins any more."""
        self._thread.close(self._running.future if self._running is not None else None, seconds=STOP_SECONDS)
        with suppress(ServiceError):
            self._collect(now=time.monotonic())

    def _items(self) -> Iterator[_Item]:
        ledger = self._ledger
        for table_id, version in self._reports.versions.items():
            progress = ledger.tables.get(table_id)
            if progress is None or version < 0 or not progress.pending.has_snapshot or not ledger.may_apply(table_id):
                continue
            known = self._logs.get(table_id)
            if known is None or known.progress is not progress:
                known = self._logs[table_id] = _TableLog(progress)
            yield _Item(table_id, ledger.state.tables[table_id], known, version)

    def _may_clean(self) -> bool:
        """While the newest statement of what is complete grows old, nothing goes away that its readers may need."""
        return self._reports.completed_within(self._retention_seconds / 2)

    def _begin(self, items: list[_Item], do: Callable[[_Item, LogUpkeep], _Outcome], *, now: float) -> None:
        session, call = self._parent, None
        if do == self._kept_short:
            session = self._own_session()
            call = Call(session)

        def run() -> dict[str, _Outcome]:
            found: dict[str, _Outcome] = {}
            for item in items:
                if not self._stopped.is_set():
                    try:
                        if call is not None:
                            call.begin()
                        found[item.table_id] = do(item, self._lake.log_upkeep(item.state, session))
                    except Exception as error:  # noqa: BLE001 - the loop judges it
                        found[item.table_id] = error
            return found

        self._running = _Running(items, call, now, self._thread.begin(run))

    def _own_session(self) -> SparkSession:
        if self._session is None:
            self._session = private(self._parent)
            for name, value in SETTINGS.items():
                self._session.conf.set(name, value)
        return self._session

    @staticmethod
    def _looked(item: _Item, log: LogUpkeep) -> _Outcome:
        return log.look(item.version)

    def _kept_short(self, item: _Item, log: LogUpkeep) -> _Outcome:
        began, due = time.monotonic(), item.need >= 1
        if due:
            faults.point("apply.checkpoint.before")
            written = log.write(item.version)
            faults.point("apply.checkpoint.written")
            log.name(written)
            faults.point("apply.checkpoint.named")
        # Whatever is offered to readers stays.
        retention = max(self._retention_seconds, time.time() - self._reports.held_since)
        cleaned = self._may_clean() and log.clean(retention_seconds=retention, reported=item.version)
        return _Kept(due, cleaned, time.monotonic() - began)

    def _collect(self, *, now: float) -> bool:
        running = self._running
        if running is None or not running.future.done():
            return False
        self._running = None
        found = running.future.result()
        for item in running.items:
            outcome = found.get(item.table_id)
            if isinstance(outcome, WriterFenced | SparkGone):
                raise outcome
            if isinstance(outcome, LogState):
                self._saw(item, outcome)
            elif isinstance(outcome, _Kept):
                self._done(item, outcome, now=now)
            elif outcome is not None:
                self._failed(item, outcome, running, now=now)
        return True

    def _saw(self, item: _Item, state: LogState) -> None:
        item.known.state, item.known.looked = state, item.version
        if item.need < 1:
            self._fails(item.known.progress, "")

    def _done(self, item: _Item, kept: _Kept, *, now: float) -> None:
        known, progress = item.known, item.known.progress
        known.retry = RetryTime(WAITS_SECONDS)
        known.clean_at = float("inf") if kept.cleaned else now + WAITS_SECONDS[0]
        self._fails(progress, "")
        if not kept.checkpoint:
            return
        assert known.state is not None
        known.state, known.looked = replace(known.state, checkpoint=item.version), item.version
        run = MaintenanceRun(time_text(time.time()), kept.seconds)
        progress.maintenance = replace(progress.maintenance, runs={**progress.maintenance.runs, CHECKPOINT: run})
        self._telemetry.maintenance_ended(CHECKPOINT, "done", seconds=kept.seconds, runs={CHECKPOINT: run})
        seconds = round(kept.seconds, 3)
        _log.info("checkpoint written", table=item.state.title, delta_version=item.version, seconds=seconds)

    def _failed(self, item: _Item, error: Exception, running: _Running, *, now: float) -> None:
        """Nothing waits for it: readers take a little longer."""
        known, seconds = item.known, now - running.began
        # What the log says may be something else now.
        known.state = None
        known.retry.failed(now)
        if self._stopped.is_set() or isinstance(error, StoreUnavailable):
            # Windows will tell that the store is away.
            self._telemetry.maintenance_ended(CHECKPOINT, "interrupted", seconds=seconds)
            return
        known_error = isinstance(error, ServiceError)
        reason = str(error) if known_error else f"an unexpected error ({type(error).__name__})"
        self._fails(known.progress, reason)
        self._telemetry.maintenance_ended(CHECKPOINT, "failed", seconds=seconds)
        _log.warning(
            "the log of a lake table was not kept short",
            table=item.state.title,
            error=reason,
            hint=getattr(error, "hint", ""),
            exc_info=None if known_error else error,
        )

    def _tell(self, item: _Item) -> bool:
        """Names a checkpoint that is long overdue. Whether that is news."""
        if item.need < OVERDUE or CHECKPOINT in item.known.progress.maintenance.failing:
            return False
        self._fails(item.known.progress, f"the newest one is {item.known.behind(item.version)} versions old")
        return True

    @staticmethod
    def _fails(progress: TableProgress, reason: str) -> None:
        """Why the log of a table is not kept short; empty when it is."""
        failing = {turn: what for turn, what in progress.maintenance.failing.items() if turn != CHECKPOINT}
        progress.maintenance = replace(
            progress.maintenance, failing={**failing, CHECKPOINT: reason} if reason else failing
        )

"""The maintenance of a pipeline's lake tables, beside their windows: one task at a time, in a worker.

Owns: a table that is maintained gets no window meanwhile, and none is maintained while a window of it is in
flight. Changes that have waited too long for it call it off, and so does a stop. A failure concerns the
maintenance of that table alone: it is named, and tried again later. For the applier's loop: one thread.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog
from pyspark.sql import SparkSession

from sluice.contract.applied import time_of, time_text
from sluice.errors import ServiceError, StoreUnavailable, UnsupportedChange, WriterFenced
from sluice_spark import storage
from sluice_spark.catalog.registrar import Registrar
from sluice_spark.lake.commit_way import DIRECT
from sluice_spark.lake.failures import CommitConflict, SparkGone
from sluice_spark.lake.opening import Lake
from sluice_spark.maintenance.checkpoints import Checkpoints
from sluice_spark.maintenance.planner import Key, TableFacts, Turn, Turns
from sluice_spark.maintenance.tasks import SETTINGS, Call, Interrupted, Outcome, TableTurn
from sluice_spark.options import ApplyOptions
from sluice_spark.progress.ledger import Ledger
from sluice_spark.progress.reports import Reports
from sluice_spark.progress.table_progress import TableProgress
from sluice_spark.session import private
from sluice_spark.telemetry import ApplyTelemetry

CHECK_SECONDS = 2.0
"""Between two searches for a table that needs maintenance."""

_log = structlog.get_logger("sluice.apply")


@dataclass(frozen=True, slots=True)
class _Running:
    """A turn in a worker since `began` (loop's clock)."""

    facts: TableFacts
    turn: Turn
    progress: TableProgress
    path: str
    name: str
    call: Call
    began: float
    future: "Future[Outcome]"

    @property
    def key(self) -> Key:
        return self.facts.table_id, self.turn


class Maintenance:
    """Maintains the tables of `ledger`. `before_commit` raises when this process may not commit."""

    def __init__(
        self,
        options: ApplyOptions,
        ledger: Ledger,
        *,
        lake: Lake,
        reports: Reports,
        session: SparkSession,
        before_commit: Callable[[], None],
        telemetry: ApplyTelemetry,
    ) -> None:
        self._options = options
        self._ledger = ledger
        self._lake = lake
        self._reports = reports
        self._parent = session
        self._session: SparkSession | None = None
        self._before_commit = before_commit
        self._telemetry = telemetry
        self._planner = Turns(options.maintenance_share)
        self._next_check = float("-inf")
        self._running: _Running | None = None
        self._checkpoints = Checkpoints(
            options, ledger, lake=lake, reports=reports, session=session, telemetry=telemetry
        )
        self._names = Registrar(
            options,
            ledger,
            lake=lake,
            session=session,
            require_owner=before_commit,
            counted=telemetry.catalog_names,
        )

    def reconfigure(self, options: ApplyOptions) -> None:
        """From now on `options` hold. A turn that is under way keeps those that it was begun with."""
        self._options, self._planner.budget.share = options, options.maintenance_share

    @property
    def running(self) -> "list[Future[Outcome]]":
        """The turn that takes a worker, if there is one."""
        return [self._running.future] if self._running is not None else []

    def turn(self, pool: Executor, *, now: float, free: bool, caught_up: bool) -> bool:
        """Begins the next turn in `pool` when it is time, and calls off the one under way when windows have
        waited long enough. `free`: a worker is; `caught_up`: all that the manifest has was read. Logs are kept
        short and names registered meanwhile. Whether one ended. Raises WriterFenced, SparkGone.
        """
        ended = self._checkpoints.turn(now=now)
        ended = self._names.turn(now=now) or ended
        ended = self.collect(now=now) or ended
        running, options = self._running, self._options
        if running is not None:
            waiting = self._ledger.waiting(now=now)
            if self._planner.is_late(running.key, began=running.began, waiting=waiting, now=now):
                running.call.call_off()
            self._require_owner(running, now=now)
            return ended
        if options.once or options.until_lsn or not (free and caught_up) or now < self._next_check:
            return ended
        self._next_check = now + CHECK_SECONDS
        chosen = self._planner.choose(self._facts(), waiting=self._ledger.waiting(now=now), now=now)
        if chosen is not None:
            self._begin(pool, *chosen, now=now)
        return ended

    def _require_owner(self, running: _Running, *, now: float) -> None:
        """A statement commits on its own, long after it was begun. Raises WriterFenced."""
        if now < self._next_check:
            return
        self._next_check = now + CHECK_SECONDS
        try:
            self._before_commit()
        except ServiceError as error:
            running.call.call_off()
            if isinstance(error, WriterFenced):
                raise

    def finish(self, stop: threading.Event) -> None:
        """Keeps logs short and registers names without pauses, until `stop`. Raises WriterFenced, SparkGone."""
        self._checkpoints.finish(stop)
        self._names.finish(stop)

    def stop(self) -> None:
        """Calls off the turn under way: it ends soon, and `collect` takes it."""
        self._names.stop()
        with suppress(ServiceError):
            if self._running is not None:
                self._running.call.call_off()
            self._checkpoints.stop()

    def close(self) -> None:
        """Waits a little for the checkpoint that `stop` called off, and for the catalog."""
        self._checkpoints.close()
        self._names.close()

    def collect(self, *, now: float) -> bool:
        """Takes what the turn under way has come to, when it has ended. Whether it has. Raises WriterFenced,
        SparkGone.
        """
        running = self._running
        if running is None or not running.future.done():
            return False
        self._running = None
        self._ledger.maintained(running.path)
        seconds = now - running.began
        try:
            outcome = running.future.result()
        except (WriterFenced, SparkGone):
            raise
        except (Interrupted, CommitConflict, StoreUnavailable) as error:
            # Windows came first, or somebody else did, or the store is away, which windows will tell.
            self._planner.put_off(running.key, seconds=seconds, now=now)
            self._telemetry.maintenance_ended(running.turn, "interrupted", seconds=seconds)
            _log.info("maintenance was put off", table=running.name, turn=running.turn, kind=type(error).__name__)
        except UnsupportedChange as error:
            # What the look at a window would have found.
            running.progress.turns_stale(error)
            self._planner.failed(running.key, seconds=seconds, now=now)
            self._telemetry.maintenance_ended(running.turn, "failed", seconds=seconds)
            self._telemetry.stale(error)
            _log.error("table is stale", table=running.name, error=str(error))
        except ServiceError as error:
            self._failed(running, str(error), hint=error.hint, now=now)
        except Exception as error:  # noqa: BLE001 - it concerns this table alone; its text may hold a row
            _log.error("maintenance failed with an unexpected error", table=running.name, exc_info=error)
            self._failed(running, f"an unexpected error ({type(error).__name__})", hint="", now=now)
        else:
            self._done(running, outcome, now=now)
        return True

    def _done(self, running: _Running, outcome: Outcome, *, now: float) -> None:
        facts, progress, seconds = running.facts, running.progress, now - running.began
        self._planner.done(running.key, seconds=seconds, now=now)
        before = progress.maintenance
        record = replace(before, runs={**before.runs, **outcome.runs}, failing=self._still_failing(progress, running))
        if running.turn is Turn.TIDY:
            record = replace(record, tidied_version=outcome.place.version)
        else:
            nothing_new = facts.version == facts.vacuumed_version
            settled = nothing_new and facts.vacuumed_seconds >= (facts.retention_seconds or 0.0)
            record = replace(
                record, vacuumed_version=outcome.place.version, vacuumed_at=time_text(time.time()), settled=settled
            )
        progress.maintenance = record
        self._ledger.stands_at(facts.table_id, progress, outcome.place)
        self._telemetry.maintenance_ended(running.turn, "done", seconds=seconds, runs=outcome.runs)
        if outcome.runs:
            _log.info(
                "lake table maintained",
                table=running.name,
                delta_version=outcome.place.version,
                seconds=round(seconds, 3),
                tasks={task: [run.files_removed, run.files_added] for task, run in outcome.runs.items()},
            )

    def _still_failing(self, progress: TableProgress, running: _Running) -> dict[str, str]:
        """A turn that went well says nothing of the other one."""
        failing = progress.maintenance.failing
        return {turn: what for turn, what in failing.items() if turn != running.turn}

    def _failed(self, running: _Running, reason: str, *, hint: str, now: float) -> None:
        """Windows go on: they look at the table themselves."""
        attempt = self._planner.failed(running.key, seconds=now - running.began, now=now)
        progress = running.progress
        failing = {**progress.maintenance.failing, running.turn.value: reason}
        progress.maintenance = replace(progress.maintenance, failing=failing)
        self._telemetry.maintenance_ended(running.turn, "failed", seconds=now - running.began)
        _log.warning(
            "maintenance of a lake table failed",
            table=running.name,
            turn=running.turn,
            attempt=attempt,
            error=reason,
            hint=hint,
        )

    def _begin(self, pool: Executor, facts: TableFacts, turn: Turn, *, now: float) -> None:
        ledger = self._ledger
        state, progress = ledger.state.tables[facts.table_id], ledger.tables[facts.table_id]
        if self._session is None:
            self._session = private(self._parent)
            for name, value in SETTINGS.items():
                self._session.conf.set(name, value)
        call = Call(self._session)
        path = state.path
        ledger.maintain(path)
        lake = self._lake.table(state, self._session, place=progress.place)
        work = TableTurn(lake, call, before_commit=self._before_commit, others=self._others(path))
        future = pool.submit(
            work.run,
            turn,
            retention_seconds=facts.retention_seconds or 0.0,
            # Whatever is offered to readers stays.
            held_since=lambda: self._reports.held_since,
        )
        self._running = _Running(facts, turn, progress, path, state.title, call, now, future)

    def _others(self, path: str) -> list[str]:
        options, tables = self._options, self._ledger.state.tables.values()
        lakes = (storage.join(options.lake_uri, table.path) for table in tables if table.path != path)
        return [f"{place}/" for place in (options.scratch_path, *lakes)]

    def _facts(self) -> Iterator[TableFacts]:
        at, options, ledger = time.time(), self._options, self._ledger
        for table_id in ledger.maintainable():
            state, progress = ledger.state.tables[table_id], ledger.tables[table_id]
            name = f"{state.schema_name}.{state.table_name}"
            record, version = progress.maintenance, progress.place.version
            if not options.maintains(name):
                continue
            if not record.vacuumed_at or time_of(record.vacuumed_at) > at:
                # It is seen for the first time, or the clock went back.
                record = progress.maintenance = replace(record, vacuumed_at=time_text(at))
            retention = options.vacuum_after(name)
            yield TableFacts(
                table_id,
                version,
                direct=progress.way.name == DIRECT,
                tidied_version=record.tidied_version if record.tidied_version <= version else -1,
                # A reader takes versions from the newest statement of what is complete.
                retention_seconds=retention if self._reports.completed_within(retention / 2) else None,
                vacuumed_version=record.vacuumed_version,
                vacuumed_seconds=max(0.0, at - time_of(record.vacuumed_at)),
                settled=record.settled,
            )

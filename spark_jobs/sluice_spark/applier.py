"""The loop: follow the manifest, give windows to workers, report, stop when asked.

Owns: a lake table has one window at a time, and the lease is checked before every commit. A table
that cannot follow, or whose windows fail, stops alone and is named. A failure that concerns all
tables (the lease, Spark, the manifest) stops the process, with no window half-applied. Every table
can be read as of one manifest entry after another, under any load: a table that has not passed the
next such entry gets no window across it. The manifest is looked at while windows run, and a table
gets its window when it is due, whatever the other tables do.
"""

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

import structlog
from pyspark.sql import SparkSession

from sluice.contract.entries import Entry
from sluice.errors import ApplyError, Interrupted, ServiceError, StoreUnavailable, UnsupportedChange, WriterFenced
from sluice.store.base import ObjectStore
from sluice_spark.applied_window import Applied
from sluice_spark.lake.failures import SparkGone
from sluice_spark.lake.opening import Lake
from sluice_spark.lease import Lease, Renewal
from sluice_spark.maintenance.scheduler import Maintenance
from sluice_spark.options import ApplyOptions
from sluice_spark.progress.boundary import Boundaries
from sluice_spark.progress.intake import Intake
from sluice_spark.progress.observers import Observers
from sluice_spark.progress.reports import Reports, require_none_quarantined, require_none_stopped
from sluice_spark.progress.spool_upkeep import Upkeep
from sluice_spark.progress.start import left_behind, open_ledger
from sluice_spark.progress.table_progress import Work
from sluice_spark.session import is_gone, private
from sluice_spark.telemetry import ApplyTelemetry
from sluice_spark.workers import Turns, Workers, background, warm_up

AWAY_SECONDS = 5.0
"""Between two attempts while the store does not answer."""
IDLE_REPORT_SECONDS = 300.0
"""Between two reports of the same: the lease says meanwhile that the loop goes round."""
RESTING_SECONDS = 60.0
"""Without a window: from then on the lease is renewed less often, where a request costs money."""
REPORT_SHARE = 0.05
"""Of the loop's time, for reports: one with a thousand tables to a distant store is not written every second."""
LONGEST_APART_SECONDS = 30.0
"""Between two of them all the same, where one is due: how long a report waited for a store that hung says nothing about
the next one, and people wait for boundaries.
"""
STOP_LOOK_SECONDS = 0.1
"""Within so many a pause ends that nothing else ends."""
LONGEST_PAUSE_SECONDS, SHORTEST_PAUSE_SECONDS = 1.0, 0.01
"""Of the loop, which notices a stop and the loss of the lease in between; and which does not spin."""

_log = structlog.get_logger("sluice.apply")


@dataclass(frozen=True, slots=True)
class _Running:
    """A window in a worker since `began` (monotonic)."""

    work: Work
    began: float
    lake_path: str


class Applier:
    """One process's work. `run` returns at `stop` or the options' end; a ServiceError leaves the lake consistent."""

    def __init__(
        self,
        options: ApplyOptions,
        store: ObjectStore,
        session: SparkSession,
        *,
        stop: threading.Event,
        telemetry: ApplyTelemetry | None = None,
        fresh: Callable[[], ApplyOptions | None] = lambda: None,
        refused: Callable[[], str] = str,
        turns: Turns | None = None,
    ) -> None:
        """`fresh` gives options that are to be in force from now on, if there are any, and `refused` says
        why others are not. `turns` are those of the pipelines of this process.
        """
        self._turns = turns
        self._tag = f"sluice-{uuid.uuid4().hex}"
        """Of Spark's jobs for this pipeline."""
        self._options = options
        self._fresh, self._refused = fresh, refused
        self._telemetry = telemetry or ApplyTelemetry(options)
        self._observers = Observers(options, store, metrics=self._telemetry.metrics)
        self._store = store
        self._session = session
        self._stop = stop
        self._lease = Lease(
            store, seconds=options.lease_seconds, idle_seconds=options.idle_lease_seconds, wait=stop.wait
        )
        self._round_at = 0.0
        """When the loop last went round, unix seconds."""
        self._worked_at = time.monotonic()
        self.gave_lease_back = False
        """Whether the next applier may start at once."""
        self._lake = Lake(options, store, before_commit=self._lease.check)
        self._running: dict[Future[Applied], _Running] = {}
        self._changed = True
        self._said: tuple[str, object] | None = None
        """What the last report said of this process itself."""
        self._reported, self._report_cost = float("-inf"), 0.0
        self._state_at = float("-inf")
        """When the next boundary may be published, on the loop's clock."""
        self._warm = False
        self._compiled: set[bool] = set()

    def run(self) -> None:
        """Applies until `stop` is set or the end is reached. Raises ServiceError."""
        self._lease.acquire()
        self._telemetry.owns(held=True)
        renewal = self._renewal = Renewal(
            self._lease,
            self._telemetry,
            resting=self._rests,
            sign=lambda: (
                self._reports.sign(round_at=self._round_at, succeeded_at=self._telemetry.succeeded_at)
                if self._round_at
                else None
            ),
        )
        renewal.start()
        try:
            self._lake.forget_scratch()
            self._reports = Reports.of(self._options, self._store, self._lake, instance=self._lease.instance)
            last_log = self._reports.last_log()
            self._ledger, log = open_ledger(
                self._options,
                self._store,
                last_log,
                lake=self._lake,
                session=private(self._session),
                telemetry=self._telemetry,
                report=self._reports.again,
            )
            self._reports.begin(seq=self._ledger.state.seq)
            self._observers.begin(self._ledger)
            self._left = left_behind(self._ledger, last_log)
            self._boundaries = Boundaries(self._ledger, apart_seconds=self._options.complete_seconds)
            self._intake = Intake(
                self._store,
                self._ledger,
                poll_seconds=self._options.poll_seconds,
                idle_seconds=self._options.idle_poll_seconds,
                last_seq=self._ledger.state.seq if self._options.once else None,
                ending=self._options.ending,
                seen=self._take_in,
            )
            self._maintenance = self._maintained()
            self._upkeep = Upkeep(
                self._store,
                require_owner=self._lease.check,
                state=lambda: self._ledger.manifest,
                retention_seconds=lambda: self._options.retention_seconds,
                failed=lambda error: self._telemetry.note("apply", error),
                before=last_log.upkeep if last_log else None,
                prune_seconds=self._options.prune_seconds,
                consumer_seconds=self._options.consumer_seconds,
                ours=self._options.ending is None,
            )
            self._workers = Workers(
                self._store,
                self._lake,
                self._session,
                count=self._options.workers,
                tag=self._tag,
                turns=self._turns,
            )
            with closing(self._workers):
                if log is not last_log or (log and not self._ledger.tables.keys() <= log.tables.keys()):
                    # What is pruned is judged by reports: a lake table that is new, or begins again, is in this one,
                    # before entries are read which say through where the others are complete.
                    self._report()
                try:
                    self._upkeep.start()
                    self._intake.listen()
                    self._loop()
                    self._telemetry.stopping()
                    if not self._stop.is_set():
                        self._maintenance.finish(self._stop)
                        self._upkeep.finish(self._stop)
                finally:
                    self._intake.wakeup.close()
                    self._telemetry.stopping()
                    self._drain()
                    self._upkeep.stop()
            self._report(force=True)
            if (self._options.once or self._options.until_lsn) and not self._stop.is_set():
                require_none_quarantined(self._ledger)
        except ServiceError as error:
            self._telemetry.note("lease" if isinstance(error, WriterFenced) else "apply", error)
            self._observers.failed(str(error))
            raise
        except Exception as error:
            self._observers.failed(f"an unexpected error ({type(error).__name__})")
            if is_gone(self._session):
                raise SparkGone("Spark has ended") from error
            raise
        finally:
            renewal.close()
            self.gave_lease_back = self._lease.release()
            self._telemetry.owns(held=False)
            self._lake.close()
            # The next applier need not wait until a receiver has taken what is said of this one.
            self._observers.close()

    def _take_in(self, entry: Entry, sha256: str) -> None:
        self._lake.entries.take_in(entry.seq, sha256)
        self._observers.take_in(entry, sha256)

    def _rests(self) -> bool:
        return not self._running and time.monotonic() - self._worked_at >= RESTING_SECONDS

    def _maintained(self) -> Maintenance:
        return Maintenance(
            self._options,
            self._ledger,
            lake=self._lake,
            reports=self._reports,
            session=self._session,
            before_commit=self._lease.check,
            telemetry=self._telemetry,
        )

    def _loop(self) -> None:
        while not self._stop.is_set():
            if self._renewal.fenced is not None:
                raise self._renewal.fenced
            try:
                self._reconfigure()
                known = self._ledger.examined_lsn, self._ledger.tables_seq
                more = self._intake.read(now=time.monotonic(), rung=self._intake.wakeup.take())
                self._changed = self._changed or known != (self._ledger.examined_lsn, self._ledger.tables_seq)
                self._observers.look()
                quiet = not (more or self._running or self._ledger.pending_entries())
                self._boundaries.turn(now=time.monotonic(), quiet=quiet)
                pool, free = self._workers.pool, self._is_free()
                if self._maintenance.turn(pool, now=time.monotonic(), free=free, caught_up=not more):
                    self._changed = True
                self._submit()
                self._telemetry.round(
                    running=len(self._work), backlog=self._ledger.pending_entries(), read_seq=self._ledger.read_seq
                )
                self._telemetry.keys(self._lake.keys)
                if self._finished():
                    return
                self._report()
                self._state_boundary()
                self._telemetry.readable.reached(self._reports.readable_lsn)
                self._round_at = time.time()
            except StoreUnavailable as error:
                self._wait_for_store(error)
                continue
            self._wait_for_work(more=more)

    def names(self) -> list[str]:
        """The tables that there are, as schema.table, once `fresh` was called. From any thread."""
        return self._ledger.names()

    def require_none_stopped(self) -> None:
        """After `run`. With `once`, and unless it was asked to stop, raises TablesStopped. A replay says itself what it
        made.
        """
        if self._options.once and self._options.ending is None and not self._stop.is_set():
            require_none_stopped(self._ledger)

    def _reconfigure(self) -> None:
        """Between two rounds. A window that runs keeps the options that it was begun with."""
        fresh = self._fresh()
        if fresh is not None:
            self._options = fresh
            self._ledger.reconfigure(fresh)
            self._lake.reconfigure(fresh)
            self._maintenance.reconfigure(fresh)
            self._telemetry.reconfigured(fresh)

    def _wait_for_work(self, *, more: bool) -> None:
        """Until a window ends, a table is due or the manifest is to be looked at; not at all when
        there is `more` to read.
        """
        now = time.monotonic()
        until = min(self._intake.next_look, self._state_at if self._boundaries.is_reached() else float("inf"))
        if self._is_free():
            until = min(until, self._ledger.next_due(after=now))
        seconds = 0.0 if more else min(max(until - now, SHORTEST_PAUSE_SECONDS), LONGEST_PAUSE_SECONDS)
        if not self._running and not more and self._ledger.idle():
            self._telemetry.succeeded()
            self._warm_up_once()
        if work := self._work:
            wait([*work, self._intake.wakeup.rung], timeout=seconds, return_when=FIRST_COMPLETED)
            self._collect()
        elif not more:
            self._rest(until=now + seconds)

    def _rest(self, *, until: float) -> None:
        """Until then, a ring or a stop."""
        while not self._stop.is_set() and (left := until - time.monotonic()) > 0:
            if wait([self._intake.wakeup.rung], timeout=min(left, STOP_LOOK_SECONDS)).done:
                return

    def _wait_for_store(self, error: StoreUnavailable) -> None:
        """The store's objects are there when it answers again. With `once` the caller decides about the next pass."""
        if self._options.once:
            raise error
        self._telemetry.away(error)
        _log.warning("the object store does not answer, trying again", error=str(error))
        self._pause(AWAY_SECONDS)

    def _pause(self, seconds: float) -> None:
        self._telemetry.waits(seconds)
        self._stop.wait(seconds)
        self._telemetry.waits(0)

    def _warm_up_once(self) -> None:
        """Warms Spark up when there is nothing to do for the first time, so that the next window and the first
        checkpoint are fast. Beside the loop: a window that comes meanwhile does not wait for it.
        """
        if not self._warm and not self._options.once:
            background(warm_up, self._lake, self._session, name="warm-up")
        self._warm = True

    def _submit(self) -> None:
        # Asked again after each one: two tables of the source may have the same lake table.
        while self._is_free() and self._begin_next():
            pass
        self._workers.forget(except_of={running.work.table_id for running in self._running.values()})

    def _begin_next(self) -> bool:
        ledger, now = self._ledger, time.monotonic()
        ready = ledger.ready(now=now, boundary_seq=self._boundaries.seq)
        work = next((item for item in ready if self._may_start(item)), None)
        if work is None:
            return False
        # With more tables than workers another one comes first, and the workers are busy.
        free = self._options.workers - len(self._work) - 1
        others = sum(bool(item.window.segments) for item in islice(ready, free + 1))
        following = ledger.following(work, boundary_seq=self._boundaries.seq) if others <= free else None
        ledger.begun(work, now=now)
        if work.window.segments:
            self._worked_at = now
        self._telemetry.began()
        future = self._workers.begin(work, self._options, opened=ledger.state.opened, following=following)
        self._running[future] = _Running(work, time.monotonic(), work.state.path)
        return True

    @property
    def _work(self) -> list[Future[Any]]:
        """What the workers do."""
        return [*self._running, *self._maintenance.running]

    def _is_free(self) -> bool:
        return len(self._work) < self._options.workers

    def _may_start(self, work: Work) -> bool:
        """A cold JVM interprets its code. The first small window of a kind runs alone, which takes
        half the time that several at once would take.
        """
        if work.window.is_snapshot in self._compiled or not work.is_small:
            return True
        others = [running.work for running in self._running.values()]
        return not any(other.window.is_snapshot == work.window.is_snapshot and other.is_small for other in others)

    def _collect(self) -> None:
        for future in [future for future in self._running if future.done()]:
            running = self._running.pop(future)
            table_id = running.work.table_id
            self._ledger.busy.discard(running.lake_path)
            before = self._ledger.report([table_id])
            self._settle(future, running, name=self._ledger.state.tables[table_id].title)
            # A look that found nothing is no news.
            self._changed = self._changed or self._ledger.report([table_id]) != before

    def _settle(self, future: Future[Applied], running: _Running, *, name: str) -> None:
        progress, window = running.work.progress, running.work.window
        try:
            result = future.result()
        except UnsupportedChange as error:
            progress.turns_stale(error)
            self._telemetry.stale(error)
            _log.error("table is stale", table=name, through_seq=window.last_seq, error=str(error))
        except (WriterFenced, SparkGone):
            raise
        except Interrupted:
            _log.debug("window was not begun", table=name)
        except ServiceError as error:
            self._failed(running.work, error, name=name)
        except Exception as error:  # noqa: BLE001 - it concerns this table alone; its text may hold a row
            _log.error("window failed with an unexpected error", table=name, exc_info=error)
            self._failed(
                running.work,
                ApplyError(f"an unexpected error ({type(error).__name__})", hint="please report it with the log"),
                name=name,
            )
        else:
            self._compiled.add(window.is_snapshot)
            seconds = time.monotonic() - running.began
            self._ledger.applied(running.work, result, seconds=seconds)
            self._telemetry.applied(result, seconds=seconds)
            notable = result.committed or (window.segments and not window.is_part) or result.rows
            say = _log.info if notable else _log.debug
            say(
                "window applied",
                table=name,
                through_seq=result.through_seq,
                rows=result.rows,
                delta_version=result.place.version,
                seconds={phase: round(spent, 3) for phase, spent in result.seconds.items()},
                **result.way.shown(),
            )

    def _failed(self, work: Work, error: ServiceError, *, name: str) -> None:
        """The table waits and is tried again. The other tables do not wait."""
        if is_gone(self._session):
            raise SparkGone("Spark has stopped") from error
        passing = isinstance(error, StoreUnavailable) and not self._options.once
        self._ledger.failed(work, str(error), now=time.monotonic(), at=time.time(), passing=passing)
        self._telemetry.failed(error)
        progress = work.progress
        say = _log.error if progress.quarantined else _log.warning
        say(
            "table is quarantined" if progress.quarantined else "window failed",
            table=name,
            attempt=progress.failures,
            error=str(error),
            hint=error.hint,
        )

    def _finished(self) -> bool:
        ledger, end = self._ledger, self._intake.last_seq
        if self._running:
            return False
        if end is not None and ledger.read_seq >= end and not ledger.behind() and ledger.idle():
            return True
        until = self._options.until_lsn
        if not until or ledger.read_lsn < until:
            return False
        # A table that is stopped never gets there: the exit code, or its state, says so.
        report = ledger.report()
        return all(
            row.complete_through_lsn >= until
            for key, row in report.items()
            if ledger.may_apply(key) and not ledger.tables[key].quarantined and not ledger.halted(key)
        )

    def _report(self, *, force: bool = False) -> None:
        began = time.monotonic()
        rhythm, said = IDLE_REPORT_SECONDS, (self._refused(), self._upkeep.report)
        if self._changed or said != self._said:
            rhythm = _apart(self._report_cost, at_least=self._options.report_seconds)
        if not force and began - self._reported < rhythm:
            return
        self._lease.check()
        rows = self._ledger.report()
        self._reports.log(
            rows,
            succeeded_at=self._telemetry.succeeded_at,
            configuration_refused=said[0],
            upkeep=said[1],
            left=self._left,
            manifest=self._ledger.manifest,
        )
        if not self._called_off():
            self._boundaries.publish(rows, self._reports.complete, now=began)
            if force:
                self._boundaries.turn(now=began, last=True)
                self._boundaries.publish(rows, self._reports.complete, now=began)
        self._reports.expire()
        self._reported, self._changed, self._said = began, False, said
        self._report_cost = time.monotonic() - began

    def _state_boundary(self) -> None:
        """Publishes a boundary as soon as the tables have reached it: somebody may wait for it."""
        began = time.monotonic()
        if began < self._state_at or not self._boundaries.is_reached():
            return
        self._lease.check()
        if not self._called_off():
            self._boundaries.publish(self._ledger.report(), self._reports.complete, now=began)
        now = time.monotonic()
        self._state_at = now + _apart(now - began, at_least=self._options.boundary_seconds)

    def _called_off(self) -> bool:
        """Whether a window is running that the manifest has called off since it began."""
        ledger, works = self._ledger, (running.work for running in self._running.values())
        return any(
            ledger.tables.get(work.table_id) is not work.progress or not ledger.may_apply(work.table_id)
            for work in works
        )

    def _drain(self) -> None:
        """Lets running windows end, or cancels them: a cancelled window has made no commit, or has
        left its marker. Half of `stop_seconds` is for the steps after this one.
        """
        self._workers.forget(except_of=())
        self._maintenance.stop()
        work = self._work
        _, late = wait(work, timeout=self._options.stop_seconds / 2)
        if late:
            self._session.sparkContext.cancelJobsWithTag(self._tag)
        wait(work)
        self._maintenance.close()
        if work and self._renewal.fenced is None:
            try:
                self._collect()
                self._maintenance.collect(now=time.monotonic())
            except ServiceError as error:
                _log.warning("a window ended with an error while stopping", error=str(error))


def _apart(cost_seconds: float, *, at_least: float) -> float:
    """Seconds until the next report, or boundary, when the last one took `cost_seconds`."""
    return max(at_least, min(cost_seconds / REPORT_SHARE, LONGEST_APART_SECONDS))

"""The loop: follow the manifest, hand windows to workers, report, stop when asked.

Owns: one window per table at a time, a table that cannot follow stops alone and by name, everything else that goes wrong stops the process with nothing
half-applied, and the lease is checked before every commit. Tables advance in rounds that end at one manifest entry, so that all of them stand at one
transaction boundary again and again.
"""

import queue
import threading
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import structlog
from pyspark.sql import SparkSession

from service import lsn
from service.errors import ApplyError, ServiceError, StoreUnavailable, UnsupportedChange, WriterFenced
from service.manifest.follow import identity, load_state, read_entries
from service.store.base import ObjectStore
from spark_jobs.handover import forget_scratch
from spark_jobs.lease import Lease
from spark_jobs.ledger import Known, Ledger, restore
from spark_jobs.observe import ApplyTelemetry
from spark_jobs.options import ApplyOptions
from spark_jobs.progress import Reports, completion
from spark_jobs.session import private, warm_up
from spark_jobs.table import Applied, TableApply, application_id, lake_table, removals_are_sent
from spark_jobs.window import Window

MAX_FAILURES = 5
"""Attempts at one window before the process gives up and lets its supervisor start it afresh. A store that is away does not count."""
AWAY_SECONDS = 5.0
"""Between two attempts while the store is away, and at most between two at one window."""
MAX_BACKLOG = 20_000
"""Entries held in memory over all tables; reading pauses above."""
READ_AT_ONCE = 500
SMALL_BYTES = 32 << 20
"""Windows below it cost what every window costs, whatever is in them."""
ROUND_SECONDS = 10.0
"""A round that takes longer lets the tables that are done go on: freshness before a common boundary."""
IDLE_REPORT_SECONDS = 20.0
BUSY_REPORT_SECONDS = 1.0

_log = structlog.get_logger("sluice.apply")


@dataclass(frozen=True, slots=True)
class _Running:
    """A window in a worker since `began` (monotonic)."""

    table_id: str
    known: Known
    window: Window
    began: float


class Applier:
    """One process's work. `run` returns when `stop` is set or the options' end is reached; a ServiceError leaves the lake consistent."""

    def __init__(
        self, options: ApplyOptions, store: ObjectStore, session: SparkSession, *, stop: threading.Event, telemetry: ApplyTelemetry | None = None
    ) -> None:
        self._options = options
        self._telemetry = telemetry or ApplyTelemetry(options)
        self._store = store
        self._session = session
        self._stop = stop
        self._lease = Lease(store, seconds=options.lease_seconds)
        self._sessions: queue.SimpleQueue[SparkSession] = queue.SimpleQueue()
        self._running: dict[Future[Applied], _Running] = {}
        self._round_seq = 0
        self._round_started = 0.0
        self._changed = True
        self._reported = 0.0
        self._fenced: ServiceError | None = None
        self._warm = False
        self._learned: set[bool] = set()

    def run(self) -> None:
        """Applies until told to stop. Raises ServiceError."""
        self._lease.acquire()
        self._telemetry.owns(held=True)
        done = threading.Event()
        renewer = threading.Thread(target=self._renew, args=(done,), name="lease", daemon=True)
        renewer.start()
        try:
            forget_scratch(self._store)
            self._reports = Reports(self._store, instance=self._lease.instance)
            self._ledger = self._opened()
            with ThreadPoolExecutor(self._options.workers, thread_name_prefix="apply") as pool:
                try:
                    self._loop(pool)
                finally:
                    self._telemetry.stopping()
                    self._drain()
            self._report(force=True)
        except ServiceError as error:
            self._telemetry.note("lease" if isinstance(error, WriterFenced) else "apply", error)
            raise
        finally:
            done.set()
            renewer.join()
            self._lease.release()
            self._telemetry.owns(held=False)

    @cached_property
    def _manifest(self) -> str:
        return identity(self._store)

    def _opened(self) -> Ledger:
        for _ in range(self._options.workers):
            self._sessions.put(private(self._session))
        ledger = Ledger(self._options, load_state(self._store))
        log = self._reports.last_log()
        session = private(self._session)
        known: dict[str, Known] = {}
        for table_id, state in ledger.state.tables.items():
            lake = lake_table(self._options, state, session, before_commit=self._lease.check)
            there = lake.exists()
            marker = lake.marker(application_id(self._options.pipeline, state, manifest=self._manifest)) if there else None
            known[table_id] = restore(state, log, marker=marker, delta_version=lake.version() if there else -1)
        ledger.begin(known)
        return ledger

    def _loop(self, pool: ThreadPoolExecutor) -> None:
        end = self._ledger.state.seq if self._options.once else None
        while not self._stop.is_set():
            if self._fenced is not None:
                raise self._fenced
            try:
                read = self._read()
                self._submit(pool)
                self._telemetry.round(running=len(self._running), backlog=self._ledger.backlog_entries(), read_seq=self._ledger.read_seq)
                if self._finished(end):
                    return
                self._report()
            except StoreUnavailable as error:
                self._wait_for_store(error)
                continue
            if self._running:
                wait(self._running, timeout=self._options.poll_seconds, return_when=FIRST_COMPLETED)
                self._collect()
            elif not read:
                self._telemetry.succeeded()
                self._warm_up_once()
                self._stop.wait(self._options.poll_seconds)

    def _wait_for_store(self, error: StoreUnavailable) -> None:
        """What the store had is still there when it comes back. Whoever asked for one pass decides about the next himself."""
        if self._options.once:
            raise error
        self._telemetry.note("apply", error)
        _log.warning("the object store does not answer, trying again", error=str(error))
        self._pause(AWAY_SECONDS)

    def _pause(self, seconds: float) -> None:
        self._telemetry.waits(seconds)
        self._stop.wait(seconds)
        self._telemetry.waits(0)

    def _warm_up_once(self) -> None:
        """While there is nothing to do, so that the first window later on does not pay for it; windows warm the session as well."""
        if not self._warm and not self._options.once:
            threading.Thread(target=self._warm_up, name="warm-up", daemon=True).start()
        self._warm = True

    def _warm_up(self) -> None:
        try:
            warm_up(private(self._session))
        except Exception as error:  # noqa: BLE001 - costs nothing but time, and the session may be stopping
            _log.debug("warm-up ended early", kind=type(error).__name__)

    def _read(self) -> int:
        ledger = self._ledger
        if ledger.backlog_entries() >= MAX_BACKLOG:
            return 0
        count = 0
        known_sha = ledger.state.previous_sha256 if ledger.read_seq == ledger.state.seq else None
        for entry, sha256 in read_entries(self._store, after_seq=ledger.read_seq, previous_sha256=known_sha or None, limit=READ_AT_ONCE):
            ledger.take_in(entry, sha256)
            count += 1
        return count

    def _submit(self, pool: ThreadPoolExecutor) -> None:
        now = time.monotonic()
        if self._ledger.idle(until_seq=self._round_seq) or now - self._round_started > ROUND_SECONDS:
            self._round_seq, self._round_started = self._ledger.read_seq, now
        for table_id, known, state, window in list(self._ledger.ready(until_seq=self._round_seq)):
            if not self._has_room(window):
                continue
            known.busy = True
            self._telemetry.began()
            future = pool.submit(self._apply, state, window, known.schema_version)
            self._running[future] = _Running(table_id, known, window, time.monotonic())

    def _has_room(self, window: Window) -> bool:
        """A cold JVM interprets what it runs. The first small window of a kind teaches it alone, in half the time that several at once would take."""
        if len(self._running) >= self._options.workers:
            return False
        if window.is_copy in self._learned or window.bytes >= SMALL_BYTES:
            return True
        others = [running.window for running in self._running.values()]
        return not any(other.is_copy == window.is_copy and other.bytes < SMALL_BYTES for other in others)

    def _apply(self, state: Any, window: Window, known_version: int) -> Applied:
        session = self._sessions.get()
        try:
            session.sparkContext.setLocalProperty("spark.scheduler.pool", f"{state.schema_name}.{state.table_name}")
            work = TableApply(
                self._options,
                self._store,
                session,
                manifest=self._manifest,
                state=state,
                before_commit=self._lease.check,
                removals_sent=removals_are_sent(self._ledger.state.opened, state),
                known_version=known_version,
            )
            return work.apply(window)
        finally:
            self._sessions.put(session)

    def _collect(self) -> None:
        for future in [future for future in self._running if future.done()]:
            running = self._running.pop(future)
            running.known.busy = False
            self._changed = True
            state = self._ledger.state.tables[running.table_id]
            self._settle(future, running, name=f"{state.schema_name}.{state.table_name}")

    def _settle(self, future: Future[Applied], running: _Running, *, name: str) -> None:
        known, window = running.known, running.window
        try:
            result = future.result()
        except UnsupportedChange as error:
            known.stale_reason = str(error)
            self._telemetry.stale(error)
            _log.error("table is stale", table=name, through_seq=window.last_seq, error=str(error))
        except (ApplyError, StoreUnavailable) as error:
            known.failures, known.trouble = known.failures + 1, f"attempt {known.failures + 1} failed: {error}"
            self._telemetry.failed(error)
            _log.warning("window failed", table=name, attempt=known.failures, error=str(error))
            if known.failures >= MAX_FAILURES and (self._options.once or not isinstance(error, StoreUnavailable)):
                raise
            self._pause(min(0.2 * 2 ** min(known.failures, MAX_FAILURES), AWAY_SECONDS))
        else:
            self._warm = True
            self._learned.add(window.is_copy)
            self._ledger.applied(known, window, result)
            self._telemetry.applied(result, seconds=time.monotonic() - running.began)
            _log.info("window applied", table=name, through_seq=window.last_seq, rows=result.rows, delta_version=result.delta_version)

    def _finished(self, end: int | None) -> bool:
        ledger = self._ledger
        if self._running:
            return False
        if end is not None and ledger.read_seq >= end and ledger.idle(until_seq=ledger.read_seq):
            return True
        live = [row for row in ledger.report().values() if row.state in ("live", "copying")]
        return bool(self._options.until_lsn and live) and all(row.complete_through_lsn >= self._options.until_lsn for row in live)

    def _report(self, *, force: bool = False) -> None:
        now = time.monotonic()
        due = BUSY_REPORT_SECONDS if self._changed else IDLE_REPORT_SECONDS
        if not force and now - self._reported < due:
            return
        tables = self._ledger.report()
        complete = completion(tables, committed={table_id: known.committed_seq for table_id, known in self._ledger.tables.items()})
        self._lease.check()
        self._reports.log(tables, succeeded_at=self._telemetry.succeeded_at)
        if complete is not None and not self._running:
            self._reports.complete(complete)
            _log.debug("all tables complete", lsn=lsn.show(complete.lsn), seq=complete.seq)
        self._reported, self._changed = now, False

    def _drain(self) -> None:
        """Lets running windows end, or cancels them: a cancelled one left no commit, or left its marker. Half of the stop is for what comes after."""
        _, late = wait(self._running, timeout=self._options.stop_seconds / 2)
        if late:
            self._session.sparkContext.cancelAllJobs()
        wait(self._running)
        if self._running and self._fenced is None:
            try:
                self._collect()
            except ServiceError as error:
                _log.warning("a window ended with an error while stopping", error=str(error))

    def _renew(self, done: threading.Event) -> None:
        while not done.wait(self._options.lease_seconds / 3):
            try:
                self._lease.renew()
                self._telemetry.lease_renewed()
            except StoreUnavailable as error:
                self._telemetry.note("lease", error)
                _log.warning("the lease was not renewed", error=str(error))
            except ServiceError as error:
                self._telemetry.owns(held=False)
                self._fenced = error
                return

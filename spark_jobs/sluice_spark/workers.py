"""The threads that apply windows, each on a private session, those that prepare the next ones, and one that joins small
files.

Owns that a window which was prepared is taken next or forgotten: it lives while its table has a window
in a worker, and until the loop has given out work once more. So no more of them are held than windows
run, and none for a table that was stopped meanwhile.
"""

import queue
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import structlog
from pyspark.sql import SparkSession

from sluice.contract.entries import Opened
from sluice.errors import Interrupted
from sluice.store.base import ObjectStore
from sluice.telemetry.logs import in_context
from sluice_spark.applied_window import Applied
from sluice_spark.kinds.kind import removals_are_sent
from sluice_spark.kinds.registry import kind_of
from sluice_spark.lake.arranging import Arrangements
from sluice_spark.lake.expiring import expire_now
from sluice_spark.lake.opening import Lake
from sluice_spark.next_window import Ahead
from sluice_spark.options import ApplyOptions
from sluice_spark.progress.table_progress import TableProgress, Work
from sluice_spark.read.window import Window
from sluice_spark.session import private
from sluice_spark.snapshot_apply import SnapshotApply
from sluice_spark.table_apply import TableApply

_log = structlog.get_logger("sluice.apply")

_TURN_SECONDS = 0.2
"""How soon work that waits for its turn notices a stop."""


def background(work: Callable[..., None], *args: object, name: str) -> threading.Thread:
    """Starts a thread that the process does not wait for, whose log lines have the fields that are bound here."""
    thread = threading.Thread(target=in_context(work), args=args, name=name, daemon=True)
    thread.start()
    return thread


def warm_up(lake: Lake, session: SparkSession) -> None:
    """Warms Spark up for `lake`, as far as it comes."""
    began = time.monotonic()
    try:
        lake.warm_up(private(session))
        _log.debug("Spark is warm", seconds=round(time.monotonic() - began, 3))
    except Exception as error:  # noqa: BLE001 - costs nothing but time, and the session may be stopping
        _log.debug("warm-up ended early", kind=type(error).__name__)


@dataclass(frozen=True, slots=True)
class Turns:
    """Bounds what several pipelines of one process do at once: their work on lake tables takes turns, and
    none is prepared ahead, which would be held meanwhile.
    """

    slots: threading.Semaphore
    stop: threading.Event

    def take(self) -> None:
        """Waits for a turn, which `slots.release` ends. Raises Interrupted when the pipeline stops first."""
        while not self.slots.acquire(timeout=_TURN_SECONDS):
            if self.stop.is_set():
                raise Interrupted("the pipeline stops, and its work was not begun")


class _Pool(ThreadPoolExecutor):
    """Work of one pipeline on lake tables: one thing per thread, in its turn where there are `turns`."""

    def __init__(self, count: int, turns: Turns | None, initializer: Callable[[], None]) -> None:
        super().__init__(count, thread_name_prefix="apply", initializer=initializer)
        self._turns = turns

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        return super().submit(self._run, fn, args, kwargs)

    def _run(self, work: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._turns is None:
            return work(*args, **kwargs)
        self._turns.take()
        try:
            return work(*args, **kwargs)
        finally:
            self._turns.slots.release()


class Workers:
    """`count` workers on `lake` and the spool in `store`. Spark's jobs that they run have the tag `tag`."""

    def __init__(
        self,
        store: ObjectStore,
        lake: Lake,
        session: SparkSession,
        *,
        count: int,
        tag: str,
        turns: Turns | None = None,
    ) -> None:
        self._store = store
        self._lake = lake
        self._turns = turns
        fields = structlog.contextvars.get_contextvars()

        def begin() -> None:
            structlog.contextvars.bind_contextvars(**fields)
            session.sparkContext.addJobTag(tag)

        self.pool = _Pool(count, turns, begin)
        """For other work of the loop on lake tables as well."""
        self._others = ThreadPoolExecutor(count, thread_name_prefix="ahead", initializer=begin)
        # One at a time for all tables: what a join holds comes on top of what windows hold.
        self._joins = ThreadPoolExecutor(1, thread_name_prefix="join", initializer=begin)
        self._sessions: queue.SimpleQueue[SparkSession] = queue.SimpleQueue()
        for _ in range(count):
            self._sessions.put(private(session))
        self._ahead: dict[str, tuple[TableProgress, Ahead]] = {}
        self._arrangements = Arrangements()

    def begin(
        self, work: Work, options: ApplyOptions, *, opened: Opened | None, following: Window | None
    ) -> Future[Applied]:
        """Applies the window of `work`, and meanwhile prepares the one `following`, if there is one. The
        caller leaves the progress of `work` as it is until the window has ended.
        """
        progress, ahead = self._ahead.pop(work.table_id, (None, None))
        if ahead is not None and progress is not work.progress:
            ahead.drop()
            ahead = None
        coming = Ahead(following, self._others) if following is not None and self._turns is None else None
        if coming is not None:
            self._ahead[work.table_id] = (work.progress, coming)
        return self.pool.submit(self._apply, work, options, opened, ahead, coming)

    def forget(self, *, except_of: Collection[str]) -> None:
        """Drops what was prepared for other tables than these, by table id."""
        for table_id in self._ahead.keys() - set(except_of):
            self._ahead.pop(table_id)[1].drop()

    def close(self) -> None:
        """Waits for the threads."""
        self.forget(except_of=())
        self.pool.shutdown()
        self._others.shutdown(cancel_futures=True)
        self._joins.shutdown(cancel_futures=True)

    def _apply(
        self, work: Work, options: ApplyOptions, opened: Opened | None, prepared: Ahead | None, following: Ahead | None
    ) -> Applied:
        state, progress = work.state, work.progress
        session = self._sessions.get()
        try:
            session.sparkContext.setLocalProperty("spark.scheduler.pool", state.title)
            lake = self._lake.table(state, session, place=progress.place)
            build = self._lake.build(state, session) if work.window.chunks else None
            table = TableApply(
                options,
                self._store,
                lake,
                self._lake.handover(session),
                SnapshotApply(options, self._store, lake, state, build=build),
                state=state,
                removals_sent=removals_are_sent(opened, state),
                begun_seq=progress.begun_seq,
                lake_version=progress.schema_version,
                prepared=prepared,
                following=following,
                # A process that ends with the backlog has no later window to put them in place.
                beside=None if options.once or options.until_lsn else self._joins,
            )
            done = table.apply(work.window)
            if done.not_in_parts or work.window.is_part:
                return done
            expiry = kind_of(state, state.schemas[state.schema_version]).expires()
            if expiry is not None:
                expire_now(lake, expiry.column, expiry.seconds)
            anew = done.committed and (work.window.is_snapshot or work.window.schema_version > 0)
            version = max(done.schema_version, progress.schema_version)
            unarranged = self._arrangements.turn(lake, state, version, anew=anew)
            return replace(done, place=lake.place, unarranged=unarranged)
        finally:
            self._sessions.put(session)

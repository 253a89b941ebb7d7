"""What runs beside the connections of one process and outlives them: snapshots, repairs, requests, the
catalog watch, and the collection of what older writers left behind.

Invariant: none of them can fail unseen. What may pass is tried again; anything else is handed
to `on_error`, once, and ends the process.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog

from sluice.errors import ServiceError, may_pass
from sluice.ingest.epoch import Epoch
from sluice.ingest.options import IngestOptions
from sluice.ingest.status import IngestStatus
from sluice.ingest.stop import IngestStop
from sluice.ingest.tables.requests import WAITING, said, waiting_in
from sluice.manifest.leftovers import collect
from sluice.store.base import ObjectStore
from sluice.store.doorbell import Listener
from sluice.telemetry.recent_errors import RecentErrors
from sluice.telemetry.waits import Waits

AWAITING_SECONDS = 1.0
"""Between two looks at the catalog while a change of shape waits for the stream to pass its
position: until then its table is not live.
"""
SNAPSHOT_SECONDS = 1.0
TICK_SECONDS, URGENT_TICK_SECONDS = 0.5, 0.05
LOOK_SECONDS, LOOK_SHARE = 1.0, 0.05
"""Between two looks at the catalog while something is published that none has examined, and the share of the
time that they may take.
"""
SILENT_SECONDS = 60.0
"""Between two looks at the catalog while the server would signal DDL, and does not."""
RETRY_SECONDS = 2.0
RUNG_SECONDS = 0.1
"""Between two looks at the requests of operators at least."""


def say_requests(store: ObjectStore, waits: Waits) -> None:
    """Names the requests of operators that nobody may carry out before a start is proven."""
    with suppress(ServiceError):
        if wanted := waiting_in(store):
            waits.say(WAITING, f"the first connection to the source: {wanted}")


class Background:
    """Belongs to the event loop; the work itself runs in threads."""

    def __init__(
        self,
        epoch: Epoch,
        store: ObjectStore,
        *,
        options: IngestOptions,
        status: IngestStatus,
        stop: IngestStop,
        errors: RecentErrors,
        on_error: Callable[[BaseException], None],
        urgent: bool,
    ) -> None:
        """With `urgent` somebody waits until everything is examined."""
        self._epoch = epoch
        self._store = store
        self._watch_interval_s, self._request_interval_s = options.watch_interval_s, options.request_interval_s
        self._status = status
        self._stop = stop
        self._errors = errors
        self._on_error = on_error
        self._tick_s, self._least_s = (URGENT_TICK_SECONDS, 0.0) if urgent else (TICK_SECONDS, LOOK_SECONDS)
        # While the stream writes entries, the next one states what was examined, which costs no entry of its own.
        self._apart_s = 0.0 if urgent else 2 * options.flush.min_interval_s
        self._logger = structlog.get_logger("ingest")
        self._rung = asyncio.Event()
        loop = asyncio.get_running_loop()

        def heard(_number: int) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._rung.set)

        self._bell = Listener(store, "ingest", heard)
        tasks = (
            self._take_snapshots(),
            self._watch_catalog(),
            self._take_requests(),
            self._repair(),
            self._attempt(self._collect_leftovers, "leftovers"),
        )
        self._tasks: list[asyncio.Task[Any]] = [asyncio.create_task(task) for task in tasks]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def wait(self) -> None:
        """Returns when all of it has ended, which it does after the stop was asked for."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._bell.close()

    async def _take_snapshots(self) -> None:
        while not self._stop.asked.is_set():
            self._status.snapshots.beat = time.time()
            if self._epoch.snapshotter.pending:
                await self._attempt(self._epoch.snapshotter.run_once, "snapshot")
            else:
                self._epoch.snapshotter.rest()
            await self._stop.sleep(SNAPSHOT_SECONDS)

    async def _repair(self) -> None:
        requests, repairer = self._epoch.watch.requests, self._epoch.repairer
        while not self._stop.asked.is_set():
            if requests.repairs:
                await self._attempt(lambda: requests.repair(repairer.repair, repairer.close_gap), "snapshot")
            await self._stop.sleep(SNAPSHOT_SECONDS)

    async def _take_requests(self) -> None:
        while not self._stop.asked.is_set():
            self._rung.clear()
            await self._attempt(self._epoch.watch.requests.take_at_once, "spool")
            await self._stop.sleep(RUNG_SECONDS)  # whoever rings without an end costs no more
            await self._stop.sleep(self._request_interval_s - RUNG_SECONDS, unless=self._rung)

    async def _watch_catalog(self) -> None:
        watch, waits = self._epoch.watch, self._status.waits
        looked_at, rest = time.monotonic(), self._least_s
        seq, moved_at = 0, 0.0
        while not self._stop.asked.is_set():
            self._status.catalog_beat = time.time()
            await self._stop.sleep(min(self._tick_s, self._watch_interval_s))
            passed = time.monotonic() - looked_at
            interval = self._watch_interval_s if watch.signals.why_not else max(self._watch_interval_s, SILENT_SECONDS)
            usual = min(AWAITING_SECONDS, self._watch_interval_s) if self._epoch.tables.awaiting else interval
            if passed >= usual or (passed >= rest and watch.is_due()):
                began = time.monotonic()
                done = await self._attempt(watch.run_once, "catalog")
                looked_at = time.monotonic()
                rest = max(self._least_s, (looked_at - began) / LOOK_SHARE) if done else self._watch_interval_s
                if not done and watch.requests.waiting:
                    wanted = said(watch.requests.waiting.values())
                    waits.say(WAITING, f"the source, which cannot be asked now: {wanted}", retry_seconds=rest)
                else:
                    waits.end(WAITING)
            if self._epoch.log.stored.seq != seq:
                seq, moved_at = self._epoch.log.stored.seq, time.monotonic()
            if time.monotonic() - moved_at >= self._apart_s and watch.is_unstated:
                await self._attempt(watch.state_examined, "manifest")

    def _collect_leftovers(self) -> None:
        """Once per process. Nothing waits for it, and nothing but space depends on it."""
        opened = self._epoch.opened
        try:
            self._status.leftovers = collect(
                self._store,
                opened_seq=opened.seq,
                epoch=opened.epoch,
                table_ids=opened.tables,
                stop=self._stop.threads,
            )
        except ServiceError as error:
            self._errors.note("leftovers", error)
            self._logger.warning("leftovers of older writers stay for now", error=str(error), hint=error.hint)
        else:
            self._logger.info("leftovers of older writers collected", objects=self._status.leftovers)

    async def _attempt(self, action: Callable[[], object], what: str) -> bool:
        """Runs `action` in a thread. What may pass is tried again next time, and False returned; what may
        not is raised. `what` is one of the catalogue's components.
        """
        try:
            await asyncio.to_thread(action)
            return True
        except Exception as error:
            if may_pass(error) and self._stop.asked.is_set():
                return False  # the stop has cancelled it, and there is no next time
            self._errors.note(what, error)
            if not may_pass(error):
                raise
            self._logger.warning("interrupted, trying again", what=what, error=str(error), hint=error.hint)
            await self._stop.sleep(RETRY_SECONDS)
            return False

    def _ended(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._on_error(error)

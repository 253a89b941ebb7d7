"""Keeps the spool short while the applier runs: entries of the manifest become archives, and what
every table has in the lake is deleted when it is older than the retention.

Owns the thread that does it, and its share of time. It runs beside the loop, takes nothing from it
but the state of the manifest, judges by the records that are stored, and writes and deletes only
while this process holds the lease. Whatever goes wrong leaves the spool longer than it need be and
the pipeline as it is: it is logged, counted, tried again, and a fact of the applier's report until a
turn goes well.
"""

import threading
import time
from collections.abc import Callable

import structlog

from sluice.contract.applied import SpoolUpkeep, time_text
from sluice.errors import ServiceError, StoreUnavailable, WriterFenced
from sluice.manifest import horizon, pruning
from sluice.manifest.compaction import Compactor
from sluice.manifest.values import PipelineState
from sluice.store.base import ObjectStore
from sluice.telemetry.logs import in_context

LOOK_SECONDS = 20.0
"""Between two looks while there is nothing to do, which ask the store for nothing."""
PRUNE_SECONDS = 60.0
"""Between two looks at what may go: a few requests."""
PRUNED_AT_ONCE = 1000
"""Entries whose objects go in one step."""
SHARE = 0.2
"""Of the thread's time, while there is more to do: the windows come first."""
AGAIN_SECONDS, LONGEST_SECONDS = 60.0, 3600.0
"""After an error, longer each time: nothing is urgent here."""
ENDING_SECONDS = 0.1
"""Between two looks for a stop while a process ends."""
STOP_SECONDS = 5.0
"""A stop does not wait longer for a request that is under way: a kill at any moment is harmless."""

_log = structlog.get_logger("sluice.apply")


class Upkeep:
    """Works from `start` to `stop`; not at all on a spool that is not `ours`."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        require_owner: Callable[[], None],
        state: Callable[[], PipelineState],
        retention_seconds: Callable[[], float | None],
        failed: Callable[[BaseException], None],
        before: SpoolUpkeep | None,
        prune_seconds: float = PRUNE_SECONDS,
        consumer_seconds: float = pruning.CONSUMER_SECONDS,
        ours: bool = True,
    ) -> None:
        """`require_owner` raises when this process may not write any more, `state` is one that the
        manifest has come to, and `failed` hears of every error; all from this thread. `before` is what the
        process before this one reported, None without one. What may go is looked for every `prune_seconds`.
        """
        self.report = before or SpoolUpkeep()
        """How it goes. Any thread may read it."""
        self._store, self._ours = store, ours
        self._state = state
        self._retention_seconds = retention_seconds
        self._floor_seq: int | None = None
        self._after: PipelineState | None = None
        self._prune_at = 0.0
        self._prune_seconds, self._consumer_seconds = prune_seconds, consumer_seconds
        self._retention = 0.0
        """As of the last look. The one that a process starts with is nobody's change."""
        self._failed = failed
        self._require_owner = require_owner
        self._compactor = Compactor(store, require_owner=self._may_go_on)
        self._done, self._ending, self._woken = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=in_context(self._run), name="upkeep", daemon=True)

    def start(self) -> None:
        if self._ours:
            self._thread.start()

    def finish(self, stop: threading.Event) -> None:
        """Does without pauses what there is to do now, until `stop`: a process that ends with the backlog may
        run for seconds only, and the next one, too.
        """
        self._ending.set()
        self._woken.set()
        while self._thread.is_alive() and not stop.is_set():
            self._thread.join(ENDING_SECONDS)

    def stop(self) -> None:
        """Returns soon. What is under way ends by itself, or is done again by the next applier."""
        self._done.set()
        self._woken.set()
        if self._ours:
            self._thread.join(STOP_SECONDS)

    def _may_go_on(self) -> None:
        if self._done.is_set():
            raise _Stopped
        self._require_owner()

    def _run(self) -> None:
        errors = 0
        while not self._done.is_set():
            began = time.monotonic()
            try:
                more = self._turn()
            except (WriterFenced, _Stopped):
                return  # the loop finds out by itself, and ends the process
            except Exception as error:  # noqa: BLE001 - it concerns nothing but the length of the spool
                errors += 1
                more, pause = False, min(AGAIN_SECONDS * 2**errors, LONGEST_SECONDS)
                self._say(error, attempt=errors)
            else:
                errors, self.report = 0, SpoolUpkeep()
                pause = (time.monotonic() - began) * (1 / SHARE - 1) if more else LOOK_SECONDS
            if self._ending.is_set() and not more:
                return
            self._woken.wait(pause)

    def _turn(self) -> bool:
        """One step. Whether there may be another one to do."""
        if self._floor_seq is None:
            self._floor_seq = horizon.floor_seq(self._store)
        newest = self._state().seq
        if self._compactor.step(newest, floor_seq=self._floor_seq):
            _log.info("manifest entries archived", newest_seq=newest)
            return True
        return time.monotonic() >= self._prune_at and self._prune()

    def _prune(self) -> bool:
        seconds, after = self._retention_seconds(), self._after
        shorter, self._retention = seconds is not None and seconds < self._retention, _plain(seconds)
        self._after, self._floor_seq = None, None  # until it has gone well
        plan = pruning.plan(
            self._store,
            keep_seconds=_plain(seconds),
            consumer_seconds=self._consumer_seconds,
            state=self._state,
            after=after,
            most_entries=PRUNED_AT_ONCE,
            leftovers=False,
        )
        if shorter and plan.objects:
            _log.warning(
                f"a shorter spool.retention deletes more, from {self._prune_seconds:g} s from now on",
                through_seq=plan.through_seq,
                objects=len(plan.objects),
                bytes=plan.bytes,
                hint="restore the old value to keep them: without them a lost lake table is read from the source again",
            )
            self._after, self._prune_at = after, time.monotonic() + self._prune_seconds
            return False
        pruning.carry_out(self._store, plan, require_owner=self._may_go_on)
        self._after = plan.after
        if plan.cleaned is not None:
            _log.info("the spool was pruned", through_seq=plan.through_seq, objects=len(plan.objects), bytes=plan.bytes)
        more = after is None or plan.after.seq - after.seq >= PRUNED_AT_ONCE
        self._prune_at = time.monotonic() + (0.0 if more and plan.cleaned is not None else self._prune_seconds)
        return more and plan.cleaned is not None

    def _say(self, error: Exception, *, attempt: int) -> None:
        self._failed(error)
        text = str(error) if isinstance(error, ServiceError) else f"an unexpected error ({type(error).__name__})"
        away = isinstance(error, StoreUnavailable)
        say = _log.warning if away else _log.error
        say("the spool is not kept short", error=text, hint=getattr(error, "hint", ""))
        if not away or attempt > 1:  # a store that does not answer once is nothing to act upon
            self.report = SpoolUpkeep(text, self.report.since or time_text(time.time()))


def _plain(seconds: float | None) -> float:
    return pruning.FOR_EVER if seconds is None else seconds


class _Stopped(Exception):
    """The process ends."""

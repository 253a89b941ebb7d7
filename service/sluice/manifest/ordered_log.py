"""One order for what all producers append: the stream, looks at the catalog, snapshots, requests.

A change is decided against `state`, which has what is decided and not stored yet, and is stored by one
thread. So no decision waits for the object store, and decisions are stored in the order in which they
were made.

Invariant: `state` is always what `manifest.state` makes of the stored entries and of what waits, in order. What
the stream decides waits in `held` for the entry that has its rows, so that either both are stored or
neither is; a table with such a change takes no other one before that. When a connection ends, what it held
is dropped with its rows, and the server sends both again. After an entry could not be stored, no later
one is.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from sluice.contract.entries import Changes, Entry, Opened, Progress, Repair, Snapshot, Table
from sluice.contract.receipt import DurableReceipt
from sluice.errors import ServiceError
from sluice.manifest.state import decided
from sluice.manifest.values import PipelineState
from sluice.manifest.writer import ManifestLog
from sluice.store.base import ObjectStore

Appendable = Table | Snapshot | Progress
Answer = TypeVar("Answer")


class OrderedLog:
    """Owns the one thread that appends to `log`; without `threaded` each call appends by itself. Thread-safe."""

    def __init__(self, log: ManifestLog, *, threaded: bool = True) -> None:
        self._log = log
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="commit") if threaded else None
        self._changed = threading.Condition(threading.RLock())
        self._stored = self._state = log.state
        self._waiting: deque[Appendable] = deque()
        self._held: list[tuple[int, Table]] = []
        """What the stream decided, with the position that it had come to."""
        self._taken = 0
        """How many of those are in an entry that is about to be stored."""
        self._error: BaseException | None = None

    @classmethod
    def open(
        cls,
        store: ObjectStore,
        opened: Opened,
        state: PipelineState,
        *,
        through_lsn: int,
        stop: threading.Event,
        on_problem: Callable[[str, ServiceError], None],
        before_moving: Callable[[], None],
    ) -> "OrderedLog":
        """See ManifestLog."""
        return cls(
            ManifestLog.open(
                store,
                opened,
                state,
                through_lsn=through_lsn,
                stop=stop,
                on_problem=on_problem,
                before_moving=before_moving,
            )
        )

    @property
    def state(self) -> PipelineState:
        """With everything that is decided. While anything is not stored yet, numbers and times are provisional."""
        return self._log.state if self.is_stored else self._state

    @property
    def stored(self) -> PipelineState:
        """As the manifest has it."""
        return self._log.state if self.is_stored else self._stored

    @property
    def is_stored(self) -> bool:
        """Whether nothing is decided that the manifest does not have."""
        return not (self._waiting or self._held)

    @property
    def examined_lsn(self) -> int:
        """See ManifestLog."""
        return self._log.examined_lsn

    def entry(self, seq: int) -> Entry | None:
        """See ManifestLog."""
        return self._log.entry(seq)

    def require_ours(self) -> PipelineState:
        """See ManifestLog."""
        return self._log.require_ours()

    def append(self, body: Appendable) -> "Future[DurableReceipt]":
        """Lets `body` follow what was decided before. Raises ManifestCorrupt if it may not. The future is done
        when it is durable, and raises what `ManifestLog.append` raises.
        """
        with self._changed:
            self._require_whole()
            if isinstance(body, Table | Snapshot):
                assert not self._holds(body.table_id)
            self._decide(body)
            self._waiting.append(body)
            return self.run(self._append_next)

    def hold(self, table: Table, *, position_lsn: int) -> None:
        """Lets the stream's decision `table`, for rows from `position_lsn` on, be stored with these rows."""
        with self._changed:
            self._require_whole()
            self._decide(table)
            self._held.append((position_lsn, table))

    def examined(self, lsn: int) -> None:
        """See ManifestLog; said by entries behind those that were decided before."""
        with self._changed:
            if self._waiting:
                self.run(lambda: self._log.examined(lsn))
            else:
                self._log.examined(lsn)

    def has_held(self, through_lsn: int) -> bool:
        """Whether `take` would give anything."""
        return self._taken < len(self._held) and self._held[self._taken][0] < through_lsn

    def take(self, through_lsn: int) -> tuple[Table, ...]:
        """What the stream decided and no entry has yet, for the entry that goes through `through_lsn`, in order."""
        with self._changed:
            first = self._taken
            while self.has_held(through_lsn):
                self._taken += 1
            return tuple(table for _, table in self._held[first : self._taken])

    def drop_held(self) -> bool:
        """The connection whose stream decided it is over, with its rows. Returns whether there was anything."""
        with self._changed:
            dropped, self._held, self._taken = bool(self._held), [], 0
            self._decide_again()
            return dropped

    def wait_for(self, table_id: str) -> None:
        """Returns when nothing is held of a table. Raises what keeps that from being stored."""
        with self._changed:
            self._changed.wait_for(lambda: not self._holds(table_id) or self._error is not None)
            if self._holds(table_id):
                self._require_whole()

    def _holds(self, table_id: str) -> bool:
        return any(table.table_id == table_id for _, table in self._held)

    @property
    def held(self) -> frozenset[str]:
        """Tables of which the stream has decided what is not stored yet."""
        with self._changed:
            return frozenset(table.table_id for _, table in self._held)

    def wait_stored(self) -> None:
        """Returns when all that was appended before is durable. Raises what kept it from that."""
        self.run(self._require_whole).result()

    def run(self, work: Callable[[], Answer]) -> "Future[Answer]":
        """Does `work` behind all that was appended before."""
        if self._thread is not None:
            return self._thread.submit(work)
        done: Future[Answer] = Future()
        done.set_result(work())
        return done

    def publish(self, body: Changes | Progress, *, from_lsn: int, through_lsn: int) -> DurableReceipt:
        """See ManifestLog. In the work that `run` does."""
        self._require_whole()
        receipt = self._log.publish(body, from_lsn=from_lsn, through_lsn=through_lsn)
        with self._changed:
            count = len(body.tables) if isinstance(body, Changes) else 0
            self._taken = max(0, self._taken - count)  # first: `has_held` looks at both without the lock
            del self._held[:count]
            self._store_moved()
        return receipt

    def move(self, body: Changes | Progress, *, through_lsn: int) -> DurableReceipt:
        """Appends `body` behind all that was appended before, and returns when it is durable: the manifest goes on at
        `through_lsn`. While no connection has anything under way.
        """
        return self.run(lambda: self.publish(body, from_lsn=self.stored.through_lsn, through_lsn=through_lsn)).result()

    def repair(self, standing: Callable[[PipelineState], Repair | None]) -> DurableReceipt | None:
        """Appends what is `standing` where the manifest is once all that was appended before is stored, unless that is
        None. While it is asked nothing else is stored. Raises ManifestCorrupt if it may not follow there, and what
        `append` and `standing` raise.
        """

        def append() -> DurableReceipt | None:
            self._require_whole()
            body = standing(self._log.state)
            if body is None:
                return None
            receipt = self._log.append(body)
            with self._changed:
                self._store_moved()
            return receipt

        return self.run(append).result()

    def close(self) -> None:
        """Ends the thread, once it has done what it was given."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)

    def _append_next(self) -> DurableReceipt:
        self._require_whole()
        body = self._waiting[0]
        try:
            receipt = self._log.append(body)
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
            raise
        with self._changed:
            self._waiting.popleft()
            self._stored = self._log.state
            if not self._waiting:  # what waits was decided on this, and deciding it again takes as long as it is
                self._decide_again()
            self._changed.notify_all()
        return receipt

    def _store_moved(self) -> None:
        self._stored = self._log.state
        self._decide_again()

    def _decide_again(self) -> None:
        state = self._stored
        waiting: Sequence[Appendable] = (*self._waiting, *(table for _, table in self._held))
        for body in waiting:
            state = self._after(state, body)
        self._state = state
        self._changed.notify_all()

    def _decide(self, body: Appendable) -> None:
        stored, before = self.stored, self.state
        self._state, self._stored = self._after(before, body), stored

    def _after(self, state: PipelineState, body: Appendable) -> PipelineState:
        return decided(state, body, written_at=self._log.now())

    def _require_whole(self) -> None:
        if self._error is not None:
            raise self._error

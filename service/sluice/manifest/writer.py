"""Writing the log: one writer, one entry at a time, each stored before anyone may rely on it.

Invariant: a DurableReceipt comes into being here only, after a create that succeeded or whose
object was read back and is ours byte for byte. A number is never skipped and never written twice
with other content. Whoever meets a foreign entry where its own should go has been replaced:
WriterFenced, for ever. After any failure to store, the log is closed, because the entry may yet be
there: opening again finds out.
"""

import math
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from sluice import faults
from sluice.backoff import Backoff, doubling
from sluice.contract import keys
from sluice.contract.entries import Body, Changes, Entry, Opened, Progress, digest
from sluice.contract.receipt import DurableReceipt
from sluice.errors import ManifestCorrupt, ObjectExists, ObjectMissing, ServiceError, StoreUnavailable, WriterFenced
from sluice.manifest import checkpoint, entry_lookup
from sluice.manifest.reader import later_entry
from sluice.manifest.state import reduce
from sluice.manifest.values import PipelineState
from sluice.store.base import ObjectStore
from sluice.store.doorbell import Doorbell

RETRY_SECONDS = doubling(0.1, 5.0)
"""Pauses between tries to store an entry; the last one repeats."""
KEPT = 64
"""Of the newest entries, so many are given without asking the store."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


class ManifestLog:
    """The open log of one pipeline, made by `ManifestLog.open`. Thread-safe: appends are stored one
    after the other.
    """

    def __init__(
        self,
        store: ObjectStore,
        state: PipelineState,
        *,
        retry_seconds: float,
        stop: threading.Event,
        clock: Callable[[], datetime],
        on_problem: Callable[[str, ServiceError], None],
        before_moving: Callable[[], None],
    ) -> None:
        self._store = store
        self._state = state
        self._retry_seconds = retry_seconds
        self._stop = stop
        self._clock = clock
        self._on_problem = on_problem
        self._before_moving = before_moving
        self._bell = Doorbell(store, "applier")
        self._newest: deque[Entry] = deque(maxlen=KEPT)
        self._lock = threading.Lock()
        self._closed: ServiceError | None = None
        self.examined_lsn = state.examined_lsn
        """Through which position the catalog was examined, which the next entry that has come so far says."""
        self._examining = threading.Lock()

    @classmethod
    def open(
        cls,
        store: ObjectStore,
        opened: Opened,
        state: PipelineState,
        *,
        through_lsn: int | None = None,
        retry_seconds: float = math.inf,
        stop: threading.Event | None = None,
        clock: Callable[[], datetime] = _utc_now,
        on_problem: Callable[[str, ServiceError], None] = lambda _what, _error: None,
        before_moving: Callable[[], None] = lambda: None,
    ) -> "ManifestLog":
        """Takes the pipeline over after `state` (from `reader.load_state`) by appending `opened` in
        the next epoch.

        Raises WriterFenced if another writer appended since `state` was read. `through_lsn` is
        where the first epoch begins; left out, the position stays. An entry that the store does not
        take is tried again for `retry_seconds` (by default for ever: the stream waits, and nothing
        is lost) or until `stop`. `on_problem` hears of each such try, and of a checkpoint not
        stored, which harms nothing but the next start. `before_moving` is called before an entry that
        moves the position is stored, and raises when what it holds may not follow: the log stays open.
        """
        log = cls(
            store,
            state,
            retry_seconds=retry_seconds,
            stop=stop or threading.Event(),
            clock=clock,
            on_problem=on_problem,
            before_moving=before_moving,
        )
        if state.seq == 0 and (archived := next(store.list(keys.ARCHIVES), None)):
            raise ManifestCorrupt(
                f"{archived} is there, and the manifest that it belongs to is not",
                hint="restore manifest/, or remove archive/ as well to start over",
            )
        # Without the nonce two writers that start alike at the same moment would each take the
        # other's entry for its own.
        log._append(opened, epoch=state.epoch + 1, through_lsn=through_lsn, extra={"nonce": uuid.uuid4().hex})
        log._require_end()
        return log

    @property
    def state(self) -> PipelineState:
        """The state after the last entry stored."""
        return self._state

    def entry(self, seq: int) -> Entry | None:
        """Entry `seq` without asking the store, None unless it is one of the newest that this log appended."""
        return next((entry for entry in tuple(self._newest) if entry.seq == seq), None)

    def now(self) -> str:
        """The time by which entries are dated, ISO 8601 UTC."""
        return self._clock().isoformat()

    def require_ours(self) -> PipelineState:
        """The state after the last entry stored, if that is the last one in the store. Raises
        WriterFenced when another writer has taken the pipeline over.
        """
        while True:
            state = self._state
            # Another writer begins with an `opened`, which stays an object of its own for ever.
            if entry_lookup.single(self._store, state.seq + 1) is None:
                return state
            with self._lock:  # one of ours that is being stored right now counts as stored
                if self._state.seq == state.seq:
                    raise WriterFenced(
                        f"manifest entry {state.seq + 1} is another writer's, which owns the pipeline now",
                        hint="run this pipeline in one process at a time, and do not restart this one",
                    )

    def examined(self, lsn: int) -> None:
        """A look at the catalog has seen everything that had happened when the log was at `lsn`, and what it
        found was appended; or nothing has changed since. Later entries say so, from where they come to `lsn` on.
        """
        with self._examining:
            self.examined_lsn = max(self.examined_lsn, lsn)

    def publish(self, body: Changes | Progress, *, from_lsn: int, through_lsn: int) -> DurableReceipt:
        """Stores what ended after `from_lsn` and at or before `through_lsn` as the next entry, and
        returns when it is durable.

        `from_lsn` is where its writer went on from, which the log does not guess: a `body` behind
        one that was not stored is refused with ManifestCorrupt. Raises what `append` raises.
        """
        return self._append(body, epoch=self._state.epoch, from_lsn=from_lsn, through_lsn=through_lsn, extra={})

    def append(self, body: Body) -> DurableReceipt:
        """Stores `body` as the next entry, at the position where the log is, and returns when it is
        durable.

        Raises ManifestCorrupt if it may not follow (nothing is stored, the log stays open). Every
        other error closes the log: WriterFenced if another writer owns the manifest now,
        StoreRefused, and StoreUnavailable after `retry_seconds` or `stop`, when the entry may or
        may not be there.
        """
        return self._append(body, epoch=self._state.epoch, extra={})

    def _append(
        self,
        body: Body,
        *,
        epoch: int,
        extra: dict[str, Any],
        from_lsn: int | None = None,
        through_lsn: int | None = None,
    ) -> DurableReceipt:
        with self._lock:
            if self._closed is not None:
                raise type(self._closed)(f"the manifest log is closed: {self._closed}", hint=self._closed.hint)
            ends_lsn = self._state.through_lsn if through_lsn is None else through_lsn
            entry = Entry(
                seq=self._state.seq + 1,
                epoch=epoch,
                previous_sha256=self._state.previous_sha256,
                from_lsn=self._state.through_lsn if from_lsn is None else from_lsn,
                through_lsn=ends_lsn,
                written_at=self.now(),
                body=body,
                examined_lsn=min(self.examined_lsn, ends_lsn),
                extra=extra,
            )
            if entry.through_lsn != entry.from_lsn:
                self._before_moving()
            encoded = entry.encode()
            state = reduce(self._state, entry, digest(encoded))
            try:
                faults.point("manifest.append.before")
                self._store_entry(entry.seq, encoded)
                faults.point("manifest.append.after")
            except BaseException as error:
                self._closed = (
                    error
                    if isinstance(error, ServiceError)
                    else StoreUnavailable(f"manifest entry {entry.seq} was left in doubt")
                )
                raise
            self._newest.append(entry)
            self._state = state
        self._bell.ring(state.seq)
        if state.seq % checkpoint.EVERY_ENTRIES == 0:
            # Others append meanwhile: with many tables, a state takes longer to store than an entry.
            self._write_checkpoint(state)
        return _receipt(state)

    def _require_end(self) -> None:
        """Our `opened` is the last entry. One that a process created which was paused since it read
        the state may stand in the middle of the log, where another writer's entry was before it was
        archived.
        """
        faults.point("manifest.opened")
        seq = self._state.seq
        with self._lock:
            try:
                self._answered(f"manifest entry {seq}", lambda: self._compare_end(seq))
            except ServiceError as error:
                self._closed = error
                raise

    def _compare_end(self, seq: int) -> None:
        later = later_entry(self._store, seq)
        if later is not None:
            raise WriterFenced(
                f"manifest entry {later} was written by another writer, which owns the pipeline now",
                hint="run this pipeline in one process at a time, and do not restart this one",
            )

    def _store_entry(self, seq: int, encoded: bytes) -> None:
        """Returns when entry `seq` is durable with exactly these bytes. A create that is repeated
        is its own question whether the first one arrived.
        """
        self._answered(f"manifest entry {seq}", lambda: self._create_or_compare(keys.manifest_entry(seq), encoded))

    def _answered(self, what: str, attempt: Callable[[], None]) -> None:
        """Returns when `attempt` has, which is tried again while the store does not answer."""
        deadline = time.monotonic() + self._retry_seconds
        backoff = Backoff(RETRY_SECONDS)
        while True:
            try:
                return attempt()
            except (StoreUnavailable, ObjectMissing) as error:
                self._on_problem(what, error)
                pause = backoff.next()
                if time.monotonic() + pause > deadline or self._stop.wait(pause):
                    raise StoreUnavailable(
                        f"{what} could not be stored in {self._store.describe()} for sure; it may or may not be there",
                        hint=error.hint,
                    ) from error

    def _create_or_compare(self, key: str, encoded: bytes) -> None:
        try:
            self._store.create(key, encoded)
        except ObjectExists as error:
            if self._store.get(key) != encoded:
                raise WriterFenced(
                    f"{key} in {self._store.describe()} was written by another writer, which owns the pipeline now",
                    hint="run this pipeline in one process at a time, and do not restart this one",
                ) from error

    def _write_checkpoint(self, state: PipelineState) -> None:
        try:
            checkpoint.write(self._store, state)
        except ServiceError as error:
            self._on_problem(f"checkpoint {state.seq}", error)


def _receipt(state: PipelineState) -> DurableReceipt:
    return DurableReceipt(seq=state.seq, through_lsn=state.through_lsn)

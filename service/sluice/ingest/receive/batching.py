"""From single CopyData payloads to batches, and what can be read off them on the way: positions,
keepalives, requests.

Invariant: every payload lands in exactly one batch, in wire order. Holds the one loop that runs per
message. No clock and no socket: times and the function that yields payloads are handed in.
(PostgreSQL: Streaming Replication Protocol; libpq: Functions Associated with COPY.)
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.errors import DecodeError
from sluice.protocol import constants as c
from sluice.protocol.keepalive import decode_keepalive
from sluice.protocol.standby_status import ShutdownWatch

LARGE_PAYLOAD_BYTES = 1 << 20
"""From here on a payload stays in the block that libpq made for it."""
_YIELD_FRAMES = 8192
"""Payloads taken between two turns of the event loop: a few milliseconds."""
_UNTRACKED = c.ROW_TAGS | {
    c.BEGIN,
    c.RELATION,
    c.TYPE,
    c.ORIGIN,
    c.TRUNCATE,
    c.STREAM_START,
    c.STREAM_STOP,
    c.STREAM_ABORT,
    c.BEGIN_PREPARE,
}
"""pgoutput messages that end nothing. The others (commits, prepares and logical messages) move the
received position, and so does every keepalive.
"""
_KEEPALIVE_THROTTLE_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """When a batch is handed over, and how often the server hears from us. `max_delay_s` is the longest that a
    batch which ends a transaction waits for the reader to be free.

    `status_interval_s` is an upper bound: a third of wal_sender_timeout is used where that is less.
    `read_deadline_s` of silence in spite of pings is a dead connection; a server may decode for
    long before it answers, so it is generous.
    """

    batch_bytes: int = 8 * 1024 * 1024
    batch_frames: int = 65536
    max_delay_s: float = 2.0
    status_interval_s: float = 10.0
    coalesce_s: float = 0.004
    read_deadline_s: float = 120.0


@dataclass(slots=True)
class RawBatch:
    """CopyData payloads in wire order, keepalives included.

    `received_lsn` is the highest position that the server has sent on this connection. `flush` asks
    to close an entry now (age, request, the server's stop, or nothing is under way); `shutdown` says that it seems
    to be stopping and waits until everything is acknowledged.
    """

    frames: list[bytes | memoryview] = field(default_factory=list)
    nbytes: int = 0
    received_lsn: int = 0
    flush: bool = False
    shutdown: bool = False

    def take(self) -> list[bytes | memoryview]:
        """The frames, which the batch then has no more."""
        taken, self.frames = self.frames, []
        return taken


class Batching:
    """The batch that is being filled. Passes requests on to `watch`; for that the owner must keep
    `acknowledged_lsn` up to date.
    """

    def __init__(self, limits: StreamLimits, watch: ShutdownWatch, *, start_lsn: int, now: float) -> None:
        self.received_lsn = start_lsn
        self.acknowledged_lsn = 0
        self.flush_asked = False
        self.ended = False
        """The source of payloads said that there will be no more."""
        self.reply_requested = False
        self.advanced = False
        """Set by `take`, cleared by whoever answers."""
        self._limits = limits
        self._watch = watch
        self._batch = RawBatch()
        self._keepalives = 0
        self.flush_from: float | None = None
        """From when on the end of a transaction makes a batch ready at once; None while the reader is busy."""
        self._ends_transaction = False  # anything since the last batch with `flush`
        self._oldest: float | None = None
        self._handed_at = now
        self._stop_announced = False

    @property
    def full(self) -> bool:
        return len(self._batch.frames) >= self._limits.batch_frames or self._batch.nbytes >= self._limits.batch_bytes

    def take(self, get: Callable[[int], tuple[int, memoryview]], *, now: float) -> int:
        """Moves payloads from `get` (libpq's get_copy_data) into the batch until there are none,
        the batch is full, or it is the event loop's turn.

        Returns how many. Lets the errors of `get` through.
        """
        batch = self._batch
        budget = frames_free = min(self._limits.batch_frames - len(batch.frames), _YIELD_FRAMES)
        bytes_left = bytes_free = self._limits.batch_bytes - batch.nbytes
        append = batch.frames.append
        untracked, header_bytes = _UNTRACKED, c.XLOGDATA_HEADER_BYTES
        while budget > 0 and bytes_left > 0:
            size, block = get(1)
            if size <= 0:
                self.ended = size < 0
                break
            # A copy frees libpq's block while it is warm, and unlike a memoryview costs the garbage
            # collector nothing: a third of the time. Of a large block it would be one more copy of
            # a field that memory is short for.
            payload = bytes(block) if size < LARGE_PAYLOAD_BYTES else block
            append(payload)
            bytes_left -= size
            budget -= 1
            if size <= header_bytes or payload[header_bytes] not in untracked:
                self._note(payload, now)
        batch.nbytes += bytes_free - bytes_left
        if self._oldest is None and len(batch.frames) > self._keepalives:
            self._oldest = now
            self._watch.busy()
        return frames_free - budget

    def _note(self, payload: bytes | memoryview, now: float) -> None:
        """Follows positions and requests. Malformed payloads are left to the decoder, which refuses
        them.
        """
        if payload[0] != c.PRIMARY_KEEPALIVE:
            if len(payload) > c.XLOGDATA_HEADER_BYTES:
                self._ends_transaction = True
                self.received_lsn = max(self.received_lsn, int.from_bytes(payload[c.XLOGDATA_WAL_END], "big"))
            return
        try:
            keepalive = decode_keepalive(payload)
        except DecodeError:
            return
        self._keepalives += 1
        if keepalive.reply_requested:
            self.reply_requested = True
            self._watch.asked(keepalive.end_lsn, flushed_lsn=self.acknowledged_lsn, now=now)
        self.advanced = self.advanced or keepalive.end_lsn > self.received_lsn
        self.received_lsn = max(self.received_lsn, keepalive.end_lsn)

    def ready(self, now: float) -> bool:
        """Whether the batch should be handed over now."""
        if self.flush_asked or self.full or self._due(now):
            return True
        if self._watch.stopping and not self._stop_announced:
            return True
        return bool(self._batch.frames) and self._oldest is None and now - self._handed_at >= _KEEPALIVE_THROTTLE_S

    def wait_s(self, now: float) -> float | None:
        """How long until time alone makes the batch ready; None when it will not."""
        if self._oldest is not None:
            due = self._oldest + self._limits.max_delay_s
            if self._ends_transaction and self.flush_from is not None:
                due = min(due, self.flush_from)
            return max(due - now, 0)
        if self._batch.frames:
            return max(self._handed_at + _KEEPALIVE_THROTTLE_S - now, 0)
        return None

    def hand_over(self, now: float) -> RawBatch:
        """The batch, and a fresh one in its place."""
        batch = self._batch
        batch.received_lsn = self.received_lsn
        batch.shutdown = self._stop_announced = self._watch.stopping
        batch.flush = self._due(now) or self.flush_asked or batch.shutdown
        if batch.flush:
            self._oldest = None
            self._ends_transaction = False
        self.flush_asked = False
        self._handed_at = now
        self._batch = RawBatch()
        self._keepalives = 0
        return batch

    def _due(self, now: float) -> bool:
        """Whether something ended a transaction and nothing is gained by waiting, or something is old."""
        if self._oldest is None:
            return False
        if self._ends_transaction and self.flush_from is not None and now >= self.flush_from:
            return True
        return now - self._oldest >= self._limits.max_delay_s

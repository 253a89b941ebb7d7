"""The replication stream: raw CopyData frames in, standby status messages out, on one asyncio loop.

Invariant: what is reported as flushed never decreases and never exceeds what was received or what the caller called durable; status messages leave on
their own timer whether or not anybody reads. Must not: decode frames or decide what is durable.
(PostgreSQL: Streaming Replication Protocol; libpq: Asynchronous Command Processing, Functions Associated with COPY.)
"""

import asyncio
import contextlib
import struct
import time
from dataclasses import dataclass, field, replace

import psycopg
from psycopg import pq

from service import lsn
from service.errors import ProtocolViolation, ServiceError, SourceRefused, SourceUnavailable
from service.source.sessions import SourceOptions, ping_rejected, raise_result
from service.source.standby import ShutdownWatch, StandbyStatus
from service.source.start import Origin, Started, Streaming, start_command, start_replication

__all__ = ["RawBatch", "ReplicationStream", "StandbyStatus", "StreamLimits"]

_KEEPALIVE = struct.Struct(">cQqB")
_HEADER_BYTES = 25
_YIELD_FRAMES = 8192
"""Frames taken between two turns of the event loop: a few milliseconds."""
_UNTRACKED = frozenset(b"IUDBRYOSETAb")
"""pgoutput tags whose header LSN ends nothing. The others (C c P p K r M) move the received position, and so does every keepalive."""
_REPLY_GAP_S = 0.1
"""Between two status messages that report nothing new: a stopping server answers each with another request."""
_ADVANCE_GAP_S = 0.01
_WRITE_GAP_S = 1.0
"""Between two messages that only report more received: enough to keep an idle server quiet."""
_KEEPALIVE_THROTTLE_S = 0.25
_PROBE_S = 2.0
"""While nobody reads and the batch is full, a stopping server cannot reach us: ask it this often."""
_MISSING_PUBLICATION = "skipped loading publication"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """When a batch is handed over, and how often the server hears from us.

    `status_interval_s` is an upper bound: a third of wal_sender_timeout is used where that is less. `read_deadline_s` of silence in spite of pings is a
    dead connection; a server may decode for long before it answers, so it is generous.
    """

    batch_bytes: int = 8 * 1024 * 1024
    batch_frames: int = 65536
    max_delay_s: float = 2.0
    status_interval_s: float = 10.0
    coalesce_s: float = 0.002
    read_deadline_s: float = 120.0


@dataclass(slots=True)
class RawBatch:
    """CopyData payloads in wire order, keepalives included.

    `received_lsn` is the highest position that the server has sent on this connection. `flush` asks to close an entry now (age, request or the server's
    stop); `shutdown` says that the server seems to be stopping and waits until everything is acknowledged.
    """

    frames: list[bytes] = field(default_factory=list)
    nbytes: int = 0
    received_lsn: int = 0
    flush: bool = False
    shutdown: bool = False


class ReplicationStream:
    """One running START_REPLICATION. Every method belongs to the event loop that opened it."""

    def __init__(self, started: Started, *, options: SourceOptions, start_lsn: int, limits: StreamLimits) -> None:
        """Use `open`."""
        self.identity = started.identity
        self.server_version = started.conn.pgconn.server_version
        self._conn = started.conn
        self._pgconn = started.conn.pgconn
        self._fd = started.conn.pgconn.socket
        self._loop = asyncio.get_running_loop()
        self._options = options
        self._limits = limits
        self._received = self._flushed = start_lsn
        self._batch = RawBatch()
        self._keepalives = 0
        self._input_event = asyncio.Event()
        self._failure: ServiceError | None = None
        self._closed = False
        self._flush_asked = False
        self._writer_added = False
        self._timer: asyncio.TimerHandle | None = None
        self._probe: asyncio.Task[None] | None = None
        self._watch = ShutdownWatch()
        self._stop_announced = False
        now = self._loop.time()
        self._last_sent = self._last_input = self._last_handed = now
        self._left_at: float | None = now
        self._oldest: float | None = None
        started.conn.add_notice_handler(self._notice)
        self._schedule(0)

    @classmethod
    async def open(
        cls,
        options: SourceOptions,
        *,
        start_lsn: int,
        proto_version: int,
        streaming: Streaming,
        two_phase: bool,
        messages: bool,
        origin: Origin,
        limits: StreamLimits | None = None,
        expect: tuple[str, int] | None = None,
    ) -> "ReplicationStream":
        """Starts streaming at `start_lsn`, the position through which everything is durable here.

        `expect` is the (system identifier, timeline) that continuity was proven against; anybody else behind the same address is refused.
        Raises SlotBusy, SlotLost, SourceRefused or SourceUnavailable.
        """
        command = start_command(
            options, start_lsn=start_lsn, proto_version=proto_version, streaming=streaming, two_phase=two_phase, messages=messages, origin=origin
        )
        started = await asyncio.to_thread(start_replication, options, command=command, expect=expect)
        limits = limits or StreamLimits()
        interval = min(limits.status_interval_s, limits.read_deadline_s / 4)
        if started.wal_sender_timeout_s:
            interval = min(interval, started.wal_sender_timeout_s / 3)
        return cls(started, options=options, start_lsn=start_lsn, limits=replace(limits, status_interval_s=interval))

    @property
    def received_lsn(self) -> int:
        """The highest position that the server has sent on this connection."""
        return self._received

    @property
    def flushed_lsn(self) -> int:
        """The last acknowledged position."""
        return self._flushed

    @property
    def closed(self) -> bool:
        """Whether the connection is gone, by our will or not; `next_batch` then says why."""
        return self._closed

    async def next_batch(self) -> RawBatch:
        """The frames that have arrived, as soon as there is a full batch, one that is old enough, or a reason to flush.

        Raises SourceUnavailable when the connection is lost, the server stops, or a stopping server saw no progress; any other error is final. Frames
        not handed out before a failure are dropped: the server sends them again.
        """
        now = self._loop.time()
        if self._left_at is not None:
            # Nobody read in between: the silence of that time says nothing about the connection.
            self._last_input += now - self._left_at
            self._left_at = None
        try:
            while True:
                self._check()
                taken = self._drain()
                if self._ready(self._loop.time()):
                    return self._hand_over()
                if taken == _YIELD_FRAMES:
                    await asyncio.sleep(0)
                    continue
                if taken:
                    # Bytes are coming: leave the socket alone for a moment, so that the server writes without waking us for every message.
                    await asyncio.sleep(self._limits.coalesce_s)
                else:
                    await self._wait_readable()
                self._check()
                self._consume()
        finally:
            self._left_at = self._loop.time()
            self._schedule(_PROBE_S)

    def acknowledge(self, flushed_lsn: int) -> None:
        """Everything that ended at or before `flushed_lsn` is durable. Refuses to go back, and past what was received."""
        if flushed_lsn < self._flushed:
            raise ProtocolViolation(f"refusing to take back an acknowledgement: {lsn.show(flushed_lsn)} is before {lsn.show(self._flushed)}")
        StandbyStatus(self._received, flushed_lsn, reply_requested=False)
        if flushed_lsn == self._flushed or self._closed:
            return
        self._flushed = flushed_lsn
        now = self._loop.time()
        self._watch.progressed(now)
        self._schedule(self._last_sent + _ADVANCE_GAP_S - now)

    def ask_flush(self) -> None:
        """Makes `next_batch` return at once with `flush` set."""
        self._flush_asked = True
        self._input_event.set()

    async def close(self) -> None:
        """Reports the last acknowledged position and leaves; the server frees the slot as soon as it notices, normally at once."""
        if not self._closed:
            with contextlib.suppress(ServiceError):
                self._send_status(ping=False)
        self._finish()
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)

    # Reading ----------------------------------------------------------------------------------------------------------------------------------------

    def _drain(self) -> int:
        """Moves complete frames from libpq into the batch and says how many: the one loop that runs per message."""
        batch = self._batch
        budget = room = min(self._limits.batch_frames - len(batch.frames), _YIELD_FRAMES)
        bytes_left = bytes_room = self._limits.batch_bytes - batch.nbytes
        append = batch.frames.append
        get = self._pgconn.get_copy_data
        untracked = _UNTRACKED
        size = 0
        try:
            while budget > 0 and bytes_left > 0:
                size, frame = get(1)
                if size <= 0:
                    break
                # A copy frees libpq's block while it is warm, and unlike a memoryview costs the garbage collector nothing: a third of the time.
                payload = bytes(frame)
                append(payload)
                bytes_left -= size
                budget -= 1
                if size <= _HEADER_BYTES or payload[_HEADER_BYTES] not in untracked:
                    self._note(payload)
        except psycopg.Error:
            raise self._fail(SourceUnavailable("the replication connection was lost")) from None
        batch.nbytes += bytes_room - bytes_left
        taken = room - budget
        if taken:
            self._last_input = self._loop.time()
            if self._oldest is None and len(batch.frames) > self._keepalives:
                self._oldest = self._last_input
                self._watch.busy()
        self._check()
        if size < 0:
            self._ended()
        return taken

    def _note(self, frame: bytes) -> None:
        """Follows positions and requests. Malformed frames are left to the decoder, which refuses them."""
        if frame[0] == 0x6B and len(frame) == _KEEPALIVE.size:
            self._keepalives += 1
            _, end, _, reply = _KEEPALIVE.unpack(frame)
            now = self._loop.time()
            if reply:
                self._watch.asked(end, flushed_lsn=self._flushed, now=now)
                self._schedule(self._last_sent + _REPLY_GAP_S - now)
            elif end > self._received:
                self._schedule(self._last_sent + _WRITE_GAP_S - now)
            self._received = max(self._received, end)
        elif len(frame) > _HEADER_BYTES:
            self._received = max(self._received, int.from_bytes(frame[9:17], "big"))

    def _consume(self) -> None:
        try:
            self._pgconn.consume_input()
        except psycopg.Error:
            raise self._fail(SourceUnavailable("the replication connection was lost: the server closed it or the network failed")) from None

    async def _wait_readable(self) -> None:
        wait = self._limits.status_interval_s
        if self._oldest is not None:
            wait = self._oldest + self._limits.max_delay_s - self._loop.time()
        elif self._batch.frames:
            wait = self._last_handed + _KEEPALIVE_THROTTLE_S - self._loop.time()
        self._loop.add_reader(self._fd, self._input_arrived)
        try:
            async with asyncio.timeout(max(wait, 0)):
                await self._input_event.wait()
        except TimeoutError:
            pass
        finally:
            self._input_event.clear()
            if not self._closed:
                self._loop.remove_reader(self._fd)

    def _input_arrived(self) -> None:
        self._last_input = self._loop.time()
        self._input_event.set()

    def _ready(self, now: float) -> bool:
        batch, limits = self._batch, self._limits
        if self._flush_asked or len(batch.frames) >= limits.batch_frames or batch.nbytes >= limits.batch_bytes:
            return True
        if self._oldest is not None and now - self._oldest >= limits.max_delay_s:
            return True
        if self._watch.stopping and not self._stop_announced:
            return True
        return bool(batch.frames) and self._oldest is None and now - self._last_handed >= _KEEPALIVE_THROTTLE_S

    def _hand_over(self) -> RawBatch:
        now = self._loop.time()
        batch = self._batch
        aged = self._oldest is not None and now - self._oldest >= self._limits.max_delay_s
        batch.received_lsn = self._received
        batch.shutdown = self._stop_announced = self._watch.stopping
        batch.flush = aged or self._flush_asked or batch.shutdown
        if batch.flush:
            self._oldest = None
        self._flush_asked = False
        self._last_handed = now
        self._batch = RawBatch()
        self._keepalives = 0
        return batch

    # Status messages --------------------------------------------------------------------------------------------------------------------------------

    def _schedule(self, delay: float) -> None:
        if self._closed:
            return
        due = self._loop.time() + max(delay, 0)
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        """The status timer: speaks to the server even while nobody reads, and notices what only time can tell."""
        self._timer = None
        interval = self._limits.status_interval_s
        now = self._loop.time()
        try:
            if self._left_at is not None:
                self._read_ahead(now)
            elif now - self._last_input > self._limits.read_deadline_s:
                raise self._fail(SourceUnavailable(f"the server was silent for {self._limits.read_deadline_s:.0f} s and answered no ping"))
            if self._watch.overdue(now):
                raise self._fail(SourceUnavailable("the server is stopping and waits for what cannot be made durable now: let go"))
            self._send_status(ping=self._left_at is None and now - self._last_input > self._limits.read_deadline_s / 3)
        except ServiceError:
            return  # kept by _fail, raised by next_batch
        if self._watch.stopping:
            self._schedule(_REPLY_GAP_S)
        else:
            self._schedule(min(_PROBE_S, interval) if self._left_at is not None else interval)

    def _read_ahead(self, now: float) -> None:
        """While nobody reads, looks for a stopping server in what fits into one batch; past that, asks at its door."""
        batch = self._batch
        if len(batch.frames) < self._limits.batch_frames and batch.nbytes < self._limits.batch_bytes:
            self._consume()
            self._drain()
        elif self._probe is None and self._left_at is not None and now - self._left_at > _PROBE_S:
            self._probe = self._loop.create_task(self._ask_whether_stopping())

    async def _ask_whether_stopping(self) -> None:
        try:
            if await asyncio.to_thread(ping_rejected, self._options) and not self._closed:
                self._watch.told(self._loop.time())
                self._schedule(0)
            await asyncio.sleep(_PROBE_S)
        finally:
            self._probe = None

    def _send_status(self, *, ping: bool) -> None:
        status = StandbyStatus(self._received, self._flushed, reply_requested=ping)
        try:
            if not self._writer_added:  # else an older one still waits for the socket
                self._pgconn.put_copy_data(status.encode(time.time_ns() // 1000))
            self._flush_output()
        except psycopg.Error:
            raise self._fail(SourceUnavailable("the replication connection was lost while reporting the flushed position")) from None
        self._last_sent = self._loop.time()

    def _flush_output(self) -> None:
        pending = self._pgconn.flush() != 0
        if pending and not self._writer_added:
            self._loop.add_writer(self._fd, self._writable)
        elif not pending and self._writer_added:
            self._loop.remove_writer(self._fd)
        self._writer_added = pending

    def _writable(self) -> None:
        try:
            self._flush_output()
        except psycopg.Error:
            self._fail(SourceUnavailable("the replication connection was lost while reporting the flushed position"))

    # Ending -----------------------------------------------------------------------------------------------------------------------------------------

    def _notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        if _MISSING_PUBLICATION in (diagnostic.message_primary or ""):
            # PostgreSQL 18 and later go on without the publication, and its changes would be gone.
            self._fail(
                SourceRefused(
                    f"publication {self._options.publication} does not exist: the server skips its changes",
                    hint="create the publication again, then copy its tables: changes in between are not in the stream",
                )
            )

    def _ended(self) -> None:
        """The COPY is over: an error, or a server that stops in good order, which is no success for us."""
        result = self._pgconn.get_result()
        if result is not None and result.status == pq.ExecStatus.COMMAND_OK:
            raise self._fail(SourceUnavailable("the server ended the stream: it is stopping"))
        try:
            raise_result(result, doing="the replication stream", slot=self._options.slot, phase="stream")
        except ServiceError as error:
            raise self._fail(error) from None

    def _fail(self, error: ServiceError) -> ServiceError:
        """Keeps the first failure and lets the server go; returns it to be raised."""
        if self._failure is None:
            self._failure = error
            self._loop.call_soon(self._finish)
        return self._failure

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise SourceUnavailable("the stream is closed")

    def _finish(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_writer(self._fd)
        self._loop.remove_reader(self._fd)
        self._conn.close()
        self._input_event.set()

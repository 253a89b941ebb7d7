"""The replication stream: raw CopyData frames in, standby status messages out, on one asyncio loop.

Invariant: what is reported as flushed never decreases and never exceeds what was received or what
the caller called durable, which is nothing at first, whatever the stream begins at; status messages leave on
their own timer whether or not anybody reads.
Must not: decode frames or decide what is durable. (PostgreSQL: Streaming Replication Protocol;
libpq: Asynchronous Command Processing, Functions Associated with COPY.)
"""

import asyncio
import contextlib
import time
from dataclasses import replace

import psycopg
from psycopg import pq

from sluice import faults, lsn
from sluice.errors import ProtocolViolation, ServiceError, SourceUnavailable
from sluice.ingest.receive.batching import Batching, RawBatch, StreamLimits
from sluice.protocol.standby_status import ShutdownWatch, StandbyStatus
from sluice.source.sessions import SourceOptions, UnsendableRow, ping_rejected, raise_result
from sluice.source.start_replication import Origin, Started, Streaming, start_command, start_replication

__all__ = ["RawBatch", "ReplicationStream", "StandbyStatus", "StreamLimits"]

_REPLY_GAP_S = 0.1
"""Between two status messages that report nothing new: a stopping server answers each with another
request.
"""
_ADVANCE_GAP_S = 0.01
_WRITE_GAP_S = 1.0
"""Between two messages that only report more received: enough to keep an idle server quiet."""
_RECORDS_PER_TURN = 2048
"""TLS records read between two turns of the event loop: about 10 ms."""
_PROBE_S = 2.0
"""While nobody reads and the batch is full, a stopping server cannot reach us: ask it this often."""
_END_S = 3.0
_NO_PUBLICATION_WARNING = "55000"
_NO_PUBLICATION_ERROR = b"42704"
_LOST_REPORTING = "the replication connection was lost while reporting the flushed position"


class PublicationMissing(SourceUnavailable):
    """The server speaks of an object that does not exist at the place in its log that it decodes, whatever
    is the case today. If that is the publication, its changes there cannot be had any more; which it is,
    only the catalog says.
    """


class ReplicationStream:
    """One running START_REPLICATION. Every method belongs to the event loop that opened it."""

    def __init__(
        self, started: Started, *, options: SourceOptions, command: bytes, start_lsn: int, limits: StreamLimits
    ) -> None:
        """Use `open`."""
        self.identity = started.identity
        self.server_version = started.conn.pgconn.server_version
        self._conn = started.conn
        self._pgconn = started.conn.pgconn
        self._fd = started.conn.pgconn.socket
        self._by_record = started.conn.pgconn.ssl_in_use
        self._loop = asyncio.get_running_loop()
        self._options = options
        self._command = command
        self._limits = limits
        self._start_lsn = start_lsn
        now = self._loop.time()
        self._watch = ShutdownWatch()
        self._batching = Batching(limits, self._watch, start_lsn=start_lsn, now=now)
        self._input_event = asyncio.Event()
        self._failure: ServiceError | None = None
        self.last_message_at = self.last_feedback_at = 0.0
        """Unix seconds; 0 before the first. For metrics."""
        self._closed = False
        self._writer_added = False
        self._timer: asyncio.TimerHandle | None = None
        self._probe: asyncio.Task[None] | None = None
        self._last_sent = self._last_input = now
        self._left_at: float | None = now
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
        """Starts streaming at `start_lsn`, the position through which the caller has everything.

        `expect` is the (system identifier, timeline) that continuity was proven against; anybody
        else behind the same address is refused. Raises SlotBusy, SlotLost, SourceRefused or
        SourceUnavailable.
        """
        command = start_command(
            options,
            start_lsn=start_lsn,
            proto_version=proto_version,
            streaming=streaming,
            two_phase=two_phase,
            messages=messages,
            origin=origin,
        )
        started = await asyncio.to_thread(start_replication, options, command=command, expect=expect)
        limits = limits or StreamLimits()
        interval = min(limits.status_interval_s, limits.read_deadline_s / 4)
        if started.wal_sender_timeout_s:
            interval = min(interval, started.wal_sender_timeout_s / 3)
        limits = replace(limits, status_interval_s=interval)
        return cls(started, options=options, command=command, start_lsn=start_lsn, limits=limits)

    @property
    def received_lsn(self) -> int:
        """The highest position that the server has sent on this connection."""
        return self._batching.received_lsn

    @property
    def flushed_lsn(self) -> int:
        """The last acknowledged position, 0 before the first."""
        return self._batching.acknowledged_lsn

    @property
    def closed(self) -> bool:
        """Whether the connection is gone, by our will or not; `next_batch` then says why."""
        return self._closed

    async def next_batch(self) -> RawBatch:
        """The frames that have arrived, as soon as there is a full batch, one that is old enough,
        or a reason to flush.

        Raises SourceUnavailable when the connection is lost, the server stops, or a stopping server
        saw no progress; any other error is final. Frames not handed out before a failure are
        dropped: the server sends them again.
        """
        now = self._loop.time()
        if self._left_at is not None:
            # Nobody read in between: the silence of that time says nothing about the connection.
            self._last_input += now - self._left_at
            self._left_at = None
        try:
            self._check()
            taken = self._take()
            while not self._batching.ready(self._loop.time()):
                if taken:
                    # Bytes are coming: leave the socket alone for a moment, so that the server
                    # writes without waking us for every message.
                    await asyncio.sleep(0 if self._by_record else self._limits.coalesce_s)
                else:
                    await self._wait_readable()
                self._check()
                taken = self._receive()
            return self._batching.hand_over(self._loop.time())
        finally:
            self._left_at = self._loop.time()
            self._schedule(_PROBE_S)

    def acknowledge(self, flushed_lsn: int) -> None:
        """Everything that ended at or before `flushed_lsn` is durable. Refuses to go back, also to before
        the start, and past what was received. `Watermark` decides what may be acknowledged.
        """
        least = max(self.flushed_lsn, self._start_lsn)
        if flushed_lsn < least:
            raise ProtocolViolation(
                f"refusing to take back an acknowledgement: {lsn.show(flushed_lsn)} is before {lsn.show(least)}"
            )
        StandbyStatus(self.received_lsn, flushed_lsn, reply_requested=False)
        if flushed_lsn == self.flushed_lsn or self._closed:
            return
        self._batching.acknowledged_lsn = flushed_lsn
        now = self._loop.time()
        self._watch.progressed(now)
        self._schedule(self._last_sent + _ADVANCE_GAP_S - now)

    def flush_from(self, when: float | None) -> None:
        """From `when` on, on the loop's clock, what ends a transaction is handed over at once, with `flush`; None:
        it waits for others, `max_delay_s` at most.
        """
        self._batching.flush_from = when
        self._input_event.set()

    def ask_flush(self) -> None:
        """Makes `next_batch` return at once with `flush` set."""
        self._batching.flush_asked = True
        self._input_event.set()

    async def close(self) -> None:
        """Reports the last acknowledged position and ends the stream, when the server has read it; the
        server frees the slot as soon as it notices.
        """
        if self._probe is not None:
            self._probe.cancel()
            await asyncio.gather(self._probe, return_exceptions=True)
        if not self._closed:
            with contextlib.suppress(ServiceError, psycopg.Error, TimeoutError):
                await self._take_leave()
        self._finish()

    # Reading
    # ------------------------------------------------------------

    def _receive(self) -> int:
        """Reads what has arrived. A read of libpq's empties a bare socket, but over TLS it gives
        one record, which is one message: then it reads on.
        """
        self._consume()
        total = taken = self._take()
        while self._by_record and taken > 0 and total < _RECORDS_PER_TURN and not self._batching.full:
            self._consume()
            taken = self._take()
            total += taken
        return total

    def _take(self) -> int:
        """Moves what libpq has into the batch, and sees to answers and endings."""
        batching = self._batching
        now = self._loop.time()
        try:
            taken = batching.take(self._pgconn.get_copy_data, now=now)
        except psycopg.Error:
            raise self._fail(
                SourceUnavailable("the replication connection was lost", reason="connection_lost")
            ) from None
        self._check()
        if taken:
            self._last_input = now
            self.last_message_at = time.time()
        if batching.reply_requested:
            self._schedule(self._last_sent + _REPLY_GAP_S - now)
        elif batching.advanced:
            self._schedule(self._last_sent + _WRITE_GAP_S - now)
        batching.reply_requested = batching.advanced = False
        if batching.ended:
            self._ended()
        return taken

    def _consume(self) -> None:
        try:
            self._pgconn.consume_input()
        except psycopg.Error:
            raise self._fail(
                SourceUnavailable(
                    "the replication connection was lost: the server closed it or the network failed",
                    reason="connection_lost",
                )
            ) from None

    async def _wait_readable(self) -> None:
        wait = self._batching.wait_s(self._loop.time())
        self._loop.add_reader(self._fd, self._input_arrived)
        try:
            async with asyncio.timeout(wait):
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

    # Status messages
    # ------------------------------------------------------------

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
        """The status timer: speaks to the server even while nobody reads, and notices what only
        time can tell.
        """
        self._timer = None
        interval = self._limits.status_interval_s
        now = self._loop.time()
        try:
            if self._left_at is not None:
                self._read_ahead(now)
            elif now - self._last_input > self._limits.read_deadline_s:
                raise self._fail(
                    SourceUnavailable(
                        f"the server was silent for {self._limits.read_deadline_s:.0f} s and answered no ping",
                        reason="server_silent",
                    )
                )
            if self._watch.overdue(now):
                raise self._fail(
                    SourceUnavailable(
                        "the server is stopping and waits for changes that cannot be stored now: disconnected",
                        reason="server_stopping",
                    )
                )
            self._send_status(ping=self._left_at is None and now - self._last_input > self._limits.read_deadline_s / 3)
        except ServiceError:
            return  # kept by _fail, raised by next_batch
        if self._watch.stopping:
            self._schedule(_REPLY_GAP_S)
        else:
            self._schedule(min(_PROBE_S, interval) if self._left_at is not None else interval)

    def _read_ahead(self, now: float) -> None:
        """While nobody reads, looks for a stopping server in what fits into one batch; past that,
        asks at its door.
        """
        if not self._batching.full:
            self._receive()
        elif self._probe is None and self._left_at is not None and now - self._left_at > _PROBE_S:
            self._probe = self._loop.create_task(self._ask_whether_stopping())

    async def _ask_whether_stopping(self) -> None:
        try:
            if await asyncio.to_thread(ping_rejected, self._options) and not self._closed:
                self._watch.mark_stopping(self._loop.time())
                self._schedule(0)
            await asyncio.sleep(_PROBE_S)
        finally:
            self._probe = None

    def _send_status(self, *, ping: bool) -> None:
        status = StandbyStatus(self.received_lsn, self.flushed_lsn, reply_requested=ping)
        faults.point("status.before")
        try:
            if not self._writer_added:  # else an older one still waits for the socket
                self._pgconn.put_copy_data(status.encode(time.time_ns() // 1000))
            self._flush_output()
        except psycopg.Error:
            raise self._fail(SourceUnavailable(_LOST_REPORTING, reason="connection_lost")) from None
        faults.point("status.after")
        self._last_sent = self._loop.time()
        self.last_feedback_at = time.time()

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
            self._fail(SourceUnavailable(_LOST_REPORTING, reason="connection_lost"))

    async def _take_leave(self) -> None:
        """Ends the COPY and reads on until the server has done so too, or for `_END_S`.

        A socket that is closed with bytes unread resets the connection, and the server loses what
        it has not read: the last acknowledgement. In the middle of a large transaction it may go on
        sending for longer than anybody wants to wait.
        """
        self._send_status(ping=False)
        if self._timer is not None:
            self._timer.cancel()
        self._pgconn.put_copy_end()
        self._flush_output()
        self._loop.add_reader(self._fd, self._input_arrived)
        async with asyncio.timeout(_END_S):
            while not self._closed and self._passed_over():
                await self._input_event.wait()
                self._input_event.clear()
                self._pgconn.consume_input()

    def _passed_over(self) -> bool:
        """Throws away what has arrived: the server sends it again to the next stream. Whether there
        may be more.
        """
        count = 1
        while count > 0:
            count, _ = self._pgconn.get_copy_data(1)
        return count == 0

    # Ending
    # ------------------------------------------------------------

    def _notice(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        if diagnostic.sqlstate == _NO_PUBLICATION_WARNING:
            # PostgreSQL 18 and later go on without the publication, and its changes would be gone.
            self._fail(self._object_missing(diagnostic.message_primary or ""))

    def _object_missing(self, said: str) -> PublicationMissing:
        return PublicationMissing(
            f"the server misses an object at a place in the log that it decodes now, as when publication "
            f"{self._options.publication} did not exist there: {said[:300]}"
        )

    def _ended(self) -> None:
        """The COPY is over: an error, or a server that stops in good order, which is no success for
        us.
        """
        result = self._pgconn.get_result()
        if result is not None and result.status == pq.ExecStatus.COMMAND_OK:
            raise self._fail(SourceUnavailable("the server ended the stream: it is stopping", reason="server_stopping"))
        if result is not None and result.error_field(pq.DiagnosticField.SQLSTATE) == _NO_PUBLICATION_ERROR:
            said = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b""
            raise self._fail(self._object_missing(said.decode("utf-8", "replace")))
        try:
            raise_result(result, doing="the replication stream", slot=self._options.slot, phase="stream")
        except UnsendableRow as error:
            error.command = self._command
            raise self._fail(error) from None
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

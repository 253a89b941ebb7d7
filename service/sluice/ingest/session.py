"""One replication connection from its first frame to its last acknowledgement.

Invariant: what this object holds dies with the connection. Rows that were received but not
published are received again by the next session, because the only position ever acknowledged is
Watermark's. The event loop owns the stream and the watermark; assembler and builder belong to the
decoder thread.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from sluice import faults
from sluice.contract.receipt import DurableReceipt
from sluice.errors import ProtocolViolation, SourceError
from sluice.ingest.assemble.assembler import Assembler
from sluice.ingest.assemble.assembly import Assembly
from sluice.ingest.circuit_breaker import CircuitBreaker
from sluice.ingest.commit.committer import Committer
from sluice.ingest.commit.pace import Pace
from sluice.ingest.commit.unflushed import Unflushed
from sluice.ingest.commit.watermark import Watermark
from sluice.ingest.encode.builder import Builder
from sluice.ingest.options import IngestOptions
from sluice.ingest.receive.backpressure import Backpressure
from sluice.ingest.receive.stream import RawBatch, ReplicationStream, StreamLimits
from sluice.ingest.status import IngestStatus
from sluice.ingest.tables.ddl_signals import DdlSignals, SignalReader
from sluice.ingest.tables.followed_tables import FollowedTables
from sluice.protocol import frames

BATCHES_IN_FLIGHT = 4
"""Batches of BATCH_BYTES that may wait for the decoder before the socket is left unread."""
BATCH_BYTES = 2 * StreamLimits().batch_bytes
URGENT_TICK_SECONDS = 0.02
TICK_SECONDS = 0.25
"""How often rows that wait for their age limit are looked at when nothing arrives."""
BEAT_SECONDS = 5.0
"""How often the decoder thread shows that it lives when it has nothing to do."""
FOLLOWS_SECONDS = 1.0
"""Behind an entry with changes until the position that the server has come to since then is stated, once."""
PROGRESS_WAL_BYTES = 256 << 20
"""Of WAL without a change of ours, after which its position is stated even if the interval has not passed: the server
keeps it until then, and small servers invalidate a slot that keeps 1 GB (`max_slot_wal_keep_size`).
"""


@dataclass(frozen=True, slots=True)
class SessionContext:
    """What every connection of a process works with. `decoder` runs one thing at a time, in order.
    `numbers` gives each object of this epoch a number of its own.
    """

    options: IngestOptions
    tables: FollowedTables
    committer: Committer
    numbers: Iterator[int]
    decoder: Executor
    status: IngestStatus
    signals: DdlSignals


class Session:
    """Begins at `start_lsn`, which must be where the manifest of `context` ends, and acknowledges that at once.

    The writer of `context` has an entry of its own behind it: what a writer that was killed had not synced
    is durable with that one.
    """

    def __init__(
        self,
        context: SessionContext,
        stream: ReplicationStream,
        *,
        start_lsn: int,
        backpressure: Backpressure,
        signals_ddl: bool,
    ) -> None:
        options = context.options
        context.signals.begin(start_lsn, sent=signals_ddl)
        self._tables = context.tables
        self._signals, self._signal_reader = context.signals, SignalReader(context.signals.prepared)
        stream.acknowledge(start_lsn)
        self.watermark = Watermark(start_lsn=start_lsn)
        self.counts = context.status.stream
        self.backpressure = backpressure
        self.unflushed = Unflushed(start_lsn)
        self._stream = stream
        self._decoder = context.decoder
        self._policy = options.flush
        self._loop = asyncio.get_running_loop()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._breaker = CircuitBreaker(on_break=self._broke)
        self._line = context.committer.line(self._breaker, on_receipt=self._hand_over)
        self._committer = context.committer
        self._status = context.status
        self._settled = False
        self._batch_permits = asyncio.Semaphore(BATCHES_IN_FLIGHT)
        self._in_decoder: set[asyncio.Future[None]] = set()
        self._units: set[Future[None]] = set()
        self._urgent = False
        # below: decoder thread only
        prepared = tuple(context.committer.stored.prepared.values())  # in the manifest, and not ended
        self._assembler = Assembler(
            start_lsn=start_lsn,
            prepared=prepared,
            limits=options.open_limits,
            keeps_message=options.keeps_message,
        )
        self._builder = Builder(
            tables=context.tables,
            upload=self._line.upload,
            fetch=self._line.fetch,
            epoch=context.committer.stored.epoch,
            numbers=context.numbers,
            limits=options.builder,
            start_lsn=start_lsn,
            prepared=prepared,
            hash_keys=options.source.hash_keys,
        )
        self._count_open()
        self._waiting_since: float | None = None
        self._recorded_lsn = start_lsn
        self._recorded_at = time.monotonic()
        self._followed = True
        self._pace = Pace(min_interval_s=self._policy.min_interval_s, now=self._recorded_at)
        self._group_commit()

    @property
    def last_message_at(self) -> float:
        """Unix seconds, 0 before the first."""
        return self._stream.last_message_at

    @property
    def last_feedback_at(self) -> float:
        return self._stream.last_feedback_at

    @property
    def received_lsn(self) -> int:
        """The highest position that the server has sent, decoded or not."""
        return self._stream.received_lsn

    async def pump(self, stop: asyncio.Event, *, reached: Callable[[], bool], target: int | None) -> None:
        """Reads and decodes until `stop` is set or `reached` says so. Raises what the connection,
        the decoder or the store raised.

        With a `target` LSN, for runs that wait for a position, every advance is recorded at once
        and nothing waits for its age limit past it.
        """
        self._urgent = target is not None
        tick = TICK_SECONDS if target is None else URGENT_TICK_SECONDS
        reading = asyncio.ensure_future(self._stream.next_batch())
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set() and not reached():
                if target is not None and self._stream.received_lsn >= target > self.watermark.received_lsn:
                    self._stream.ask_flush()
                waiting: set[asyncio.Future[Any]] = {reading, stopping, self._failed}
                done, _ = await asyncio.wait(waiting, timeout=tick, return_when=asyncio.FIRST_COMPLETED)
                if self._failed in done:
                    self._failed.result()
                if reading in done:
                    await self._take(reading.result())
                    reading = asyncio.ensure_future(self._stream.next_batch())
                elif not done and not self._in_decoder:
                    self._tick()
        finally:
            for task in (reading, stopping):
                task.cancel()
            await asyncio.gather(reading, stopping, return_exceptions=True)
        if stop.is_set():
            await self._take_rest()

    def _tick(self) -> None:
        """Begins an entry where one is due. What the decoder thread owns stands still: nothing is in there. Its beat
        is its own all the same: of a thread that hangs nobody else may say that it lives.
        """
        idle = not self._units
        if self._due(idle=idle) or abs(time.time() - self.counts.decoder_beat) >= BEAT_SECONDS:
            self._run(partial(self._flush_if_due, idle=idle))

    def _hand_over(self, receipt: DurableReceipt) -> None:
        """From the commit thread to the event loop, which owns the watermark."""
        self._loop.call_soon_threadsafe(self._durable, receipt)

    def _durable(self, receipt: DurableReceipt) -> None:
        """Acknowledges to the server what the receipt proves. A receipt that cannot be ends the
        session before anything is acknowledged.
        """
        self._status.manifest = self._committer.stored
        if self._settled:
            return
        faults.point("receipt.before")
        try:
            moved = self.watermark.durable(receipt)
        except ProtocolViolation as error:
            self.fail(error)
            return
        if moved:
            self._stream.acknowledge(self.watermark.flushed_lsn)
        self._status.flushed_lsn = self.watermark.flushed_lsn

    async def drain(self) -> None:
        """Publishes every whole transaction that was received, and acknowledges it. The server sends again what waits
        for a reading of the catalog. Raises what prevents it.
        """
        await self._idle()
        if not self._is_holding():
            self._run(self._flush_now)
        await self._quiet()
        if (error := self._breaker.error) is not None:
            raise error

    async def settle(self) -> None:
        """Waits until nothing of this session is under way any more, whatever became of it. What
        had not failed by now is published or not as it comes.
        """
        try:
            await self._quiet()
        finally:
            self._settled = True
            if self._failed.done():
                self._failed.exception()

    async def _quiet(self) -> None:
        await self._idle()
        await asyncio.gather(*(asyncio.wrap_future(unit) for unit in tuple(self._units)), return_exceptions=True)
        await asyncio.sleep(0)

    async def _idle(self) -> None:
        while self._in_decoder:
            await asyncio.wait(self._in_decoder)

    async def _take_rest(self) -> None:
        """What was received and waits in the stream for its age limit, so that a drain has it too."""
        self._stream.ask_flush()
        with suppress(SourceError):  # the connection is lost; the server sends what it held again
            await self._take(await self._stream.next_batch())

    async def _take(self, batch: RawBatch) -> None:
        faults.point("batch.received")
        self.watermark.receive(batch.received_lsn)
        if self._batch_permits.locked():
            self.backpressure.begin()
        # A batch that one large field has filled counts for as many as it is.
        permits = min(1 + batch.nbytes // BATCH_BYTES, BATCHES_IN_FLIGHT)
        try:
            for _ in range(permits):
                await self._batch_permits.acquire()
        finally:
            self.backpressure.end(self.backpressure_cause)
        task = self._run(lambda: self._decode(batch))
        self._group_commit()
        faults.point("batch.handed")
        for _ in range(permits):
            task.add_done_callback(lambda _: self._batch_permits.release())

    @property
    def backpressure_cause(self) -> str:
        """What the socket waits for, if it waits."""
        return "upload" if self._line.blocking else "decoder"

    def _run(self, action: Callable[[], None]) -> "asyncio.Future[None]":
        """The only way into the decoder thread: nothing is done there after anything of this
        session failed.
        """
        task = self._loop.run_in_executor(self._decoder, self._breaker.guarded(action))
        self._in_decoder.add(task)
        task.add_done_callback(self._decoded)
        return task

    def _decoded(self, task: "asyncio.Future[None]") -> None:
        self._in_decoder.discard(task)
        task.exception()  # the breaker has it
        self._group_commit()

    def _group_commit(self) -> None:
        """Transactions that end while an entry is under way wait for it together; where none is, they wait for
        nothing but the pace.
        """
        busy = self._in_decoder or self._units
        self._stream.flush_from(None if busy else self._pace.earliest(time.monotonic()))

    def limit(self, options: IngestOptions) -> None:
        """From now on the limits of `options` hold, for what is open as well. On the event loop."""

        def set_limits() -> None:
            self._assembler.limits = options.open_limits
            self._builder.limits = options.builder

        self._run(set_limits)

    def fail(self, error: BaseException) -> None:
        """Ends the session with `error`, from any thread; the first one counts."""
        self._breaker.fail(error)

    def _broke(self, error: BaseException) -> None:
        self._loop.call_soon_threadsafe(self._failed.set_exception, error)

    # decoder thread

    def _decode(self, batch: RawBatch) -> None:
        began = time.thread_time()
        faults.point("decode.before")
        self._take_in(batch)
        # By now the batch is gone, which matters where it was one large field.
        self._builder.relieve()
        self._count_open()
        if self._builder.pending and self._waiting_since is None:
            self._waiting_since = time.monotonic()
        if batch.shutdown or (batch.flush and self._builder.pending and not self._is_holding()):
            self._flush_now("asked" if batch.shutdown or self._urgent else self._age_or_idle())
        else:
            self._flush_if_due()
        self.counts.decode_cpu_s += time.thread_time() - began

    def _take_in(self, batch: RawBatch) -> None:
        self.counts.decoder_beat = time.time()
        self.counts.received_bytes += batch.nbytes
        for number, part in enumerate(self._assembler.parts(frames.join(batch.take(), emptied=True))):
            if number and self._builder.pending:
                self._publish("shape")
            if number == 0 or len(part):
                self._feed(part)

    def _feed(self, table: frames.FrameTable) -> None:
        assembly = self._assembler.feed(table)
        self._signals.heard(self._signal_reader.take(assembly))
        faults.point("build.before")
        self._builder.add(assembly)
        self._signals.decoded(assembly.through_lsn)
        self.unflushed.decoded(
            self._builder.through_lsn,
            assembly.commits.commit_time_us,
            pending=self._builder.pending,
            now_us=time.time_ns() // 1000,
        )
        self._count(assembly)

    def _is_holding(self) -> bool:
        """Whether rows wait for a look at the catalog. Looks wait for those that say something of a table."""
        return self._signals.holding and not self._tables.has_decided(self._builder.through_lsn)

    def _age_or_idle(self) -> str:
        waited = time.monotonic() - (self._waiting_since or time.monotonic())
        return "age" if waited >= self._policy.max_delay_s else "idle"

    def _flush_if_due(self, *, idle: bool = False) -> None:
        """`idle`: nothing is under way, and nothing comes."""
        self.counts.decoder_beat = time.time()
        if trigger := self._due(idle=idle):
            self._publish(trigger)

    def _due(self, *, idle: bool) -> str:
        """Why an entry is to begin now; empty where none is."""
        if self._waiting_since is None and self._builder.through_lsn <= self._recorded_lsn:
            return ""
        now = time.monotonic()
        if self._is_holding() and not self._builder.full:
            return ""
        if self._waiting_since is not None:
            if self._builder.full or now - self._waiting_since >= self._policy.max_delay_s:
                return self._builder.full or "age"
            return "idle" if idle and now >= self._pace.earliest(now) else ""
        if self._urgent or self._committer.is_awaited(self._recorded_lsn, self._builder.through_lsn):
            return "asked"
        much = self._builder.through_lsn - self._recorded_lsn >= PROGRESS_WAL_BYTES
        if now - self._recorded_at >= self._progress_after_s or (much and now >= self._pace.earliest(now)):
            return "progress"
        return ""

    @property
    def _progress_after_s(self) -> float:
        """Once behind changes it is soon: who asked where the log ends after his commit waits for that position, which
        other records of the server may have moved behind the commit.
        """
        usual = self._policy.progress_interval_s
        return usual if self._followed else min(usual, max(FOLLOWS_SECONDS, 2 * self._policy.min_interval_s))

    def _flush_now(self, trigger: str = "asked") -> None:
        if self._builder.pending or self._builder.through_lsn > self._recorded_lsn:
            self._publish(trigger)

    def _publish(self, trigger: str) -> None:
        began, cpu_began = time.monotonic(), time.thread_time()
        faults.point("unit.cut.before")
        unit = self._builder.cut()
        # CPU time: handing a file over may wait for the store, and that is no encoding.
        self.counts.encode_seconds.add(time.thread_time() - cpu_began)
        self.counts.flushes[trigger] += 1
        self.unflushed.published(unit.through_lsn)
        self._waiting_since = None
        self._recorded_lsn = unit.through_lsn
        self._recorded_at = time.monotonic()
        self._followed = trigger == "progress"
        self._pace.written(self._recorded_at)
        faults.point("unit.submit.before")
        future = self._line.submit(unit)
        faults.point("unit.submit.after")
        self._units.add(future)
        future.add_done_callback(partial(self._published, began))

    def _published(self, began: float, future: "Future[None]") -> None:
        if future.exception() is None:
            self.counts.flush_seconds.add(time.monotonic() - began)
        self._loop.call_soon_threadsafe(self._landed, future)

    def _landed(self, future: "Future[None]") -> None:
        self._units.discard(future)
        self._group_commit()

    def _count(self, assembly: Assembly) -> None:
        counts = self.counts
        counts.transactions += len(assembly.commits)
        counts.aborted += assembly.counts.get("aborted", 0)
        counts.skipped += assembly.counts.get("skipped", 0)
        rows, nbytes = assembly.sizes
        counts.transaction_rows.add_all(rows)
        counts.transaction_bytes.add_all(nbytes)

    def _count_open(self) -> None:
        counts, builder = self.counts, self._builder
        counts.open_transactions, counts.open_bytes, counts.staged_bytes = (
            builder.open_transactions,
            builder.open_bytes,
            builder.staged_bytes,
        )

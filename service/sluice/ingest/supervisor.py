"""One pipeline's ingest: connect, prove, stream, decode, commit, acknowledge; again after every
loss that may pass.

    socket ── ReplicationStream ── RawBatch ──▶ decoder thread: frames ▸ assembly ▸ unit
                    ▲                                                       │
                    └── Watermark ◀── receipt ◀── Committer ◀───────────────┘

This module owns the order of things at start and stop, and holds no logic of the stages. Threads:
the event loop owns the socket and the watermark. One thread decodes; Committer has its own. Snapshots
and the catalog watch run in one each.
"""

import asyncio
import gc
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import structlog

from sluice.backoff import Backoff
from sluice.contract.table_state import State
from sluice.errors import Interrupted, ServiceError, SourceMoved, may_pass
from sluice.ingest.background import Background, say_requests
from sluice.ingest.epoch import Epoch, open_epoch
from sluice.ingest.error_labels import asks_facts, by_facts, component_of, reason_of
from sluice.ingest.options import IngestOptions
from sluice.ingest.receive.backpressure import Backpressure
from sluice.ingest.receive.stream import PublicationMissing
from sluice.ingest.session import Session, SessionContext
from sluice.ingest.start import Start, open_stream, prove_start
from sluice.ingest.status import IngestStatus
from sluice.ingest.stop import IngestStop
from sluice.lsn import show
from sluice.stopping import Stop
from sluice.store.base import ObjectStore
from sluice.store.probe import probe
from sluice.telemetry.recent_errors import RecentErrors

RECONNECT_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses between connections, plus up to half of each at random. The last one repeats; a session
that acknowledged something begins again at the first.
"""
_NAMED = 20
"""Tables that an error names."""
_CONNECTION = "the connection to the source"


def _tune_interpreter() -> None:
    """Two threads share the interpreter here: one takes frames from libpq, one starts array
    operations that run without it.

    The default of 5 ms before a waiting thread gets its turn is ten times what such an operation
    takes. Collections are made rare: nothing on the hot path makes cycles, and each pass would walk
    tens of thousands of frames.
    """
    sys.setswitchinterval(0.0005)
    gc.set_threshold(100_000, 50, 50)


class Ingest:
    """Runs until stopped or until an error that needs a human. `store` is the pipeline's own
    prefix in the spool. `status` is all that observers need.
    """

    def __init__(
        self,
        options: IngestOptions,
        store: ObjectStore,
        *,
        clock: Stop | None = None,
        errors: RecentErrors | None = None,
    ) -> None:
        """`clock` is of the stop of this process, `errors` takes what goes wrong. Once a stop
        begins, `options.source.cancellation` is cancelled.
        """
        self.status = IngestStatus(
            instance=options.instance,
            memory_limit_bytes=options.builder.memory_limit_bytes,
            staged_limit_bytes=options.builder.staged_bytes,
        )
        self.errors = errors or RecentErrors()
        options.source.hash_keys.add(options.policies.hash_keys)
        self._options = options
        self._store = store
        self._backpressure = Backpressure()
        self.status.backpressure_seconds = self._backpressure.seconds
        self._stop = IngestStop(options.source, clock or Stop(options.stop_s))
        self._epoch: Epoch | None = None
        self._session: Session | None = None
        self._background: Background | None = None
        self._background_error: BaseException | None = None
        self._unpublished = ""
        """What the server says when it decodes a place in its log at which the publication did not exist."""
        self._decoder = ThreadPoolExecutor(1, thread_name_prefix="decode")
        self._reconnect = Backoff(RECONNECT_SECONDS, jitter=0.5)
        self._logger = structlog.get_logger("ingest")

    def stop(self) -> None:
        """Asks for a drain: no more reading, publish whole transactions, acknowledge, end. On the
        event loop.
        """
        self._stop.ask(give_up=self._fail_session)

    def reconfigure(self, options: IngestOptions) -> None:
        """Goes on with `options`, of which only the selection of tables and the limits may be other
        ones. Nothing pauses. On the event loop.
        """
        self._options.source.hash_keys.add(options.policies.hash_keys)
        self._options = replace(options, source=self._options.source, instance=self._options.instance)
        self.status.staged_limit_bytes = options.builder.staged_bytes
        if self._epoch is not None:
            self._epoch.configure(options)
        if self._session is not None:
            self._session.limit(options)

    def _fail_session(self, error: BaseException) -> None:
        if self._session is not None:
            self._session.fail(error)

    def refresh(self) -> None:
        """Brings `status` up to this moment. On the event loop."""
        epoch, session, status = self._epoch, self._session, self.status
        if epoch is not None:
            status.manifest, status.stored = epoch.log.stored, lambda: epoch.log.stored
            status.entry = epoch.log.entry
            status.ddl_signal_lacks = epoch.watch.signals.why_not
            status.snapshots.pending = len(epoch.snapshotter.pending)
        if session is None:
            status.complete_lsn = status.manifest.through_lsn if status.manifest is not None else 0
            status.oldest_unflushed_us = status.backpressure_cause = None
            status.unread_s = 0.0
            return
        self._backpressure.account(session.backpressure_cause)
        status.backpressure_cause = session.backpressure_cause if self._backpressure.active else None
        status.unread_s = self._backpressure.lasting
        status.received_lsn = session.received_lsn
        status.last_message_at = session.last_message_at or status.last_message_at
        status.last_feedback_at = session.last_feedback_at or status.last_feedback_at
        status.complete_lsn, status.oldest_unflushed_us = session.unflushed.state(session.watermark.flushed_lsn)

    async def run(self, *, until_lsn: int | None = None, until_caught_up: bool = False) -> None:
        """Streams until `stop`, or until everything up to the target is durable and every snapshot is
        finished. Raises what needs a human.

        The target of `until_caught_up` is the server's end of WAL at the first connection. Whoever
        asked for a target and stopped before it was reached gets Interrupted: what is in the spool
        is sound, and less than was asked for.
        """
        _tune_interpreter()
        bounded = until_caught_up or until_lsn is not None
        try:
            await self._stop.within(asyncio.to_thread(probe, self._store))
            done = await self._connections(until_lsn, until_caught_up=until_caught_up)
            if bounded and not done:
                raise Interrupted(
                    "stopped before everything that was asked for was in the spool",
                    hint="run it again: it continues where it stopped",
                )
            if until_caught_up:
                self._require_snapshots()
        finally:
            await self._close()

    async def _connections(self, target: int | None, *, until_caught_up: bool) -> bool:
        """One connection after the other, until the stop or the target. Returns whether the target
        was reached.
        """
        while not self._stop.asked.is_set():
            flushed = self.status.flushed_lsn
            try:
                if self._background_error is not None:
                    raise self._background_error
                start = await self._stop.within(asyncio.to_thread(self._prove))
                if until_caught_up and target is None:
                    target = start.server.wal_end_lsn
                done = await self._stream(start, target)
                if done or target is None:
                    return done
            except ServiceError as caught:
                error = await self._by_facts(caught) if asks_facts(caught) else caught
                self.errors.note(component_of(error), error)
                self._unpublished = str(error) if isinstance(error, PublicationMissing) else self._unpublished
                if not may_pass(error):
                    self.status.state = "failed"
                    raise error from None
                if self.status.flushed_lsn > flushed:
                    self._reconnect.reset()
                if not self._stop.asked.is_set():
                    await self._pause(error)
        return False

    async def _by_facts(self, doubted: ServiceError) -> ServiceError:
        """What the catalog says of a slot that the server does not stream from, and the log of a row that it cannot
        send; else the server's words.
        """
        try:
            start = await self._stop.within(asyncio.to_thread(self._prove))
        except ServiceError as found:
            return found
        known = start.known(self._options.source)
        return await self._stop.within(asyncio.to_thread(by_facts, doubted, known))

    def _require_snapshots(self) -> None:
        """Raises Interrupted, with the names, if there are tables that could not be read. One
        that is stale was read, and is part of the verdict.
        """
        assert self._epoch is not None
        missing = sorted(
            table.source_name for table in self._epoch.tables.states().values() if table.state == State.QUARANTINED
        )
        if missing:
            names = ", ".join(missing[:_NAMED]) + (
                f" and {len(missing) - _NAMED:,} more" if len(missing) > _NAMED else ""
            )
            raise Interrupted(
                f"everything else is in the spool, but tables could not be read ({len(missing):,}): {names}",
                hint="`sluice tables --state quarantined` says why; fix that, or leave the tables out by "
                "source.tables, and run it again",
            )

    # one connection

    def _prove(self) -> Start:
        log = self._epoch.log if self._epoch is not None else None
        newest = log.require_ours if log is not None else None
        start = prove_start(self._options, self._store, newest, unpublished=self._unpublished, waits=self.status.waits)
        opened = start.state.opened
        if log is not None and opened is not None and opened.timeline != start.server.timeline:
            raise SourceMoved(
                f"the source was promoted from timeline {opened.timeline} to {start.server.timeline}, and has all "
                "that the manifest has",
                hint="start it again: it continues there",
            )
        return start

    async def _stream(self, start: Start, target: int | None) -> bool:
        """Returns whether `target` was reached."""
        if start.gap is not None or start.state.opened is None:
            # Where a stream begins is in the manifest before the server is asked for it.
            await self._take_over(start)
        self.status.streaming_at = time.monotonic()
        stream = await open_stream(self._options, start)
        try:
            epoch = await self._take_over(start)
            context = SessionContext(
                self._options,
                epoch.tables,
                epoch.committer,
                epoch.numbers,
                self._decoder,
                self.status,
                epoch.watch.signals,
            )
            session = self._session = Session(
                context,
                stream,
                start_lsn=start.lsn,
                backpressure=self._backpressure,
                signals_ddl=self._options.hears_ddl(start.server),
            )
            self._start_background(epoch, urgent=target is not None)
            self.status.state, self.status.connected, self.status.last_error = "streaming", True, ""
            self._logger.info(
                "streaming",
                slot=self._options.source.slot,
                start_lsn=show(start.lsn),
                server_version=start.server.server_version,
            )
            try:
                return await self._pump(session, epoch, target)
            except Exception as error:
                self._ended(session, error)
                raise
            finally:
                with suppress(Interrupted):
                    await self._stop.within(session.settle())
                epoch.tables.forget_stream()  # in no thread: all that there are may wait for it
                self._session = None
        finally:
            self.status.connected = False
            await stream.close()

    def _ended(self, session: Session, error: Exception) -> None:
        """Shows that nothing streams any more: what is under way may still wait for the store for a
        long time. After an error that needs a human it waits no longer than a stop may take.
        """
        self.status.connected = False
        if not may_pass(error):
            self.status.state = "failed"
            session.fail(error)
            self.stop()
        elif not self._stop.asked.is_set():
            self.status.state = "reconnecting"

    async def _pump(self, session: Session, epoch: Epoch, target: int | None) -> bool:
        def reached() -> bool:
            return (
                target is not None
                and min(session.watermark.flushed_lsn, epoch.log.stored.examined_lsn) >= target
                and epoch.settled
            )

        await self._stop.within(session.pump(self._stop.asked, reached=reached, target=target))
        self.status.state, self.status.reached_at = "draining", time.monotonic()
        self._logger.info("draining")
        await self._stop.within(session.drain())
        if target is not None and not self._stop.asked.is_set():
            epoch.tables.forget_stream()  # looks would wait for the rest of a transaction, which nobody reads
            await self._stop.within(asyncio.to_thread(epoch.watch.conclude))
        return reached()

    async def _take_over(self, start: Start) -> Epoch:
        """Opens our epoch, once per process, passes over a gap, once, and takes a look at the
        catalog.
        """
        epoch = await self._stop.within(asyncio.to_thread(self._work_as_writer, start))
        self.refresh()
        return epoch

    def _work_as_writer(self, start: Start) -> Epoch:
        if self._epoch is None:
            self._epoch = open_epoch(
                self._options,
                self._store,
                start,
                status=self.status,
                stop=self._stop,
                errors=self.errors,
            )
            # They may have changed while it was opened.
            self._epoch.configure(self._options)
        self._epoch.watch.requests.take_at_once()
        self._epoch.watch.run_once()
        if start.gap is not None and self._unpublished:
            start.gap.pass_over(self._options, self._epoch.log, self._epoch.tables, to_lsn=start.lsn)
            self._unpublished = ""
        return self._epoch

    async def _pause(self, error: ServiceError) -> None:
        pause, status = self._reconnect.next(), self.status
        status.state = "reconnecting"
        status.reconnects += 1
        status.reconnect_reasons[reason_of(error)] += 1
        status.last_error = str(error)
        self._logger.warning(
            "lost contact, trying again", error=str(error), hint=error.hint, pause_seconds=round(pause, 1)
        )
        status.retry_delay_s = pause
        status.waits.say(_CONNECTION, str(error), retry_seconds=pause)
        if self._epoch is None:
            await self._stop.within(asyncio.to_thread(say_requests, self._store, status.waits))
        with status.waits.ended(_CONNECTION):
            await self._stop.sleep(pause)
        status.retry_delay_s = 0.0

    # beside the connection

    def _start_background(self, epoch: Epoch, *, urgent: bool) -> None:
        if self._background is None:
            self._background = Background(
                epoch,
                self._store,
                options=self._options,
                status=self.status,
                stop=self._stop,
                errors=self.errors,
                on_error=self._background_failed,
                urgent=urgent,
            )
        if self._background_error is not None:
            self._fail_session(self._background_error)

    def _background_failed(self, error: BaseException) -> None:
        """The connection that there is ends, or the next one does not begin."""
        if self._background_error is None:
            self._background_error = error
            self._fail_session(error)

    async def _close(self) -> None:
        """Ends what is left. Threads that still wait for the store after that are left to
        themselves: the process does not depend on them.
        """
        self.stop()
        self._stop.end_threads()
        try:
            async with self._stop.time_left():
                if self._background is not None:
                    await self._background.wait()
                await asyncio.to_thread(self._decoder.shutdown)
                if self._epoch is not None:
                    await asyncio.to_thread(self._epoch.committer.close)
        except TimeoutError:
            self._logger.warning(
                "some threads still wait for the object store or the source, and are left to themselves"
            )
        else:
            if self._epoch is not None:
                self._epoch.close()
        self.refresh()
        self.status.state = "stopped"

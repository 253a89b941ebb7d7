"""One pipeline's ingest: connect, prove, stream, decode, commit, acknowledge; again after every
loss that may pass.

    socket ── ReplicationStream ── RawBatch ──▶ decoder thread: frames ▸ assembly ▸ unit
                    ▲                                                       │
                    └── Watermark ◀── receipt ◀── Committer ◀───────────────┘

This module owns the order of things at start and stop, and holds no logic of the stages: what to do
with bytes, transactions, shapes, files and entries is decided elsewhere. Threads: the event loop
owns the socket and the watermark; one thread decodes; Committer has its own; copies and the catalog
watch run in one each.
"""

import asyncio
import gc
import itertools
import random
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import structlog

from sluice import faults
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.entries import Changes, Commits, Opened, PreparedEnd, Progress
from sluice.contract.receipt import DurableReceipt
from sluice.contract.table_state import State
from sluice.errors import (
    Disposition,
    Interrupted,
    ServiceError,
    SlotBusy,
    SourceRefused,
    SourceUnavailable,
    UsageError,
    WriterFenced,
)
from sluice.ingest.assemble.assembler import AssemblerLimits
from sluice.ingest.causes import component_of, reason_of
from sluice.ingest.commit.committer import Committer
from sluice.ingest.encode.builder import BuilderLimits
from sluice.ingest.receive.backpressure import Backpressure
from sluice.ingest.receive.stream import PublicationMissing, ReplicationStream, StreamLimits
from sluice.ingest.recent_errors import RecentErrors
from sluice.ingest.requests import Requests
from sluice.ingest.session import FlushPolicy, Session, SessionCounts
from sluice.ingest.snapshot.snapshotter import Copier
from sluice.ingest.status import IngestView
from sluice.ingest.tables import messages as messagetable
from sluice.ingest.tables.book import TableBook, matches
from sluice.ingest.tables.watch import CatalogWatch
from sluice.lsn import show
from sluice.manifest.follow import load_state, read_entry
from sluice.manifest.leftovers import collect
from sluice.manifest.log import ManifestLog
from sluice.manifest.state import PipelineState
from sluice.source.cancelling import Cancellation
from sluice.source.catalog import Catalog
from sluice.source.continuity import prove_continuity
from sluice.source.facts import ServerFacts
from sluice.source.publication import ensure_publication, require_publication
from sluice.source.sessions import Connection, SourceOptions, open_query
from sluice.source.slot import ensure_slot
from sluice.source.slot_facts import prepared_transactions, server_facts, slot_facts
from sluice.source.slot_holder import wait_until_free
from sluice.source.start import highest_protocol
from sluice.stopping import Stop
from sluice.store.base import ObjectStore
from sluice.store.probe import probe

RECONNECT_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses between connections, plus up to half of each at random. The last one repeats; a session
that acknowledged something begins again at the first.
"""
PARALLEL_SINCE = 160000
STOP_SECONDS = 20.0
"""All that a stop may take, below the 30 s that Kubernetes gives. Nothing is lost by leaving: what
was not acknowledged is sent again.
"""
_NAMED = 20
"""Tables that an error names."""
_GRACE_SECONDS = 1.0
"""For what was told to give up, to do so."""
AWAITING_SECONDS = 1.0
"""Between two looks at the catalog while a change of shape waits for the stream to pass its
position: until then its table is not live.
"""


Answer = TypeVar("Answer")


def _tune_interpreter() -> None:
    """Two threads share the interpreter here: one takes frames from libpq, one starts array
    operations that run without it.

    The default of 5 ms before a waiting thread gets its turn is ten times what such an operation
    takes. Collections are made rare: nothing on the hot path makes cycles, and each pass would walk
    tens of thousands of frames.
    """
    sys.setswitchinterval(0.0005)
    gc.set_threshold(100_000, 50, 50)


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """Plain values; the command line reads them from settings. `tables` are patterns over
    schema.table; none means the whole publication.
    """

    pipeline: str
    source: SourceOptions
    tables: tuple[str, ...] = ()
    streaming: Literal["off", "on", "parallel", "auto"] = "auto"
    two_phase: bool = False
    messages: bool = False
    message_prefixes: tuple[str, ...] = ()
    origin: Literal["any", "none"] = "any"
    builder: BuilderLimits = field(default_factory=BuilderLimits)
    open_limits: AssemblerLimits = field(default_factory=AssemblerLimits)
    stream: StreamLimits = field(default_factory=StreamLimits)
    flush: FlushPolicy = field(default_factory=FlushPolicy)
    slot_wait_s: float | None = None
    watch_interval_s: float = 10.0
    stop_s: float = STOP_SECONDS
    instance: str = ""


class Ingest:
    """Runs until told to stop or until an error that needs a human. `store` is the pipeline's own
    prefix in the spool.
    """

    def __init__(self, options: IngestOptions, store: ObjectStore) -> None:
        self.options = options = replace(options, source=replace(options.source, cancellation=Cancellation()))
        self.store = store
        self.view = IngestView()
        self.counts = SessionCounts()
        self.backpressure = Backpressure()
        self.errors = RecentErrors()
        self.leftovers = 0
        self.log: ManifestLog | None = None
        self.book: TableBook | None = None
        self.copier: Copier | None = None
        self.committer: Committer | None = None
        self._state = PipelineState()
        self._opened = PipelineState()
        self._session: Session | None = None
        self._watch: CatalogWatch | None = None
        self.stopping = Stop(options.stop_s)
        self._stop = asyncio.Event()
        self._stop_threads = threading.Event()
        self._given_up = asyncio.Event()
        self._unpublished = False
        """Whether the server decodes a place in its log at which the publication did not exist."""
        self._prepared_at_source: frozenset[tuple[str, int]] = frozenset()
        """(gid, xid) of what was prepared at the source when the publication was found to exist
        again.
        """
        self._finishing = replace(options.source, cancellation=Cancellation())
        """How to ask the source what is needed to finish what was received. Everything else is
        cancelled when the stop begins.
        """
        self._numbers = itertools.count(1)
        self._decoder = ThreadPoolExecutor(1, thread_name_prefix="decode")
        self._background: list[asyncio.Task[None]] = []
        self._background_error: BaseException | None = None
        self._lookup = CatalogLookup(self._finishing)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._logger = structlog.get_logger("ingest")

    def stop(self) -> None:
        """Asks for a drain: no more reading, publish whole transactions, acknowledge, leave. On the
        event loop.

        The time for all of it runs from here, or from where `stopping` was asked before. What only
        begins something, such as connecting or copying a table, is cancelled at once.
        """
        if self._stop.is_set():
            return
        self._stop.set()
        self.options.source.cancellation.cancel()
        self.stopping.ask()
        asyncio.get_running_loop().call_later(self.stopping.left_to_finish(), self._give_up)

    def _give_up(self) -> None:
        """Time is short: whatever still waits for the store or the source ends, and comes again at
        the next start.
        """
        self._stop_threads.set()
        self._finishing.cancellation.cancel()
        if self._session is not None:
            self._session.fail(self._out_of_time())
        asyncio.get_running_loop().call_later(_GRACE_SECONDS, self._given_up.set)

    def _out_of_time(self) -> Interrupted:
        return Interrupted(
            "stopped before all that was received was published: the stop may take "
            f"{self.stopping.seconds:.0f} s in all",
            hint="nothing is lost: what was not acknowledged comes again at the next start; stop_timeout "
            "says how long a stop may take",
        )

    async def _within_the_stop(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """What `work` returns or raises; Interrupted when the stop is given up first. Threads that
        it waits for are then left to themselves.
        """
        task = asyncio.ensure_future(work)
        given_up = asyncio.ensure_future(self._given_up.wait())
        try:
            await asyncio.wait({task, given_up}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise self._out_of_time()
        finally:
            for one in (task, given_up):
                one.cancel()
            await asyncio.wait({task, given_up}, timeout=_GRACE_SECONDS)

    def refresh(self) -> None:
        """Brings `view` and `backpressure` up to this moment. On the event loop."""
        session, view = self._session, self.view
        if session is None:
            view.complete_lsn, view.oldest_unflushed_us = (
                self.log.state.through_lsn if self.log is not None else 0,
                None,
            )
            return
        self.backpressure.account(session.backpressure_cause)
        view.received_lsn = session.received_lsn
        view.last_message_at, view.last_feedback_at = (
            session.last_message_at or view.last_message_at,
            session.last_feedback_at or view.last_feedback_at,
        )
        view.complete_lsn, view.oldest_unflushed_us = session.unflushed.state(session.watermark.flushed_lsn)

    @property
    def backpressure_cause(self) -> str | None:
        """Whom the socket waits for; None while it is read."""
        session = self._session
        return session.backpressure_cause if session is not None and self.backpressure.active else None

    async def run(self, *, until_lsn: int | None = None, until_caught_up: bool = False) -> None:
        """Streams until `stop`, or until everything up to the target is durable and every copy is
        finished. Raises what needs a human.

        The target of `until_caught_up` is the server's end of WAL at the first connection. Whoever
        asked for a target and stopped before it was reached gets Interrupted: what is in the spool
        is sound, and less than was asked for.
        """
        self._loop = asyncio.get_running_loop()
        _tune_interpreter()
        attempt = 0
        target = until_lsn
        bounded = until_caught_up or until_lsn is not None
        done = False
        try:
            await self._within_the_stop(asyncio.to_thread(probe, self.store))
            while not self._stop.is_set():
                flushed = self.view.flushed_lsn
                try:
                    if self._background_error is not None:
                        raise self._background_error
                    server, start_lsn = await self._within_the_stop(asyncio.to_thread(self._prepare))
                    if until_caught_up and target is None:
                        target = server.wal_end_lsn
                    done = await self._stream(server, start_lsn, target)
                    if done or not bounded:
                        break
                except ServiceError as error:
                    self.errors.note(component_of(error), error)
                    self._unpublished = self._unpublished or isinstance(error, PublicationMissing)
                    if error.disposition is not Disposition.RETRY:
                        self.view.state = "failed"
                        raise
                    attempt = 0 if self.view.flushed_lsn > flushed else attempt + 1
                    if not self._stop.is_set():
                        await self._pause(error, attempt)
            if bounded and not done:
                raise Interrupted(
                    "stopped before everything that was asked for was in the spool",
                    hint="run it again: it goes on from where it is",
                )
            if until_caught_up:
                self._require_copies()
        finally:
            await self._close()

    def _require_copies(self) -> None:
        """Raises Interrupted, with the names, if there are tables that could not be copied. One
        that is stale was copied, and is told by the verdict.
        """
        assert self.log is not None
        missing = sorted(
            f"{table.schema_name}.{table.table_name}"
            for table in self.log.state.tables.values()
            if table.state == State.QUARANTINED
        )
        if missing:
            names = ", ".join(missing[:_NAMED]) + (
                f" and {len(missing) - _NAMED:,} more" if len(missing) > _NAMED else ""
            )
            raise Interrupted(
                f"everything else is in the spool, but {len(missing):,} tables could not be copied: {names}",
                hint="`sluice tables --state quarantined` says why; mend that, or leave the tables out by "
                "source.tables, and run it again",
            )

    # one connection

    def _prepare(self) -> tuple[ServerFacts, int]:
        """Everything that must be true before the stream starts (law 4). Creates publication and
        slot only while the manifest is empty.
        """
        options = self.options
        state = self._state = self._own_state(self.log) if self.log is not None else load_state(self.store)
        with closing(open_query(options.source)) as connection:
            if self._unpublished:
                require_publication(connection, options.source.publication)
                self._prepared_at_source = prepared_transactions(connection)
                if options.two_phase:
                    refuse_prepared_unseen(self._prepared_at_source, state, publication=options.source.publication)
            server = server_facts(connection)
            if state.opened is None:
                set_up(options, connection)
            wait_until_free(connection, options.source, bound_s=options.slot_wait_s)
            slot = slot_facts(connection, options.source.slot)
            start_lsn = prove_continuity(
                state.opened, state.through_lsn, server=server, slot=slot, two_phase=options.two_phase
            )
            if self._unpublished and prepared_transactions(connection) != self._prepared_at_source:
                raise SourceUnavailable(
                    "a prepared transaction began or ended while its state was read", hint="it is read again"
                )
        # What committed before the publication existed again cannot be decoded. The server passes
        # over it without a look when it is told to start behind it.
        return server, server.wal_end_lsn if self._unpublished else start_lsn

    def _pass_over_unpublished(self, server: ServerFacts, start_lsn: int) -> None:
        """Goes on at `start_lsn`, with the tables stale: the changes of theirs up to there are lost
        to the stream.
        """
        self._take_over(server, start_lsn)
        assert self.log is not None
        assert self.book is not None
        publication, through_lsn = self.options.source.publication, self.log.state.through_lsn
        reason = (
            f"publication {publication} was dropped and created again: the server does not send what was "
            "written in between"
        )
        self.book.mark_all_stale(reason, lsn=start_lsn)
        # Whatever ended these in between is not sent either, and their gids may be used again.
        ended = tuple(
            PreparedEnd(one.gid, one.end_lsn, "passed_over")
            for one in self.log.state.prepared.values()
            if (one.gid, one.xid) not in self._prepared_at_source
        )
        self.log.publish(
            Changes((), Commits(), ended=ended) if ended else Progress(), from_lsn=through_lsn, through_lsn=start_lsn
        )
        messagetable.ensure(self.log, wanted=self.options.messages, prefixes=self.options.message_prefixes)
        self._logger.error(
            "passing over changes of the time without publication",
            publication=publication,
            from_lsn=show(through_lsn),
            to_lsn=show(start_lsn),
        )
        self._unpublished = False

    def _own_state(self, log: ManifestLog) -> PipelineState:
        """Our log's state, if nobody has taken the pipeline over while we were away."""
        state = log.state
        if read_entry(self.store, state.seq + 1) is not None:
            raise WriterFenced(
                f"manifest entry {state.seq + 1} is another writer's, which owns the pipeline now",
                hint="let one process at a time run this pipeline; this one must not go on",
            )
        return state

    async def _stream(self, server: ServerFacts, start_lsn: int, target: int | None) -> bool:
        """Returns whether `target` was reached."""
        options = self.options
        if self._unpublished:
            await self._within_the_stop(asyncio.to_thread(self._pass_over_unpublished, server, start_lsn))
        elif self._state.opened is None:
            # The first status message repeats the start position: even that one is in the manifest
            # before it is sent.
            await self._within_the_stop(asyncio.to_thread(self._take_over, server, start_lsn))
        streaming = best_streaming(options.streaming, server.server_version)
        self.view.streaming_at = time.monotonic()
        try:
            stream = await ReplicationStream.open(
                options.source,
                start_lsn=start_lsn,
                proto_version=highest_protocol(server.server_version),
                streaming=streaming,
                two_phase=options.two_phase,
                messages=options.messages,
                origin=options.origin,
                limits=options.stream,
                expect=(server.system_identifier, server.timeline),
            )
        except SlotBusy as error:
            # It was free a moment ago. Whoever has it now, the next look waits for them, and names
            # them if they stay.
            raise SourceUnavailable(str(error), hint=error.hint) from error
        try:
            await self._within_the_stop(asyncio.to_thread(self._take_over, server, start_lsn))
            assert self.log is not None
            assert self.book is not None
            assert self.committer is not None
            session = Session(
                stream=stream,
                book=self.book,
                committer=self.committer,
                decoder=self._decoder,
                epoch=self.log.state.epoch,
                numbers=self._numbers,
                start_lsn=start_lsn,
                limits=options.builder,
                open_limits=options.open_limits,
                message_prefixes=options.message_prefixes,
                policy=options.flush,
                counts=self.counts,
                backpressure=self.backpressure,
                prepared=tuple(self.log.state.prepared.values()),
            )
            self._session = session
            self._start_background()
            if self._background_error is not None:
                session.fail(self._background_error)
            self.view.state, self.view.connected, self.view.last_error = "streaming", True, ""
            self._logger.info(
                "streaming", slot=options.source.slot, start_lsn=show(start_lsn), server_version=server.server_version
            )
            try:
                await self._within_the_stop(
                    session.pump(self._stop, reached=lambda: self._reached(target), target=target)
                )
                self.view.state, self.view.reached_at = "draining", time.monotonic()
                self._logger.info("draining")
                await self._within_the_stop(session.drain())
                return self._reached(target)
            finally:
                with suppress(Interrupted):
                    await self._within_the_stop(session.settle())
                self._session = None
        finally:
            self.view.connected = False
            await stream.close()

    def _take_over(self, server: ServerFacts, start_lsn: int) -> None:
        """Opens our epoch, once per process. The slot is ours by now, so a writer that still lives
        is a paused one, and this entry ends it.
        """
        if self.log is None:
            opened = Opened(
                system_identifier=server.system_identifier,
                timeline=server.timeline,
                database=server.database,
                database_oid=server.database_oid,
                slot=self.options.source.slot,
                publication=self.options.source.publication,
                two_phase=self.options.two_phase,
                origin=self.options.origin,
                server_version=server.server_version,
                start_lsn=start_lsn,
                instance=self.options.instance,
            )
            log = ManifestLog.open(
                self.store,
                opened,
                self._state,
                through_lsn=start_lsn,
                on_trouble=self._store_trouble,
                stop=self._stop_threads,
            )
            self._opened = log.state
            messagetable.ensure(log, wanted=self.options.messages, prefixes=self.options.message_prefixes)
            if not self.options.two_phase and log.state.prepared:
                self._release_prepared(log)
            book = TableBook(log, self._lookup, self.options.tables, wal_end=self._lookup.wal_end)
            committer = Committer(
                self.store, log, on_receipt=self._hand_over, on_trouble=self._upload_trouble, stop=self._stop_threads
            )
            self.copier = Copier(
                options=self.options.source,
                log=log,
                book=book,
                committer=committer,
                numbers=self._numbers,
                stop=self._stop_threads,
            )
            self._watch = CatalogWatch(
                self.options.source, book, Requests(self.store, book, self.options.source.publication)
            )
            self.log, self.book, self.committer = log, book, committer
        assert self._watch is not None
        self._watch.run_once()

    def _release_prepared(self, log: ManifestLog) -> None:
        """The slot no longer decodes at PREPARE: what was prepared while it did comes again, whole,
        when it commits.
        """
        released = tuple(PreparedEnd(one.gid, one.end_lsn, "released") for one in log.state.prepared.values())
        log.append(Changes((), Commits(), ended=released))
        self._logger.info("prepared transactions will be sent again when they commit", transactions=len(released))

    def _store_trouble(self, what: str, error: ServiceError) -> None:
        self.errors.note("manifest", error)
        self._logger.warning("store did not answer", what=what, error=str(error))

    def _upload_trouble(self, error: ServiceError) -> None:
        self.errors.note("spool", error)

    def _hand_over(self, receipt: DurableReceipt) -> None:
        """From the commit thread to the event loop, which owns the watermark."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._on_receipt, receipt)

    def _on_receipt(self, receipt: DurableReceipt) -> None:
        if self._session is not None:
            self._session.durable(receipt)
            self.view.flushed_lsn = self._session.watermark.flushed_lsn

    def _reached(self, target: int | None) -> bool:
        assert self._session is not None
        return (
            target is not None
            and self._session.watermark.flushed_lsn >= target
            and not self._copying()
            and not self._awaiting()
        )

    def _copying(self) -> bool:
        return self.copier is not None and bool(self.copier.pending)

    def _awaiting(self) -> bool:
        return self.book is not None and self.book.awaiting

    async def _pause(self, error: ServiceError, attempt: int) -> None:
        pause = RECONNECT_SECONDS[min(attempt, len(RECONNECT_SECONDS) - 1)]
        pause += random.random() * pause / 2  # noqa: S311 - spreads reconnects, guards nothing
        self.view.state = "reconnecting"
        self.view.reconnects += 1
        self.view.reconnect_reasons[reason_of(error)] += 1
        self.view.last_error = str(error)
        self._logger.warning(
            "lost contact, trying again", error=str(error), hint=error.hint, pause_seconds=round(pause, 1)
        )
        self.view.retry_delay_s = pause
        await self._sleep(pause)
        self.view.retry_delay_s = 0.0

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    # beside the connection

    def _start_background(self) -> None:
        """Copies and the catalog watch outlive connections: they have their own."""
        if not self._background:
            tasks = (self._copy_tables(), self._watch_catalog(), self._attempt(self._collect_leftovers, "leftovers"))
            self._background = [asyncio.create_task(task) for task in tasks]
            for task in self._background:
                task.add_done_callback(self._background_ended)

    async def _copy_tables(self) -> None:
        assert self.copier is not None
        while not self._stop.is_set():
            self.copier.totals.beat = time.time()
            if self._copying():
                await self._attempt(self.copier.run_once, "copy")
            await self._sleep(1.0)

    async def _watch_catalog(self) -> None:
        assert self._watch is not None
        while not self._stop.is_set():
            self.view.catalog_beat = time.time()
            await self._sleep(
                min(AWAITING_SECONDS, self.options.watch_interval_s)
                if self._awaiting()
                else self.options.watch_interval_s
            )
            await self._attempt(self._watch.run_once, "catalog")

    def _collect_leftovers(self) -> None:
        """Once per process, as soon as our epoch is open. Nobody waits for it, and nothing but
        space depends on it.
        """
        opened = self._opened
        try:
            self.leftovers = collect(
                self.store, opened_seq=opened.seq, epoch=opened.epoch, table_ids=opened.tables, stop=self._stop_threads
            )
        except ServiceError as error:
            self.errors.note("leftovers", error)
            self._logger.warning("leftovers of older writers stay for now", error=str(error), hint=error.hint)
        else:
            self._logger.info("leftovers of older writers collected", objects=self.leftovers)

    async def _attempt(self, action: Callable[[], object], what: str) -> None:
        """Runs `action` in a thread. What may pass is tried again next time; what may not is
        raised, and ends the process: see `_background_ended`.

        `what` is one of the catalogue's components.
        """
        try:
            await asyncio.to_thread(action)
        except Exception as error:
            self.errors.note(what, error)
            if not isinstance(error, ServiceError) or error.disposition is not Disposition.RETRY:
                raise
            self._logger.warning("interrupted, trying again", what=what, error=str(error), hint=error.hint)
            await self._sleep(2.0)

    def _background_ended(self, task: asyncio.Task[None]) -> None:
        """A part that died must not be missed by nobody: the connection that there is ends, or the
        next one does not begin.
        """
        error = None if task.cancelled() else task.exception()
        if error is None or self._background_error is not None:
            return
        self._background_error = error
        if self._session is not None:
            self._session.fail(error)

    async def _close(self) -> None:
        """Ends what is left. Threads that still wait for the store after that are left to
        themselves: the process does not depend on them.
        """
        self.stop()
        self._stop_threads.set()
        self._finishing.cancellation.cancel()
        try:
            async with asyncio.timeout(max(self.stopping.left() - _GRACE_SECONDS, _GRACE_SECONDS)):
                await asyncio.gather(*self._background, return_exceptions=True)
                await asyncio.to_thread(self._decoder.shutdown)
                if self.committer is not None:
                    await asyncio.to_thread(self.committer.close)
        except TimeoutError:
            self._logger.warning(
                "some threads still wait for the object store or the source, and are left to themselves"
            )
        else:
            if self._watch is not None:
                self._watch.close()
            self._lookup.close()
        self.view.state = "stopped"


def best_streaming(
    wanted: Literal["off", "on", "parallel", "auto"], server_version: int
) -> Literal["off", "on", "parallel"]:
    """What to ask a server of `server_version` (as libpq numbers it) for. Raises UsageError when it
    does not have what is wanted.
    """
    has_parallel = server_version >= PARALLEL_SINCE
    if wanted == "auto":
        return "parallel" if has_parallel else "on"
    if wanted == "parallel" and not has_parallel:
        raise UsageError(
            f"source.streaming is parallel, which PostgreSQL {server_version // 10000} does not have (16 and later do)",
            hint="use auto, on or off",
        )
    return wanted


def refuse_prepared_unseen(at_source: frozenset[tuple[str, int]], state: PipelineState, *, publication: str) -> None:
    """Raises SourceRefused for transactions that were prepared while the publication did not exist:
    their commit would come, and their rows would not.
    """
    known = {(one.gid, one.xid) for one in state.prepared.values()}
    unseen = sorted(gid for gid, xid in at_source if (gid, xid) not in known)
    if unseen:
        raise SourceRefused(
            f"{len(unseen)} transactions were prepared while publication {publication} did not exist, "
            f"and the server does not send their rows: {unseen[:5]}",
            hint="end them with COMMIT PREPARED or ROLLBACK PREPARED, then start again",
        )


def set_up(options: IngestOptions, connection: Connection) -> None:
    """Publication, then slot, each only if it is missing. A slot older than its publication would
    be of no use. Raises SourceError.
    """
    names = Catalog(connection).table_names()
    chosen = (
        [(schema, table) for schema, table in names if matches(options.tables, schema, table)]
        if options.tables
        else None
    )
    published = ensure_publication(connection, options.source.publication, chosen)
    logger = structlog.get_logger("setup")
    if published.created:
        logger.info("publication created", publication=options.source.publication, tables=len(chosen or ()))
    faults.point("setup.published")
    if slot_facts(connection, options.source.slot) is None:
        slot = ensure_slot(options.source, two_phase=options.two_phase)
        logger.info("slot created", slot=slot.name, confirmed_flush_lsn=show(slot.confirmed_flush_lsn or 0))
    faults.point("setup.slot")


class CatalogLookup:
    """Answers what a relation looks like today, on a connection that is opened when first needed
    and again after a loss.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._catalog: Catalog | None = None
        self._lock = threading.Lock()

    def __call__(self, oid: int) -> TableFacts | None:
        return self._ask(lambda catalog: catalog.table(oid, publication=self._options.publication))

    def wal_end(self) -> int:
        """The server's write position now."""
        return self._ask(lambda catalog: catalog.wal_end())

    def _ask(self, question: Callable[[Catalog], Answer]) -> Answer:
        with self._lock:
            if self._catalog is None:
                self._catalog = Catalog(open_query(self._options))
            try:
                faults.point("catalog.asked")
                return question(self._catalog)
            except ServiceError:
                self.close()
                raise

    def close(self) -> None:
        if self._catalog is not None:
            with suppress(ServiceError):
                self._catalog.close()
        self._catalog = None

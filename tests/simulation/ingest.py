"""One ingest process of a history: the product's code, with its threads taken apart into steps.

Real are the assembler, the builder, the followed tables, the committer, the manifest's log, the watermark, the catalog
watch and the requests. What is here instead of `Session` and `Supervisor` does what they do, in the same order, each
piece when the schedule says so. A process ends by `Crash`, or by an error that no other try would pass.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Protocol, cast
from unittest.mock import patch

from sluice.contract.catalog_facts import TableFacts, Visible
from sluice.contract.entries import Opened
from sluice.contract.receipt import DurableReceipt
from sluice.errors import ServiceError, SessionBroken, SourceUnavailable, may_pass
from sluice.ingest.assemble.assembler import Assembler
from sluice.ingest.commit.committer import Committer
from sluice.ingest.commit.watermark import Watermark
from sluice.ingest.encode.builder import Builder, BuilderLimits
from sluice.ingest.status import CommitCounts
from sluice.ingest.tables import catalog_watch, ddl_signals
from sluice.ingest.tables.catalog_watch import CatalogWatch
from sluice.ingest.tables.ddl_signals import DdlSignals, SignalReader
from sluice.ingest.tables.followed_tables import FollowedTables
from sluice.manifest.ordered_log import OrderedLog
from sluice.manifest.reader import load_state
from sluice.manifest.writer import ManifestLog
from sluice.protocol import frames
from sluice.source.ddl_signal import Seen
from sluice.tables.events import Configured
from sluice.tables.messages import prefix_filter
from tests.simulation.catalog import PUBLICATION
from tests.simulation.server import Server
from tests.simulation.steps import Breaker, Clock, Moment, Permits, Steps, Stop, Store
from tests.simulation.walsender import Walsender

_DECIDES = ("resolve", "written_in", "may_publish", "decide")


class World(Protocol):
    """What a process sees of the history around it. `between` lets others take steps in between."""

    server: Server
    store: Store
    clock: Clock
    streaming: bool
    two_phase: bool
    signals: bool
    limits: BuilderLimits
    configured: Configured
    catalog_away: int
    acknowledged_lsn: int

    def between(self) -> None: ...

    def is_busy(self, actor: str) -> bool: ...

    def acknowledge(self, lsn: int) -> None: ...


class SourceCatalog:
    """The catalog as a session sees it: what has committed by now."""

    def __init__(self, world: World) -> None:
        self._world = world

    def table(self, oid: int) -> TableFacts | None:
        found = self._world.server.seen_tables.get(oid)
        return found.facts if found is not None else None

    def lookup(self, oid: int) -> TableFacts | None:
        """For FollowedTables."""
        self.ask()
        return self.table(oid)

    def wal_end(self) -> int:
        self.ask()
        return self._world.server.now

    def visible(self) -> Visible:
        """Each commit is seen as soon as it is sent, unless it waits for a standby."""
        return Visible(2**31, frozenset(one.xid for one in self._world.server.unseen))

    def unseen_among(self, _connection: object, xids: list[int]) -> set[int]:
        return {xid for xid in xids if not self.visible().sees(xid)}

    def await_seen(self, xid: int) -> None:
        """Waits a while."""
        self.ask()
        if not self.visible().sees(xid):
            raise SourceUnavailable("other sessions do not see the transaction")

    def look(self, _connection: object) -> Mapping[int, TableFacts]:
        self.ask()
        published = [table for table in self._world.server.seen_tables.values() if table.membership]
        return {table.oid: table.facts for table in sorted(published, key=lambda table: table.name)}

    def signal(self, _connection: object, *, with_open: bool = False) -> Seen:
        """What the server says of the DDL signal."""
        self.ask()
        if not self._world.signals:
            return Seen("", "it is not installed")
        return Seen("1", "", frozenset(map(str, self._world.server.open)) if with_open else None)

    def existing(self, oids: list[int]) -> set[int]:
        return self._world.server.seen_tables.keys() & set(oids)

    def ask(self) -> None:
        """A question that may fail, and takes a while."""
        if self._world.catalog_away:
            self._world.catalog_away -= 1
            raise SourceUnavailable("the session was lost")
        self._world.between()


@contextmanager
def simulated(world: World) -> Iterator[None]:
    """Inside the block looks at the catalog see that of the model, and their time is the model's."""

    def catalog(_connection: object) -> SourceCatalog:
        return SourceCatalog(world)

    def signal(connection: object, *, with_open: bool = False) -> Seen:
        return SourceCatalog(world).signal(connection, with_open=with_open)

    answers = SimpleNamespace(
        probe=signal, unseen_among=SourceCatalog(world).unseen_among, entries_of=lambda *_: (1, set())
    )
    with (
        patch.object(catalog_watch, "Catalog", catalog),
        patch.object(catalog_watch, "ddl_signal", answers),
        patch.object(catalog_watch, "time", world.clock),
        patch.object(ddl_signals, "time", world.clock),
    ):
        yield


class _PreemptedTables:
    """FollowedTables as the builder has them: other threads may run before each call."""

    def __init__(self, tables: FollowedTables, between: Callable[[], None]) -> None:
        self._tables = tables
        self._between = between

    def __getattr__(self, name: str) -> Any:
        if name in _DECIDES:
            self._between()
        return getattr(self._tables, name)


class Session:
    """One connection, as `sluice.ingest.session.Session` has it."""

    def __init__(self, world: World, process: "Process", start_lsn: int) -> None:
        log = process.log
        self._world = world
        self.walsender = Walsender(world.server, start_lsn, streaming=world.streaming, two_phase=world.two_phase)
        self.watermark = Watermark(start_lsn=start_lsn)
        self.breaker = Breaker(world.clock)
        self.receipts: list[DurableReceipt] = []
        self._line = process.committer.line(self.breaker, on_receipt=self.receipts.append)
        prepared = tuple(log.stored.prepared.values())
        self._signals, self._signal_reader = process.watch.signals, SignalReader()
        self._signals.begin(start_lsn, sent=world.signals)
        self._tables = process.tables
        keeps = prefix_filter((), kept=False)
        self._assembler = Assembler(start_lsn=start_lsn, prepared=prepared, keeps_message=keeps)
        self.builder = Builder(
            tables=cast("FollowedTables", _PreemptedTables(process.tables, world.between)),
            upload=self._line.upload,
            fetch=self._line.fetch,
            epoch=log.stored.epoch,
            numbers=process.numbers,
            limits=world.limits,
            start_lsn=start_lsn,
            prepared=prepared,
        )
        self._recorded_lsn = start_lsn

    @property
    def broken(self) -> bool:
        return self.breaker.error is not None

    def receive(self) -> None:
        """Takes what walsender has sent since the last call, and decodes it."""
        batch = self.walsender.take()
        self.watermark.receive(self.walsender.sent_lsn)
        if batch:
            self._in_decoder(lambda: self._decode(batch))

    def flush(self) -> None:
        """Cuts a unit, if there is anything to record."""
        if self.can_flush:
            self._in_decoder(self._publish)

    @property
    def can_flush(self) -> bool:
        waits = self._signals.holding and not self._tables.has_decided(self.builder.through_lsn)
        anything = self.builder.pending or self.builder.through_lsn > self._recorded_lsn
        return bool(anything and (self.builder.full or not waits))

    def acknowledge(self) -> None:
        """On the event loop: what a receipt proves."""
        if self.watermark.durable(self.receipts.pop(0)):
            self._world.acknowledge(self.watermark.flushed_lsn)

    def lose(self) -> None:
        """The connection is gone."""
        self.breaker.fail(SourceUnavailable("the connection was lost"))

    def _in_decoder(self, work: Callable[[], None]) -> None:
        try:
            self.breaker.guarded(work)()
        except ServiceError as error:
            if not isinstance(error, SessionBroken) and not may_pass(error):
                raise

    def _decode(self, batch: list[bytes]) -> None:
        for number, part in enumerate(self._assembler.parts(frames.join(batch))):
            if number and self.builder.pending:
                self._publish()
            if number == 0 or len(part):
                self._world.between()
                assembly = self._assembler.feed(part)
                self._signals.heard(self._signal_reader.take(assembly))
                self.builder.add(assembly)
                self._signals.decoded(assembly.through_lsn)
        self.builder.relieve()
        if self.builder.full:
            self._publish()

    def _publish(self) -> None:
        unit = self.builder.cut()
        self._recorded_lsn = unit.through_lsn
        self._line.submit(unit)


class Process:
    """Begins as `open_epoch` does. Raises ServiceError."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.catalog = SourceCatalog(world)
        stop: Any = Stop(world.clock)
        state = load_state(world.store)
        log = ManifestLog.open(
            world.store,
            _opened(world),
            state,
            through_lsn=None if state.seq else world.acknowledged_lsn,
            stop=stop,
            clock=lambda: world.clock.now,
        )
        self.log = OrderedLog(log)
        self.uploads, self.commits = Steps(world.between), Steps(world.between, in_order=True)
        ordered: Any = self.log
        ordered._thread.shutdown()
        ordered._thread, ordered._changed = self.commits, Moment(self._pass_on)
        signals = DdlSignals.of(self.log)
        self.tables = FollowedTables(
            self.log,
            self.catalog.lookup,
            world.configured.patterns,
            policies=world.configured.policies,
            wal_end=self.catalog.wal_end,
            await_seen=self.catalog.await_seen,
            columns_said=signals.columns_said,
            clock=lambda: world.clock.now,
        )
        self.committer = Committer(
            world.store, self.log, on_problem=lambda _error: None, stop=stop, counts=CommitCounts()
        )
        inside: Any = self.committer
        inside._uploads.shutdown()
        inside._uploads = self.uploads
        inside._upload_permits = inside._unit_permits = Permits()
        self.numbers = itertools.count(1)
        self.session: Session | None = None
        source: Any = SimpleNamespace(publication=PUBLICATION, prove=lambda _connection: None)
        self.watch = CatalogWatch(source, self.tables, world.store, log=self.log, signals=signals)
        inner: Any = self.watch
        inner._session = SimpleNamespace(ask=lambda look: look(None), close=lambda: None)
        inner._published = self.catalog
        inner._described = SimpleNamespace(turn=lambda _connection, _published: None)
        inner._forgetting._clock = world.clock.monotonic

    @property
    def holds(self) -> bool:
        """Whether rows said what is not stored yet."""
        inside: Any = self.log
        return bool(inside._held)

    def connect(self) -> None:
        """As the supervisor does it: what was under way ends, a look comes first, and the stream begins where the
        manifest is. Raises ServiceError.
        """
        self._end_session()
        start_lsn = self.log.stored.through_lsn
        self.watch.requests.take_at_once()
        self.look()
        self.session = Session(self._world, self, start_lsn)

    def look(self) -> None:
        """One look at the catalog. Raises ServiceError."""
        self.watch.run_once()

    def _end_session(self) -> None:
        """Nothing of the connection is under way any more, and what its rows said is forgotten with them."""
        while self.commits.waiting:
            self.commits.take(self.commits.waiting[0])
        while self.uploads.waiting:
            self.uploads.take(self.uploads.waiting[0])
        self.tables.forget_stream()
        self.session = None

    def _pass_on(self) -> None:
        """Somebody waits until what rows said is stored: with them, or when their connection ends."""
        self._world.between()
        assert not self._world.is_busy("decoder")
        if self.commits.waiting:
            self.commits.take(self.commits.waiting[0])
        elif self.session is not None and not self.session.broken and self.session.can_flush:
            self.session.flush()
        else:
            self._end_session()


def _opened(world: World) -> Opened:
    return Opened(
        system_identifier="7",
        timeline=1,
        database="shop",
        database_oid=5,
        slot="simulated",
        publication=PUBLICATION,
        two_phase=world.two_phase,
        origin="any",
        server_version=180000,
        start_lsn=world.acknowledged_lsn,
        instance="simulated",
    )

"""One history: a server, ingest, an applier, people, and a schedule that a seed decides.

An event is a name and a number from which everything that it chooses follows. Events that came while another one
was under way (in another thread, between two of its steps) are kept inside it. A history is the list of its events, so
it can be run again, without some of them as well: an event that is not possible then does nothing.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from sluice.contract import keys
from sluice.contract.control import Request
from sluice.errors import ServiceError, may_pass
from sluice.ingest.encode.builder import BuilderLimits
from sluice.store import memory
from sluice.tables.events import Configured
from sluice.tables.policies import Policies, TablePolicy
from tests.simulation.applier import Applier, Finding, Lake
from tests.simulation.clients import Clients
from tests.simulation.ingest import Process, Session, simulated
from tests.simulation.oracle import Oracle
from tests.simulation.server import Server
from tests.simulation.snapshots import Snapshots
from tests.simulation.steps import Clock, Crash, Store

PREEMPTED = 0.2
"""How often another thread takes a step at a place where it may."""
_USUAL = 0.12
"""How often events come in the order in which they do when nothing is in their way."""
_THROUGH = ("send", "receive", "flush", "commit", "acknowledge")
_APPLY = ("applier reads", "window begins", "window ends")
_NOTHING: Any = None
"""In the place of random numbers, for who draws none."""
_numbers = count(1)
_DEFAULT = Configured((), Policies())


@dataclass(slots=True)
class Event:
    """`inner` are those that came in between, with the place at which they did."""

    name: str
    number: int
    inner: list[tuple[int, "Event"]] = field(default_factory=list)
    said: str = ""


@dataclass(frozen=True, slots=True)
class _Kind:
    """`actor` is the thread; `waits`: it may wait until what rows said is stored. An `inner` one may come between two
    steps of another thread. One that does not draw gets no random numbers: to seed them takes longer than many events.
    """

    weight: int
    actor: str
    can: Callable[[], bool]
    do: Callable[[Random], str | None]
    waits: bool = False
    inner: bool = True
    draws: bool = True


class World:
    """What one history needs, and its schedule."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.seed = seed
        self.server = Server()
        self.clock = Clock()
        self._store_name = f"simulated {next(_numbers)}"
        self.store = Store(self._store_name)
        self.lake = Lake()
        self.streaming = random.random() < 0.6
        self.two_phase = random.random() < 0.4
        self.signals = random.random() < 0.3
        """Whether the server puts a message for each command into the stream."""
        self.limits = BuilderLimits(
            max_rows=random.choice((3, 10, 1000)), body_bytes=random.choice((150, 400, 100_000))
        )
        self.chunk_blocks = random.choice((1, 2, 4, 4))
        self.window_bytes = random.choice((1, 300, 1 << 20))
        self.begins_live = random.random() < 0.6
        """Whether all tables are in the lake before the first event."""
        self.configured = _DEFAULT
        self.catalog_away = 0
        self.server.signals = self.signals
        self.clients = Clients(self.server, two_phase=self.two_phase)
        self.clients.set_up(random)
        self.acknowledged_lsn = self.server.now
        self._patches = ExitStack()
        self._patches.enter_context(simulated(self))
        self.process: Process | None = None
        self.snapshots: Snapshots | None = None
        self.applier: Applier | None = None
        self.oracle = Oracle(self)
        self._asked = self._applier_moved = False
        self._random = random
        self._kinds = self._all_kinds()
        self._named_kinds = tuple(self._kinds.items())
        self._inner_kinds = tuple(one for one in self._named_kinds if one[1].inner)
        self._busy: list[str] = []
        self._event: Event | None = None
        self._hooks = 0
        self._generates = True

    @property
    def names(self) -> set[str]:
        """Every kind of event."""
        return set(self._kinds)

    def close(self) -> None:
        """Its objects are gone."""
        self._patches.close()
        memory._named.pop(self._store_name, None)

    # the schedule

    def generate(self, steps: int) -> list[Event]:
        """Chooses `steps` events, one after the other, and does them. The last one may be a finding."""
        events: list[Event] = []
        self.events = events
        if self.begins_live:
            self._turn(0)
        while len(events) < steps:
            runs = self._random.random()
            for name in _THROUGH if runs < _USUAL else _APPLY if runs < 2 * _USUAL else (None,):
                event = self._choose(self._named_kinds if name is None else [(name, self._kinds[name])])
                if event is not None:
                    events.append(event)
                    self.do(event)
        return events

    def replay(self, events: list[Event]) -> None:
        """Does these events, as far as they are possible."""
        self._generates = False
        if self.begins_live:
            self._turn(0)
        for event in events:
            self.do(event)

    def do(self, event: Event) -> None:
        """One event, with those inside it."""
        kind = self._kinds[event.name]
        if not kind.can():
            return
        self._event, self._hooks = event, 0
        try:
            self._take(kind, event)
        except Crash:
            self._die()
            event.said += "the process ended here"
        finally:
            self._event, self._busy = None, []
        self.oracle.check(claims=self._applier_moved)
        self._applier_moved = False

    def between(self) -> None:
        """A place where other threads may run."""
        if self._event is None or len(self._busy) != 1 or (self.process is not None and self.process.commits.running):
            return
        self._hooks += 1
        if not self._generates:
            for hook, inner in self._event.inner:
                kind = self._kinds[inner.name]
                if hook == self._hooks and kind.can() and (inner.name, kind) in self._may_run():
                    self._take(kind, inner)
            return
        while self._random.random() < PREEMPTED:
            found = self._choose(self._may_run())
            if found is not None:
                self._event.inner.append((self._hooks, found))
                self._take(self._kinds[found.name], found)

    def is_busy(self, actor: str) -> bool:
        """Whether this thread is in the middle of a step."""
        return actor in self._busy

    def _may_run(self) -> list[tuple[str, _Kind]]:
        """What would wait for a thread that waits here is not begun."""
        busy = self._busy
        waits = "decoder" in busy and self.process is not None and self.process.holds
        return [one for one in self._inner_kinds if one[1].actor not in busy and not (waits and one[1].waits)]

    def _choose(self, kinds: Sequence[tuple[str, _Kind]]) -> Event | None:
        possible = [one for one in kinds if one[1].can()]
        if not possible:
            return None
        name, _ = self._random.choices(possible, [kind.weight for _, kind in possible])[0]
        return Event(name, self._random.getrandbits(32))

    def _take(self, kind: _Kind, event: Event) -> None:
        self._busy.append(kind.actor)
        event.said = ""
        self._applier_moved = self._applier_moved or kind.actor == "applier"
        try:
            event.said = kind.do(Random(event.number) if kind.draws else _NOTHING) or ""
        except ServiceError as error:
            if not may_pass(error):
                raise Finding(f"{event.name}: ingest ended with {type(error).__name__}: {error}") from error
            event.said = f"{type(error).__name__}: {error}"
        finally:
            self._busy.pop()
        failed = self._session.breaker.error if self._session is not None else None
        if failed is not None and not may_pass(failed):
            raise Finding(f"{event.name}: ingest ended with {type(failed).__name__}: {failed}") from failed

    def acknowledge(self, lsn: int) -> None:
        """What the server may forget from now on."""
        self.acknowledged_lsn = max(self.acknowledged_lsn, lsn)
        self.oracle.acknowledged(lsn)

    # what can happen

    def _all_kinds(self) -> dict[str, _Kind]:
        def always() -> bool:
            return True

        clients = self.clients
        return {
            "rows": _Kind(16, "people", always, clients.rows),
            "open": _Kind(6, "people", lambda: len(self.server.open) < 3, clients.open),
            "go on": _Kind(10, "people", lambda: clients.can_go_on, clients.go_on),
            "end": _Kind(8, "people", lambda: clients.can_end, clients.end),
            "shape": _Kind(7, "people", always, clients.shape),
            "publication": _Kind(2, "people", always, clients.publication),
            "send": _Kind(20, "walsender", self._can_send, self._send),
            "keepalive": _Kind(2, "walsender", self._is_streaming, self._keepalive, draws=False),
            "receive": _Kind(30, "decoder", self._can_receive, self._receive, draws=False),
            "flush": _Kind(20, "decoder", self._can_flush, self._flush, draws=False),
            "upload": _Kind(10, "upload", lambda: self.process is not None and bool(self.process.uploads.waiting),
                            self._upload),
            "commit": _Kind(24, "commit", lambda: self.process is not None and bool(self.process.commits.waiting),
                            self._commit, draws=False),
            "acknowledge": _Kind(8, "loop", self._can_acknowledge, self._acknowledge, draws=False),
            "look": _Kind(8, "watch", lambda: self.process is not None, self._look, waits=True),
            "requests": _Kind(10, "requests", lambda: self.process is not None and self._asked, self._requests,
                              waits=True, draws=False),
            "snapshot": _Kind(25, "snapshot", lambda: self.snapshots is not None and self.snapshots.can_step,
                              self._snapshot, waits=True),
            "start": _Kind(50, "process", lambda: self.process is None, self._start, inner=False, draws=False),
            "connect": _Kind(40, "process", self._can_connect, self._connect, inner=False, draws=False),
            "lose": _Kind(1, "network", self._is_streaming, self._lose, draws=False),
            "crash": _Kind(1, "process", lambda: self.process is not None, self._crash, inner=False, draws=False),
            "crash soon": _Kind(1, "machine", lambda: self.process is not None, self._crash_soon, inner=False),
            "store away": _Kind(1, "machine", always, self._store_away, inner=False),
            "catalog away": _Kind(1, "machine", always, self._catalog_away, inner=False),
            "standby leaves": _Kind(4, "machine", lambda: self.signals and not self.server.standby_is_away,
                                    self._standby_leaves, draws=False),
            "standby returns": _Kind(8, "machine", lambda: self.server.standby_is_away, self._standby_returns,
                                     draws=False),
            "time": _Kind(1, "machine", always, self._time),
            "request": _Kind(3, "operator", lambda: bool(self.server.tables), self._request),
            "settings": _Kind(2, "operator", always, self._settings),
            "applier starts": _Kind(30, "applier", lambda: self.applier is None and self._has_manifest(),
                                    self._applier_starts, draws=False),
            "applier reads": _Kind(14, "applier", self._can_read, self._applier_reads, draws=False),
            "window begins": _Kind(25, "applier", lambda: self.applier is not None and self.applier.can_begin,
                                   self._window_begins, draws=False),
            "window ends": _Kind(20, "applier", lambda: self.applier is not None and bool(self.applier.running),
                                 self._window_ends),
            "applier reports": _Kind(3, "applier", lambda: self.applier is not None, self._applier_reports,
                                     draws=False),
            "applier crashes": _Kind(1, "applier", lambda: self.applier is not None, self._applier_crashes,
                                     draws=False),
        }  # fmt: skip

    # ingest

    @property
    def _its(self) -> Process:
        assert self.process is not None
        return self.process

    @property
    def _session(self) -> Session | None:
        return self.process.session if self.process is not None else None

    @property
    def _connected(self) -> Session:
        assert self._its.session is not None
        return self._its.session

    def _is_streaming(self) -> bool:
        return self._session is not None and not self._session.broken

    def _can_send(self) -> bool:
        return self._is_streaming() and self._connected.walsender.behind

    def _can_receive(self) -> bool:
        return self._is_streaming() and self._connected.walsender.has_sent

    def _can_read(self) -> bool:
        if self.applier is None:
            return False
        return self.store.size(keys.manifest_entry(self.applier.ledger.read_seq + 1)) is not None

    def _can_flush(self) -> bool:
        return self._is_streaming() and self._connected.can_flush

    def _can_acknowledge(self) -> bool:
        return self._session is not None and bool(self._session.receipts)

    def _can_connect(self) -> bool:
        return self.process is not None and (self.process.session is None or self.process.session.broken)

    def _has_manifest(self) -> bool:
        return self.store.size(keys.manifest_entry(1)) is not None

    def _start(self, _random: Random) -> str:
        process = Process(self)
        self.process = process
        self.snapshots = Snapshots(self, process, chunk_blocks=self.chunk_blocks)
        return f"ingest starts in epoch {process.log.stored.epoch} at {process.log.stored.through_lsn:#x}"

    def _connect(self, _random: Random) -> str:
        self._its.connect()
        return f"from {self._its.log.stored.through_lsn:#x}"

    def _send(self, random: Random) -> str:
        session = self._connected
        number = random.randrange(1, 9)
        for _ in range(number):
            if session.walsender.behind:
                session.walsender.step(stream=random.random() < 0.3)
        if random.random() < 0.3:
            session.walsender.keepalive()
        if random.random() < 0.05:
            session.walsender.forget()
        return f"the server has sent through {session.walsender.sent_lsn:#x}"

    def _keepalive(self, _random: Random) -> str:
        walsender = self._connected.walsender
        walsender.keepalive()
        return f"{walsender.sent_lsn:#x}"

    def _receive(self, _random: Random) -> None:
        self._connected.receive()

    def _flush(self, _random: Random) -> str:
        session = self._connected
        session.flush()
        return f"a unit through {session.builder.through_lsn:#x}"

    def _upload(self, random: Random) -> None:
        self._its.uploads.take(random.choice(self._its.uploads.waiting))

    def _commit(self, _random: Random) -> str:
        self._its.commits.take(self._its.commits.waiting[0])
        return f"the manifest is at entry {self._its.log.stored.seq}, {self._its.log.stored.through_lsn:#x}"

    def _acknowledge(self, _random: Random) -> str:
        self._connected.acknowledge()
        return f"{self.acknowledged_lsn:#x}"

    def _look(self, random: Random) -> str:
        if random.random() < 0.7:
            self.clock.pass_seconds(1)
            self._its.watch.is_due()
            self.clock.pass_seconds(1)
        self._its.look()
        return f"examined through {self._its.log.examined_lsn:#x}"

    def _requests(self, _random: Random) -> None:
        self._asked = False
        self._its.watch.requests.take_at_once()

    def _snapshot(self, random: Random) -> str:
        assert self.snapshots is not None
        for _ in range(random.randrange(1, 4)):
            if self.snapshots.can_step:
                self.snapshots.step()
        return ""

    def _lose(self, _random: Random) -> None:
        self._connected.lose()

    def _crash(self, _random: Random) -> None:
        raise Crash

    def _die(self) -> None:
        self.process = self.snapshots = None
        self.store.crash_in = 0

    def _crash_soon(self, random: Random) -> str:
        self.store.crash_in = random.randrange(1, 6)
        self.store.loses_answers = random.random() < 0.5
        return f"in the {self.store.crash_in}. write from now, which happens: {self.store.loses_answers}"

    def _store_away(self, random: Random) -> str:
        self.store.away = random.randrange(1, 5)
        self.store.loses_answers = random.random() < 0.5
        return f"for {self.store.away} calls, writes happen: {self.store.loses_answers}"

    def _catalog_away(self, random: Random) -> str:
        self.catalog_away = random.randrange(1, 3)
        return f"for {self.catalog_away} questions"

    def _standby_leaves(self, _random: Random) -> None:
        self.server.standby_is_away = True

    def _standby_returns(self, _random: Random) -> str:
        waited = ", ".join(str(one.xid) for one in self.server.unseen)
        self.server.standby_returns()
        return f"committed for everybody: {waited}" if waited else ""

    def _time(self, random: Random) -> str:
        seconds = random.choice((1, 60, 3600, 86400))
        self.clock.pass_seconds(seconds)
        return f"{seconds} s"

    def _request(self, random: Random) -> str:
        names = sorted({table.name for table in self.server.tables.values()})
        action = random.choice(("pause", "resume", "resync"))
        name = random.choice(names)
        self.ask(action, name, random.getrandbits(40))
        return f"{action} {name}"

    def _settings(self, random: Random) -> str:
        patterns = random.choice(((), ("!public.a",), ("public.a", "public.b")))
        policy = TablePolicy(on_change=random.choice(("resync", "stop")), on_rename=random.choice(("keep", "move")))
        self._configure(Configured(patterns, Policies(policy)))
        return f"source.tables {list(patterns)}, on_change {policy.on_change}, on_rename {policy.on_rename}"

    def _configure(self, configured: Configured) -> None:
        self.configured = configured
        if self.process is not None:
            self.process.tables.decide(configured)

    def ask(self, action: str, name: str, number: int) -> None:
        """What the command line does."""
        request = Request(action, "public", name, self.clock.now.isoformat())
        self._asked = True
        if not self.store.away and not self.store.crash_in:
            self.store.put(keys.control_request(f"{number:012x}"), request.encode())

    # the applier

    def _applier_starts(self, _random: Random) -> None:
        self.applier = Applier(self.store, self.lake, self.clock, window_bytes=self.window_bytes)

    def _applier_reads(self, _random: Random) -> str:
        assert self.applier is not None
        self.applier.read()
        return f"through entry {self.applier.ledger.read_seq}"

    def _window_begins(self, _random: Random) -> str:
        assert self.applier is not None
        if not self.applier.begin():
            return "there is none"
        work = self.applier.running[-1]
        return f"{work.state.table_name} through entry {work.window.last_seq}"

    def _window_ends(self, random: Random) -> None:
        assert self.applier is not None
        self.applier.end(random.randrange(len(self.applier.running)), fails=random.random() < 0.1)

    def _applier_reports(self, _random: Random) -> None:
        assert self.applier is not None
        self.applier.report()

    def _applier_crashes(self, _random: Random) -> None:
        self.applier = None

    # the end

    def heal(self) -> None:
        """Everything that failed works again and everything that was begun ends; then nothing is left to do, and the
        lake has all that the server has. Raises Finding.
        """
        self._event = None
        self._generates = False
        self.store.away = self.store.crash_in = self.catalog_away = 0
        self._configure(_DEFAULT)
        self.clients.end_all(Random(self.seed))
        for attempt in range(40):
            self._turn(attempt)
            if self.oracle.is_settled():
                break
        self.oracle.check()
        self.oracle.final()

    def _turn(self, attempt: int) -> None:
        random = Random(attempt)
        self.clock.pass_seconds(40 * 86400)
        # Sorted: the order of a set of names is another one in each process.
        for name in sorted({table.name for table in self.server.tables.values()}):
            if attempt == 1:
                # The command line names requests by the time: this one comes behind those that wait.
                self.ask("resume", name, 1 << 40 | random.getrandbits(40))
        for name in ("start", "connect"):
            if self._kinds[name].can():
                self._heal_by(name, random)
        process, session = self._its, self._connected
        while session.walsender.behind:
            session.walsender.step(stream=False)
        session.walsender.keepalive()
        for name in ("receive", "flush", "requests", "look", "snapshot", "snapshot", "snapshot", "look"):
            for _ in range(300 if name == "snapshot" else 0):  # a table may wait for the stream, which goes on then
                if self.snapshots is None or not self.snapshots.can_step:
                    break
                self._heal_by(name, random)
            self._heal_by(name, random)
            while process.commits.waiting:
                self._heal_by("commit", random)
        while session.receipts:
            self._heal_by("acknowledge", random)
        process.watch.state_examined()
        for name in ("applier starts", "applier reads"):
            self._heal_by(name, random)
        self._apply_all()
        self.oracle.check()

    def _apply_all(self) -> None:
        assert self.applier is not None
        self.applier.ledger.trim()
        while self.applier.running or self.applier.begin():
            while self.applier.running:
                self.applier.end(0)
        self.applier.read()

    def _heal_by(self, name: str, random: Random) -> None:
        kind = self._kinds[name]
        if kind.can():
            self._take(kind, Event(name, random.getrandbits(32)))

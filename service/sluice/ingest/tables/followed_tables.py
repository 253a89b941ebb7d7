"""The one owner of the tables' life: brings it what happens, asks the catalog what it lacks, stores what it decides.

Invariant: what rows say is stored with them (`take`), what others say behind all that was decided before; while a
table has the former, the latter waits. Thread-safe: the decoder, the snapshotter and the catalog watch share it, and
nobody waits for the object store or the catalog under its lock. What is decided, and why, is `sluice.tables`.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import partial

import structlog

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.description import Description
from sluice.contract.entries import Snapshot, Table
from sluice.contract.reasons import DROPPED, Reason, unpublished
from sluice.contract.resyncs import Cause, due
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.ingest.status import TableCounts
from sluice.manifest.ordered_log import OrderedLog
from sluice.manifest.values import TableState
from sluice.protocol.messages import RelationVersion
from sluice.tables import events
from sluice.tables import messages as messagetable
from sluice.tables.catalog_diff import Unseen
from sluice.tables.events import Answer, Answers, Decision, Event, Moment, NeedFacts
from sluice.tables.life import NOT_YET, NotYet, TableLives
from sluice.tables.policies import Policies, TablePolicy

Lookup = Callable[[int], TableFacts | None]
"""The table with this oid, as the catalog has it now; None when it is gone."""


def utc_now() -> datetime:
    return datetime.now(UTC)


class FollowedTables:
    """`lookup` asks the catalog, which knows today's shape only and may be ahead of the stream; `wal_end` asks for the
    server's position now. Each method that stands for an event of `sluice.tables.events` says which.
    """

    def __init__(
        self,
        log: OrderedLog,
        lookup: Lookup,
        patterns: tuple[str, ...],
        *,
        wal_end: Callable[[], int],
        counts: TableCounts | None = None,
        policies: Policies | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._log = log
        self._lookup = lookup
        self._wal_end = wal_end
        self._counts = counts or TableCounts()
        self._clock = clock
        self._lock = threading.RLock()
        self._lives = TableLives(patterns, policies or Policies())
        self.configured = 0  # how often `configure` was called
        self._logger = structlog.get_logger("tables")

    def configure(self, patterns: tuple[str, ...], policies: Policies) -> None:
        """Configured."""
        self._decide(events.Configured(patterns, policies), self._locked)
        self.configured += 1

    # the stream

    def has_decided(self, through_lsn: int) -> bool:
        """Whether `take` would give anything."""
        return self._log.has_held(through_lsn)

    def take(self, through_lsn: int) -> tuple[Table, ...]:
        """What rows up to `through_lsn` said of their tables, for the entry that has them."""
        return self._log.take(through_lsn)

    def forget_stream(self) -> None:
        """The connection is over, and nothing of it is under way."""
        with self._lock:
            if self._log.drop_held():
                self._decide(events.ConnectionEnded(), self._locked)

    def resolve(
        self, relation: RelationVersion, *, position_lsn: int, reaches_lsn: int, xid: int
    ) -> TableSchema | None:
        """RowsCame. `relation` is the same object until the server announces the relation again."""
        if relation == messagetable.RELATION:
            return messagetable.SCHEMA
        with self._lock:
            known = self._lives.version_again(relation, position_lsn=position_lsn, reaches_lsn=reaches_lsn)
        if known != NOT_YET:
            return known
        return self._by_rows(events.RowsCame(relation, position_lsn, reaches_lsn, xid), position_lsn)

    def written_in(self, relation: RelationVersion) -> TableSchema | NotYet | None:
        """See TableLives. Records nothing and asks nobody."""
        with self._lock:
            return self._lives.written_in(relation, self._moment())

    def keeps_values_out(self, relation: RelationVersion) -> bool:
        """See TableLives."""
        with self._lock:
            return self._lives.keeps_values_out(relation, self._moment())

    def still_written_in(self, relation: RelationVersion, schema: TableSchema, *, position_lsn: int, xid: int) -> bool:
        """OpenRowsCommitted."""
        return self._by_rows(events.OpenRowsCommitted(relation, schema, position_lsn, xid), position_lsn)

    def lose_value(self, oid: int, reason: str, *, lsn: int | None) -> None:
        """ValueLost."""
        self._by_rows(events.ValueLost(oid, reason, lsn), self.through_lsn if lsn is None else lsn)

    # looks at the catalog

    def look(self, facts: TableFacts, before: Mapping[str, TableState], *, wal_end: int) -> bool:
        """CatalogSeen."""
        with self._lock:
            self._lives.doubt(facts.oid)
        answers = Answers(wal_end, {facts.oid: facts})
        event = events.CatalogSeen(facts, before, wal_end)
        return not self._is_ahead(facts.oid, facts) and self._apart_from_rows(event, facts.oid, facts, answers)

    def looked(self, *, before_lsn: int, examined_lsn: int, seen: Mapping[str, int]) -> None:
        """LookEnded. The manifest was at `examined_lsn` a while before the look began. It says so from now on, if the
        look has `seen` each table that is live now: by table id, the generation in which it saw it.
        """
        with self._lock:
            self._decide(events.LookEnded(before_lsn), self._locked)
            # What rows said meanwhile is in no entry yet.
            held, decided, stored = self._log.held, self._log.state.tables, self._log.stored.tables
            tables = [stored.get(key, now) if key in held else now for key, now in decided.items()]
            live = (table for table in tables if table.state in (State.LIVE, State.GAP))
            if all(seen.get(one.table_id) == one.generation or one.table_id == messagetable.TABLE_ID for one in live):
                self._log.examined(examined_lsn)

    def detach(self, oid: int, why: Reason | None) -> None:
        """TableGone."""
        self._unless_ahead(events.TableGone(oid, why), oid)

    def leave(self, oid: int, publication: str) -> None:
        """TableGone: the publication does not have it."""
        self.detach(oid, unpublished(publication))

    def drop(self, oid: int) -> None:
        """TableGone: the source no longer has it."""
        self.detach(oid, DROPPED)

    def mark_stale(self, oid: int, reason: str, *, lsn: int, cause: Cause, generation: int | None = None) -> None:
        """EqualityLost."""
        self._apart_from_rows(events.EqualityLost(oid, reason, lsn, cause, generation), oid)

    def mark_all_stale(self, reason: str, *, lsn: int, cause: Cause) -> None:
        """EqualityLost, of every table whose rows are spooled, that of logical messages too."""
        for state in tuple(self.states().values()):
            self.mark_stale(int(state.table_id), reason, lsn=lsn, cause=cause)

    def describe(self, oid: int, description: Description) -> bool:
        """Described. False, too, while something that rows said of the table waits to be stored."""
        return not self._is_ahead(oid) and self._apart_from_rows(events.Described(oid, description), oid)

    # snapshots

    def prepare_snapshot(self, facts: TableFacts) -> TableSchema | None:
        """SnapshotDue."""
        if self._is_ahead(facts.oid, facts):
            return None
        return self._apart_from_rows(events.SnapshotDue(facts), facts.oid, facts)

    def publish_snapshot(self, entry: Snapshot) -> bool:
        """SnapshotRead. Returns when the rows are durable."""
        published = self._apart_from_rows(events.SnapshotRead(entry), int(entry.table_id))
        if published:
            self._log.wait_stored()
        return published

    def begin_again(self, facts: TableFacts, unseen: Unseen, *, generation: int) -> None:
        """SnapshotSpoiled."""
        self._unless_ahead(events.SnapshotSpoiled(facts, unseen, generation), facts.oid)

    def note_wait(self, oid: int, what: str) -> None:
        """SnapshotDelayed."""
        self._unless_ahead(events.SnapshotDelayed(oid, what), oid)

    def quarantine(self, facts: TableFacts, what: str, *, generation: int) -> None:
        """SnapshotRefused."""
        self._unless_ahead(events.SnapshotRefused(facts, what, generation), facts.oid)

    # requests of operators

    def request_snapshot(self, facts: TableFacts) -> bool:
        """SnapshotAsked."""
        return self._apart_from_rows(events.SnapshotAsked(facts), facts.oid, facts)

    def set_paused(self, table_id: str, *, paused: bool) -> bool:
        """PauseAsked. False, too, when it cannot be decided now, because something that rows said of the table waits
        to be stored, or was the only word of it and is not stored any more.
        """
        oid = int(table_id)
        return not self._is_ahead(oid) and self._apart_from_rows(events.PauseAsked(table_id, paused), oid)

    # what is known

    def states(self) -> dict[str, TableState]:
        """By table id; a value that does not change."""
        return self._log.state.tables

    @property
    def through_lsn(self) -> int:
        """The position through which the spool is complete."""
        return self._log.stored.through_lsn

    @property
    def awaiting(self) -> bool:
        """Whether a change of shape waits for the stream, or a stale table for the next look."""
        now = self._clock()
        return any(
            table.state == State.PENDING or (table.state == State.STALE and due(table.resync_at, now))
            for table in self.states().values()
        )

    def selected(self, schema_name: str, table_name: str) -> bool:
        """See TableLives."""
        return self._lives.selected(schema_name, table_name)

    def selects(self, facts: TableFacts) -> bool:
        """See TableLives."""
        with self._lock:
            return self._lives.selects(facts, self.states().get(str(facts.oid)))

    def wants_to_move(self, state: TableState) -> bool:
        """See TableLives."""
        with self._lock:
            return self._lives.wants_to_move(state, self._moment())

    def policy(self, state: TableState) -> TablePolicy:
        """What is configured for the table."""
        return self._lives.policy(state)

    def wait_stored(self) -> None:
        """Returns when what was decided before is durable, but for what rows said. Raises what
        `ManifestLog.append` raises.
        """
        self._log.wait_stored()

    # who waits for whom

    def _by_rows(self, event: Event[Answer], position_lsn: int) -> Answer:
        """What rows at that position said is stored with them."""
        return self._decide(event, self._locked, position_lsn=position_lsn)

    def _apart_from_rows(
        self, event: Event[Answer], oid: int, facts: TableFacts | None = None, answers: Answers | None = None
    ) -> Answer:
        """Decided once nothing that rows said of the table waits to be stored; nor of one that has the name in
        `facts`, or the lake path of that name, and leaves it in front of the table.
        """
        return self._decide(event, partial(self._apart, oid, facts), answers=answers)

    def _unless_ahead(self, event: Event[None], oid: int) -> None:
        """What will be asked for again is left for then: it may take until the rest of a large transaction has come."""
        if not self._is_ahead(oid):
            self._apart_from_rows(event, oid)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock:
            yield

    @contextmanager
    def _apart(self, oid: int, facts: TableFacts | None) -> Iterator[None]:
        while True:
            for table_id in self._ahead(oid, facts):
                self._log.wait_for(table_id)
            with self._lock:
                if not self._is_ahead(oid, facts):
                    yield
                    return

    def _is_ahead(self, oid: int, facts: TableFacts | None = None) -> bool:
        """Whether something that rows said of the table, or of those that leave it their name, waits to be stored."""
        return bool(self._ahead(oid, facts))

    def _ahead(self, oid: int, facts: TableFacts | None) -> list[str]:
        states = self._log.state.tables
        return [
            key
            for key in self._log.held
            if key == str(oid) or (facts is not None and key in states and self._lives.gives_way(states[key], facts))
        ]

    def _decide(
        self,
        event: Event[Answer],
        locked: Callable[[], AbstractContextManager[None]],
        *,
        position_lsn: int | None = None,
        answers: Answers | None = None,
    ) -> Answer:
        """Gives `event` to the tables' life, again once the catalog was asked for what is lacking: nobody waits for
        that but the caller. With `position_lsn` rows at that position said what is decided.
        """
        answers = answers or Answers()
        while True:
            with locked():
                found = self._lives.decide(event, self._moment(answers))
                if not isinstance(found, NeedFacts):
                    for decision in found.decisions:
                        self._carry_out(decision, position_lsn)
                    return found.answer
            if found.oid is not None:
                answers.facts[found.oid] = self._lookup(found.oid)
            answers.wal_end = self._wal_end()

    def _moment(self, answers: Answers | None = None) -> Moment:
        log = self._log
        return Moment(log.state, log.stored.through_lsn, self._clock(), time.monotonic(), answers or Answers())

    def _carry_out(self, decision: Decision, position_lsn: int | None) -> None:
        match decision:
            case events.Said():
                getattr(self._logger, decision.level)(decision.event, **decision.fields)
            case events.Counted():
                self._counts.schema_changes[decision.kind, decision.outcome] += 1
            case events.TableChange(Snapshot() as entry):
                self._log.append(entry)
                if entry.final:
                    self._counts.transitions[State.LIVE] += 1
            case events.TableChange(Table() as entry):
                before = self._log.state.tables.get(entry.table_id)
                if position_lsn is not None or entry.table_id in self._log.held:
                    self._log.hold(entry, position_lsn=position_lsn or 0)
                else:
                    self._log.append(entry)
                self._count(before, entry)

    def _count(self, before: TableState | None, entry: Table) -> None:
        begins = before is None or entry.generation > before.generation
        if entry.state is not None and (begins or before is None or entry.state != before.state):
            self._counts.transitions[entry.state] += 1
        if begins and entry.cause:
            self._counts.resyncs[entry.cause] += 1

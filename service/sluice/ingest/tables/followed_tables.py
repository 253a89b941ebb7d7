"""The one owner of the tables' life: brings it what happens, asks the catalog what it lacks, stores what it decides.

Invariant: what rows say is stored with them (`take`), what others say behind all that was decided before; while a
table has the former, the latter waits. Thread-safe: the decoder, the snapshotter and the catalog watch share it, and
nobody waits for the object store or the catalog under its lock. What is decided, and why, is `sluice.tables`.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import structlog

from sluice.contract.catalog_facts import TableFacts, Visible
from sluice.contract.entries import Snapshot, Table
from sluice.contract.resyncs import due
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.ingest.status import TableCounts
from sluice.manifest.ordered_log import OrderedLog
from sluice.manifest.values import TableState
from sluice.protocol.messages import RelationVersion
from sluice.tables import events
from sluice.tables import messages as messagetable
from sluice.tables.column_policy import may_have_rules
from sluice.tables.events import Answer, Answers, Decision, Event, Moment, NeedFacts
from sluice.tables.lake_paths import gives_way
from sluice.tables.life import TableLives
from sluice.tables.policies import Policies
from sluice.tables.shape_history import NOT_YET, NotYet

Lookup = Callable[[int], TableFacts | None]
"""The table with this oid, as the catalog has it now; None when it is gone."""


def utc_now() -> datetime:
    return datetime.now(UTC)


class FollowedTables:
    """`lookup` asks the catalog, which knows today's shape only and may be ahead of the stream; `wal_end` asks for the
    server's position now. `await_seen` returns when `lookup` sees what a transaction did, which has committed.
    `columns_said`: see DdlSignals.
    """

    def __init__(
        self,
        log: OrderedLog,
        lookup: Lookup,
        patterns: tuple[str, ...],
        *,
        wal_end: Callable[[], int],
        await_seen: Callable[[int], None],
        columns_said: Callable[[int, int], tuple[tuple[int, int], ...] | None] = lambda _oid, _lsn: None,
        counts: TableCounts | None = None,
        policies: Policies | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._log = log
        self._lookup = lookup
        self._wal_end = wal_end
        self._await_seen = await_seen
        self._columns_said = columns_said
        self._counts = counts or TableCounts()
        self._clock = clock
        self._lock = threading.RLock()
        self._lives = TableLives(patterns, policies or Policies())
        self._logger = structlog.get_logger("tables")

    def decide(self, event: Event[Answer], answers: Answers | None = None) -> Answer | None:
        """Gives `event` to the tables' life, again once the catalog was asked for what is lacking in `answers`: nobody
        waits for that but the caller. None, too, for an event that is left for later: see AboutTable.
        """
        if isinstance(event, events.AboutTable) and not event.waits and self._ahead(event):
            return None
        answers = answers or Answers()
        while True:
            with self._behind(event):
                found = self._lives.decide(event, self._moment(answers))
                if not isinstance(found, NeedFacts):
                    for decision in found.decisions:
                        self._carry_out(decision, event)
                    return found.answer
            if found.oid is not None:
                if isinstance(event, events.RowsCame | events.OpenRowsCommitted):
                    self._await_seen(event.xid)
                answers.facts[found.oid] = self._lookup(found.oid)
            answers.wal_end = self._wal_end()

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
                self.decide(events.ConnectionEnded())

    def resolve(
        self, relation: RelationVersion, *, position_lsn: int, reaches_lsn: int, xid: int
    ) -> TableSchema | None:
        """RowsCame. `relation` is the same object until the server announces the relation again."""
        if relation == messagetable.RELATION:
            return messagetable.SCHEMA
        with self._lock:
            known = self._lives.history.version_again(
                relation, position_lsn=position_lsn, reaches_lsn=reaches_lsn, xid=xid
            )
        if known != NOT_YET:
            return known
        said = self._columns_said(relation.oid, position_lsn)
        return self.decide(events.RowsCame(relation, position_lsn, reaches_lsn, xid, said))

    def may_publish(self, relation: RelationVersion, schema: TableSchema, *, position_lsn: int, xid: int) -> bool:
        """OpenRowsCommitted."""
        said = self._columns_said(relation.oid, position_lsn)
        return bool(self.decide(events.OpenRowsCommitted(relation, schema, position_lsn, xid, said)))

    def written_in(self, relation: RelationVersion) -> TableSchema | NotYet | None:
        """See TableLives. Records nothing and asks nobody."""
        with self._lock:
            return self._lives.written_in(relation, self._moment())

    def keeps_values_out(self, relation: RelationVersion) -> bool:
        """Whether column rules may concern the table of `relation`, in whatever shape it may be."""
        return may_have_rules(relation, self.states().get(str(relation.oid)), self.configured.policies)

    # looks at the catalog

    def look(self, facts: TableFacts, before: Mapping[str, TableState], *, wal_end: int) -> bool:
        """CatalogSeen. Also of a table whose event is left for later nothing more is confirmed."""
        with self._lock:
            self._lives.history.doubt(facts.oid)
        return bool(self.decide(events.CatalogSeen(facts, before, wal_end), Answers(wal_end, {facts.oid: facts})))

    def looked(self, *, before_lsn: int, visible: Visible, examined_lsn: int, seen: Mapping[str, int]) -> None:
        """LookEnded. The manifest was at `examined_lsn` a while before the look began. It says so from now on, if the
        look has `seen` each table that is live now: by table id, the generation in which it saw it.
        """
        with self._lock:
            self.decide(events.LookEnded(before_lsn, visible))
            # What rows said meanwhile is in no entry yet.
            held, decided, stored = self._log.held, self._log.state.tables, self._log.stored.tables
            tables = [stored.get(key, now) if key in held else now for key, now in decided.items()]
            live = (table for table in tables if table.state in (State.LIVE, State.GAP))
            if all(seen.get(one.table_id) == one.generation or one.table_id == messagetable.TABLE_ID for one in live):
                self._log.examined(examined_lsn)

    # snapshots

    def publish_snapshot(self, entry: Snapshot) -> bool:
        """SnapshotRead. Returns when the rows are durable."""
        published = bool(self.decide(events.SnapshotRead(entry)))
        if published:
            self._log.wait_stored()
        return published

    # what is known

    @property
    def configured(self) -> events.Configured:
        """What holds now."""
        return self._lives.configured

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

    def wait_stored(self) -> None:
        """Returns when what was decided before is durable, but for what rows said. Raises what
        `ManifestLog.append` raises.
        """
        self._log.wait_stored()

    # who waits for whom

    @contextmanager
    def _behind(self, event: Event[Any]) -> Iterator[None]:
        """Holds the lock, once nothing waits to be stored that `event` waits for."""
        while True:
            for table_id in self._ahead(event):
                self._log.wait_for(table_id)
            with self._lock:
                if not self._ahead(event):
                    yield
                    return

    def _ahead(self, event: Event[Any]) -> list[str]:
        """Tables of which rows said something that waits to be stored, and in front of which `event` is not decided."""
        if not isinstance(event, events.AboutTable):
            return []
        facts = event.facts if isinstance(event, events.CatalogShows) else None
        states, names = self._log.state.tables, self.configured.policies.default.names
        return [
            key
            for key in self._log.held
            if key == str(event.oid) or (facts is not None and key in states and gives_way(states[key], facts, names))
        ]

    def _moment(self, answers: Answers | None = None) -> Moment:
        log = self._log
        return Moment(log.state, log.stored.through_lsn, self._clock(), time.monotonic(), answers or Answers())

    def _carry_out(self, decision: Decision, event: Event[Any]) -> None:
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
                if isinstance(event, events.RowsSaid):
                    at = event.position_lsn
                    self._log.hold(entry, position_lsn=self.through_lsn if at is None else at)
                elif entry.table_id in self._log.held:
                    self._log.hold(entry, position_lsn=0)
                else:
                    self._log.append(entry)
                self._count(before, entry)

    def _count(self, before: TableState | None, entry: Table) -> None:
        begins = before is None or entry.generation > before.generation
        if entry.state is not None and (begins or before is None or entry.state != before.state):
            self._counts.transitions[entry.state] += 1
        if begins and entry.cause:
            self._counts.resyncs[entry.cause] += 1

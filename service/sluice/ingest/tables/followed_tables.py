"""The tables that ingest follows: which they are, in which schema version their rows are decoded, and
when one of them goes stale.

Invariant: a row is encoded in a schema version that the manifest holds before the row, or with it; a
change of shape that the lake cannot follow turns the table stale in the manifest before any later
row of it is dropped. What rows say is stored with them (`take`), what others say behind all that was
decided before; while a table has the former, the latter waits. Thread-safe: the decoder, the snapshotter and the
catalog watch share it, and nobody waits for the object store or the catalog under its lock.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final, Literal, TypeVar

import structlog

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.entries import Snapshot, Table
from sluice.contract.reasons import DROPPED, Reason, ReasonCode
from sluice.contract.resyncs import Cause
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.ingest.status import TableCounts
from sluice.ingest.tables import messages as messagetable
from sluice.ingest.tables.catalog_answers import Answers, CatalogAnswers, Lookup, Unanswered
from sluice.ingest.tables.catalog_diff import Unseen, compare
from sluice.ingest.tables.generations import Generations
from sluice.ingest.tables.looks import Looks
from sluice.ingest.tables.policies import Policies, TablePolicy
from sluice.ingest.tables.register import TableRegister, differs, latest_schema
from sluice.ingest.tables.shapes import Shapes
from sluice.manifest.ordered_log import OrderedLog
from sluice.manifest.values import TableState
from sluice.protocol.messages import RelationVersion

NOT_YET: Final = "not yet"
Decision = TypeVar("Decision")


class FollowedTables:
    """Every table of the pipeline, by oid.

    `lookup` asks the catalog, which knows today's shape only and may be ahead of the stream.
    `wal_end` asks for the server's position now: a snapshot that is begun now will have whatever
    committed before it.
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
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        self._log = log
        self._register = TableRegister(log, counts or TableCounts())
        self._catalog = CatalogAnswers(lookup, wal_end)
        self._generations = Generations(
            self._register,
            policies or Policies(),
            patterns,
            catalog=self._catalog,
            clock=clock,
            on_end=self._forget,
        )
        self._resyncs, self._paths = self._generations.resyncs, self._generations.paths
        self._lock = threading.RLock()
        self._resolved: dict[RelationVersion, TableSchema | None] = {}
        self._shapes = Shapes(self._register, self._catalog)
        self._looks = Looks(self._register, self._generations, self._shapes)
        self._examined: dict[int, TableFacts] = {}
        """By oid, of tables whose rows are being read: what a look has found."""
        self._prepared: dict[int, int] = {}
        """By oid, the newest generation whose rows may be read: what began it waits for nothing of the stream."""
        self.configured = 0  # how often `configure` was called
        self._logger = structlog.get_logger("tables")

    def configure(self, patterns: tuple[str, ...], policies: Policies) -> None:
        """From now on these hold. Tables join and leave with the next look at the catalog."""
        with self._lock:
            self._generations.configure(patterns, policies)
            self._resolved = {}
            self.configured += 1

    # the stream

    def has_decided(self, through_lsn: int) -> bool:
        """Whether `take` would give anything."""
        return self._log.has_held(through_lsn)

    def take(self, through_lsn: int) -> tuple[Table, ...]:
        """What rows up to `through_lsn` said of their tables, for the entry that has them."""
        return self._log.take(through_lsn)

    def forget_stream(self) -> None:
        """The connection is over, and nothing of it is under way: its rows that are not stored come again, and
        say again what they said.
        """
        with self._lock:
            if self._log.drop_held():
                self._shapes.forget()
                self._resolved = {}
                self._looks.forget()

    @contextmanager
    def _apart(self, oid: int, facts: TableFacts | None = None) -> Iterator[None]:
        """The lock, while nothing that rows said of the table waits to be stored; nor of one that has the name in
        `facts`, or the lake path of that name, and leaves it in front of the table.
        """
        while True:
            for table_id in self._ahead(oid, facts):
                self._log.wait_for(table_id)
            with self._lock:
                if not self._is_ahead(oid, facts):
                    yield
                    return

    def _ahead(self, oid: int, facts: TableFacts | None) -> list[str]:
        states = self._log.state.tables
        return [
            key
            for key in self._log.held
            if key == str(oid) or (facts is not None and key in states and self._paths.gives_way(states[key], facts))
        ]

    def _is_ahead(self, oid: int, facts: TableFacts | None = None) -> bool:
        """Whether something waits to be stored that rows said of the table, or of those from which it takes its name.
        What will be asked for again is left for then: it may take until the rest of a large transaction has come.
        """
        return bool(self._ahead(oid, facts))

    @contextmanager
    def _in_stream(self, position_lsn: int) -> Iterator[None]:
        """The lock; what is decided was said by rows at that position."""
        with self._lock, self._register.deciding_at(position_lsn):
            yield

    def _decided(
        self,
        locked: Callable[[], AbstractContextManager[None]],
        decide: Callable[[], Decision],
        answers: Answers | None = None,
    ) -> Decision:
        """What `decide` returns, which has the lock, and is called again once the catalog was asked for what it lacks:
        nobody waits for that but the caller.
        """
        answers = answers or Answers()
        while True:
            try:
                with locked(), self._catalog.known(answers):
                    return decide()
            except Unanswered as missing:
                self._catalog.ask(missing, answers)

    def wait_stored(self) -> None:
        """Returns when what was decided before is durable, but for what rows said. Raises what
        `ManifestLog.append` raises.
        """
        self._log.wait_stored()

    def selected(self, schema_name: str, table_name: str) -> bool:
        """Whether configuration asks for a table of this name."""
        return self._paths.selected(schema_name, table_name)

    def selects(self, facts: TableFacts) -> bool:
        """Likewise for a table that may be carried already, under another name."""
        with self._lock:
            return self._paths.selects(facts, self._register.state(facts.oid))

    def wants_to_move(self, state: TableState) -> bool:
        """Whether the lake table is to move to the path of the table's name, once it may be read again."""
        with self._lock:
            return self._paths.moves(state)

    def resolve(
        self, relation: RelationVersion, *, position_lsn: int, reaches_lsn: int, xid: int
    ) -> TableSchema | None:
        """The schema version in which rows of `relation` are spooled, or None when the table is not
        carried.

        May decide: a table that is new, a shape that changed, a table that went
        stale. `position_lsn` is where the first commit record of the rows concerned begins, `xid`
        the transaction of the first of them, not its savepoint. The position must be that for every way in which
        a transaction can come: one recorded for one of its rows is compared with those of its
        others, and with those of the same rows when they come again. `reaches_lsn` is a position within the
        last of these commit records. `relation` is the same object until the server announces the relation again.
        """
        if relation == messagetable.RELATION:
            return messagetable.SCHEMA
        with self._lock:
            again = self._shapes.history.announced(relation, position_lsn)
            if not again and relation in self._resolved:
                self._shapes.history.passed(relation.oid, reaches_lsn)
                return self._resolved[relation]

        def decide() -> TableSchema | None:
            schema = self._resolve(relation, position_lsn, xid)
            state = self._register.state(relation.oid)
            if (schema is None and (state is None or not state.state.is_followed)) or (
                schema and state and schema.version == state.schema_version
            ):
                # An older version is right for one place in the log only: further on it is a column dropped again.
                self._resolved[relation] = schema
            self._shapes.history.passed(relation.oid, reaches_lsn)
            return schema

        return self._decided(lambda: self._in_stream(position_lsn), decide)

    def written_in(self, relation: RelationVersion) -> TableSchema | Literal["not yet"] | None:
        """The schema version in which rows of a transaction that may still roll back can be written
        now; None when the table is not carried.

        NOT_YET for a shape that the manifest does not have: what it is shows when the transaction
        has committed, in the catalog no sooner than there. Records nothing and asks nobody.
        """
        with self._lock:
            state = self._register.state(relation.oid)
            if state is None:
                return NOT_YET if self.selected(relation.schema, relation.name) else None
            if not state.state.is_followed:
                return None
            latest = latest_schema(state)
            if self._generations.outdated(state):
                return NOT_YET
            possible = self._shapes.history.possible(state, relation, after_lsn=self._register.through_lsn)
            return latest if latest is not None and possible == [latest] else NOT_YET

    def keeps_values_out(self, relation: RelationVersion) -> bool:
        """Whether column rules may concern the table of `relation`, in whatever shape it may be."""
        with self._lock:
            return self._generations.may_have_rules(relation)

    def still_written_in(self, relation: RelationVersion, schema: TableSchema, *, position_lsn: int, xid: int) -> bool:
        """Whether rows that were written in `schema` while their transaction was open may be
        published so, now that it has committed.
        """
        now = self.resolve(relation, position_lsn=position_lsn, reaches_lsn=position_lsn + 1, xid=xid)
        if now is None or now.version == schema.version:
            return now is not None
        what = (
            f"a transaction that was open when the table came to schema version {now.version} had written "
            f"rows in version {schema.version}"
        )
        with self._in_stream(position_lsn):
            self._generations.mark_stale(relation.oid, what, lsn=position_lsn, cause=Cause.SCHEMA)
        return False

    def look(self, facts: TableFacts, before: Mapping[str, TableState], *, wal_end: int) -> bool:
        """Takes one look's facts of a published table into account; what was committed when they were read
        ended at or before `wal_end`. `before` are the states of all tables from before the look. A table that has
        changed since is left for the next look: the facts may be older than its state. Returns whether the
        manifest has all that they say.
        """

        def decide() -> bool:
            known, now = before.get(str(facts.oid)), self._register.state(facts.oid)
            if now is not None and now.state == State.SNAPSHOT:
                self._examined[facts.oid] = facts
            # Each entry counts what waits for a table that is paused.
            if now is not known and (now is None or known is None or replace(now, paused=known.paused) != known):
                return False
            self._looks.take(facts, wal_end, before)
            now = self._register.state(facts.oid)
            return now is None or not differs(now, facts)

        with self._lock:
            self._shapes.history.doubt(facts.oid)
        if self._is_ahead(facts.oid, facts):
            return False
        return self._decided(lambda: self._apart(facts.oid, facts), decide, Answers(wal_end, {facts.oid: facts}))

    def looked(self, *, before_lsn: int, examined_lsn: int, seen: Mapping[str, int]) -> None:
        """A look at every published table is complete that began when the server was at `before_lsn`.
        What it found changed was reported by `look`: of every other table the rows that committed by
        then have the columns of its newest shape.

        The manifest was at `examined_lsn` a while before the look began. It says so from now on, if the look has
        `seen` each table that is live now: by table id, the generation in which it saw it.
        """
        with self._lock:
            self._shapes.history.confirm(before_lsn)
            # What rows said meanwhile is in no entry yet.
            held, decided, stored = self._log.held, self._log.state.tables, self._log.stored.tables
            tables = [stored.get(key, now) if key in held else now for key, now in decided.items()]
            live = (table for table in tables if table.state in (State.LIVE, State.GAP))
            if all(seen.get(one.table_id) == one.generation or one.table_id == messagetable.TABLE_ID for one in live):
                self._log.examined(examined_lsn)

    def policy(self, state: TableState) -> TablePolicy:
        """What is configured for the table."""
        return self._generations.policy(state)

    def request_snapshot(self, facts: TableFacts) -> bool:
        """Begins the table's next generation, because an operator asks for it. False when its snapshot
        is under way already, or when it cannot be carried.
        """
        return self._decided(lambda: self._apart(facts.oid, facts), lambda: self._generations.request(facts))

    def prepare_snapshot(self, facts: TableFacts) -> TableSchema | None:
        """The shape in which a table that waits for its rows can be read under `facts`, None when
        it is not to be read (any more).

        A table that changed since it joined begins another generation.
        """
        if self._is_ahead(facts.oid, facts):
            return None

        def decide() -> TableSchema | None:
            schema = self._generations.prepare(facts)
            if schema is not None:
                self._prepared[facts.oid] = self.states()[str(facts.oid)].generation
            return schema

        return self._decided(lambda: self._apart(facts.oid, facts), decide)

    def publish_snapshot(self, entry: Snapshot) -> bool:
        """Publishes rows of a snapshot, and returns when they are durable; the final entry makes its table live.
        False when the table has moved on meanwhile, even before the rows were read, a look has examined what they
        lack, or other column rules hold by now: then nothing is published.
        """
        oid = int(entry.table_id)
        with self._apart(oid):
            state = self._register.state(oid)
            if state is None or state.state != State.SNAPSHOT or state.generation != entry.generation:
                return False
            if state.snapshot is None and self._prepared.get(oid) != entry.generation:
                return False
            if self._generations.outdated(state):
                return False
            facts = self._examined.get(oid)
            if entry.final and facts is not None and compare(entry.relfilenode, entry.fingerprint, facts) is not None:
                return False
            stored = self._register.publish_snapshot(entry, first=state.snapshot is None)
            if entry.final:
                self._resyncs.taken(oid)
        stored.result()
        return True

    @property
    def through_lsn(self) -> int:
        """The position through which the spool is complete."""
        return self._register.through_lsn

    def begin_again(self, facts: TableFacts, unseen: Unseen, *, generation: int) -> None:
        """The rows of a snapshot that is under way in `generation` are of no use: begins the next one
        under today's facts, later if that happens again and again.
        """
        again = partial(self._generations.begin_again, facts, unseen, generation=generation)
        if not self._is_ahead(facts.oid):
            self._decided(lambda: self._apart(facts.oid), again)

    def note_wait(self, oid: int, what: str) -> None:
        """The snapshot of a table cannot be taken because of `what`, and is tried again. Stored, so that
        whoever looks from outside sees it.
        """
        if self._is_ahead(oid):
            return
        with self._apart(oid):
            state, why = self._register.state(oid), Reason(ReasonCode.SNAPSHOT_WAITS, {"what": what})
            if state is not None and state.state == State.SNAPSHOT and state.why != why:
                self._register.become(state, state.state, why, cause=state.cause)

    def quarantine(self, facts: TableFacts, what: str, *, generation: int) -> None:
        """The server refused to let the table be read, as `what` says, in `generation`. It is tried
        again after a pause, or when its facts are other ones.
        """
        if self._is_ahead(facts.oid):
            return
        with self._apart(facts.oid):
            state = self._register.state(facts.oid)
            if state is not None and state.generation == generation and state.state.is_followed:
                self._resyncs.refused(facts.oid)
                self._generations.quarantine(facts, state, Reason.of(Cause.UNREADABLE, what))

    def set_paused(self, table_id: str, *, paused: bool) -> bool:
        """Begins or ends a pause: what is spooled of the table is not applied while it lasts. False when it cannot be
        decided now, because something that rows said of the table waits to be stored, or was the only word of it and
        is not stored any more.
        """
        if self._is_ahead(int(table_id)):
            return False
        with self._apart(int(table_id)):
            state = self.states().get(table_id)
            if state is None:
                return False
            if (state.paused is not None) != paused:
                self._logger.info(
                    "table paused" if paused else "table resumed", table=f"{state.schema_name}.{state.table_name}"
                )
                self._register.pause(state, paused=paused)
        return True

    @property
    def awaiting(self) -> bool:
        """Whether a change of shape waits for the stream, or a stale table for the next look."""
        return any(table.state == State.PENDING or self._resyncs.is_near(table) for table in self.states().values())

    def mark_stale(self, oid: int, reason: str, *, lsn: int, cause: Cause, generation: int | None = None) -> None:
        """The lake table no longer equals the source, for `reason`; nothing more is spooled for the
        table until it is read again from a new snapshot, by itself where the policy says so.

        A table that is not known yet will be read after the commit that makes it known, so that
        nothing of it is missing. With `generation`, only while that one is in force.
        """
        with self._apart(oid):
            self._generations.mark_stale(oid, reason, lsn=lsn, cause=cause, generation=generation)

    def lose_value(self, oid: int, reason: str, *, lsn: int | None) -> None:
        """A change that committed at `lsn` cannot be written, for `reason`. One from before the table's snapshot
        is in that. None: it is not known whether, and where, its transaction commits.
        """
        at = self._register.through_lsn if lsn is None else lsn
        with self._in_stream(at):
            state = self._register.state(oid)
            if state is not None and (lsn is None or lsn >= state.lsn):
                self._generations.mark_stale(oid, reason, lsn=at, cause=Cause.VALUE)

    def mark_all_stale(self, reason: str, *, lsn: int, cause: Cause) -> None:
        """Every table whose rows are spooled, that of logical messages too."""
        for state in tuple(self.states().values()):
            self.mark_stale(int(state.table_id), reason, lsn=lsn, cause=cause)

    def detach(self, oid: int, why: Reason | None) -> None:
        """The source no longer publishes the table, or nobody asks for it. No reason: it is forgotten."""
        if not self._is_ahead(oid):
            with self._apart(oid):
                self._generations.detach(oid, why)

    def drop(self, oid: int) -> None:
        """The source no longer has the table."""
        self.detach(oid, DROPPED)

    def states(self) -> dict[str, TableState]:
        """By table id; a value that does not change."""
        return self._register.states()

    # under the lock

    def _forget(self, oid: int) -> None:
        self._resolved = {relation: schema for relation, schema in self._resolved.items() if relation.oid != oid}
        self._looks.forget(oid)
        self._examined.pop(oid, None)

    def _resolve(self, relation: RelationVersion, position_lsn: int, xid: int) -> TableSchema | None:
        state = self._register.state(relation.oid)
        if state is None:
            if self.selected(relation.schema, relation.name):
                return self._generations.join(relation, self._catalog.facts(relation.oid))
            name = f"{relation.schema}.{relation.name}"
            self._logger.info("rows of a table that is not selected are left out", table=name)
            return None
        if not state.state.is_followed:
            return None
        policy = self._generations.policy(state)
        find = partial(self._shapes.version_of, relation, state, policy, position_lsn=position_lsn, xid=xid)
        return self._generations.follow(relation.oid, state, position_lsn, find)

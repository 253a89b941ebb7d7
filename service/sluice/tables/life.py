"""Every table of a pipeline, and what becomes of each: one event after the other, in the order in which they are
given. Pure.

Invariant: a row is encoded in a schema version that the manifest holds before the row, or with it; a change of shape
that the lake cannot follow turns the table stale in the manifest before any later row of it is dropped.
"""

from dataclasses import replace
from functools import partial
from typing import Final, Literal, cast

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.entries import Snapshot
from sluice.contract.reasons import Reason, ReasonCode
from sluice.contract.resyncs import Cause
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.manifest.values import TableState
from sluice.protocol.messages import RelationVersion
from sluice.tables import events
from sluice.tables.catalog_diff import compare
from sluice.tables.catalog_seen import CatalogJudge
from sluice.tables.column_changes import ShapeChanges
from sluice.tables.events import Answer, Decided, Event, Moment, NeedFacts
from sluice.tables.generations import Generations
from sluice.tables.policies import Policies, TablePolicy
from sluice.tables.register import TableRegister, Unanswered, differs, latest_schema

NOT_YET: Final = "not yet"
NotYet = Literal["not yet"]


class TableLives:
    """Every table of the pipeline, by oid. What the manifest has of them comes with each event; here is what was found
    out about rows since the process began.
    """

    def __init__(self, patterns: tuple[str, ...], policies: Policies) -> None:
        self._register = TableRegister()
        self._generations = Generations(self._register, policies, patterns, on_end=self._forget)
        self._shapes = ShapeChanges(self._register)
        self._looks = CatalogJudge(self._register, self._generations, self._shapes)
        self._resolved: dict[RelationVersion, TableSchema | None] = {}
        self._examined: dict[int, tuple[TableFacts, int]] = {}
        """By oid, of tables whose rows are being read: what a look has found."""
        self._prepared: dict[int, int] = {}
        """By oid, the newest generation whose rows may be read: what began it waits for nothing of the stream."""

    def decide(self, event: Event[Answer], at: Moment) -> Decided[Answer] | NeedFacts:
        """What `event` means at the moment `at`. After NeedFacts nothing has changed, here or there: the event is given
        again, at a moment with the answer.
        """
        with self._register.at(at) as decisions:
            try:
                answer = self._answer(event)
            except Unanswered as missing:
                return NeedFacts(missing.oid)
        return Decided(cast("Answer", answer), tuple(decisions))

    def _answer(self, event: object) -> object:
        match event:
            case events.RowsCame():
                return self._rows_came(event)
            case events.OpenRowsCommitted():
                return self._open_rows_committed(event)
            case events.CatalogSeen():
                return self._catalog_seen(event)
            case events.SnapshotAsked():
                return self._generations.request(event.facts)
            case events.SnapshotDue():
                return self._snapshot_due(event.facts)
            case events.SnapshotRead():
                return self._snapshot_read(event.entry)
            case events.PauseAsked():
                return self._pause_asked(event)
            case events.Described():
                return self._described(event)
            case _:
                self._take_note(event)
                return None

    def _take_note(self, event: object) -> None:
        match event:
            case events.SnapshotSpoiled(facts, unseen, generation):
                self._generations.begin_again(facts, unseen, generation=generation)
            case events.SnapshotDelayed():
                self._snapshot_delayed(event)
            case events.SnapshotRefused():
                self._snapshot_refused(event)
            case events.EqualityLost(oid, reason, lsn, cause, generation):
                self._generations.mark_stale(oid, reason, lsn=lsn, cause=cause, generation=generation)
            case events.ValueLost():
                self._value_lost(event)
            case events.TableGone(oid, why):
                self._generations.detach(oid, why)
            case events.LookEnded(before_lsn):
                self._shapes.history.confirm(before_lsn)
            case events.Configured(patterns, policies):
                self._generations.configure(patterns, policies)
                self._resolved = {}
            case events.ConnectionEnded():
                self._shapes.forget()
                self._looks.forget()
                self._resolved = {}
            case _:
                raise TypeError(f"{type(event).__name__} is no event of a table's life")

    # what is asked without deciding anything

    def version_again(
        self, relation: RelationVersion, *, position_lsn: int, reaches_lsn: int
    ) -> TableSchema | NotYet | None:
        """The schema version of more rows of `relation`, with the positions of RowsCame, if that was decided and holds
        still; None when the table is not carried. NOT_YET when it must be decided. `relation` is the same object until
        the server announces the relation again.
        """
        if self._shapes.history.announced(relation, position_lsn):
            self._resolved.pop(relation, None)
        elif relation in self._resolved:
            self._shapes.history.passed(relation.oid, reaches_lsn)
            return self._resolved[relation]
        return NOT_YET

    def written_in(self, relation: RelationVersion, at: Moment) -> TableSchema | NotYet | None:
        """The schema version in which rows of a transaction that may still roll back can be written
        now; None when the table is not carried.

        NOT_YET for a shape that the manifest does not have: what it is shows when the transaction
        has committed, in the catalog no sooner than there.
        """
        with self._register.at(at):
            state = self._register.state(relation.oid)
            if state is None:
                return NOT_YET if self.selected(relation.schema, relation.name) else None
            if not state.state.is_followed:
                return None
            if self._generations.outdated(state):
                return NOT_YET
            latest = latest_schema(state)
            possible = self._shapes.history.possible(state, relation, after_lsn=at.through_lsn)
            return latest if latest is not None and possible == [latest] else NOT_YET

    def keeps_values_out(self, relation: RelationVersion, at: Moment) -> bool:
        """Whether column rules may concern the table of `relation`, in whatever shape it may be."""
        with self._register.at(at):
            return self._generations.may_have_rules(relation)

    def selected(self, schema_name: str, table_name: str) -> bool:
        """Whether configuration asks for a table of this name."""
        return self._generations.paths.selected(schema_name, table_name)

    def selects(self, facts: TableFacts, known: TableState | None) -> bool:
        """Likewise for a table that may be carried already, under another name."""
        return self._generations.paths.selects(facts, known)

    def wants_to_move(self, state: TableState, at: Moment) -> bool:
        """Whether the lake table is to move to the path of the table's name, once it may be read again."""
        with self._register.at(at):
            return self._generations.paths.moves(state)

    def gives_way(self, other: TableState, facts: TableFacts) -> bool:
        """Whether it has the name of the table that `facts` describe, or the lake path of that name."""
        return self._generations.paths.gives_way(other, facts)

    def policy(self, state: TableState) -> TablePolicy:
        """What is configured for the table."""
        return self._generations.policy(state)

    def doubt(self, oid: int) -> None:
        """A look has facts of the table: until they are judged, nothing more is confirmed of it."""
        self._shapes.history.doubt(oid)

    # the stream

    def _rows_came(self, rows: events.RowsCame) -> TableSchema | None:
        relation = rows.relation
        schema = self._version_of(rows)
        state = self._register.state(relation.oid)
        if (schema is None and (state is None or not state.state.is_followed)) or (
            schema and state and schema.version == state.schema_version
        ):
            # An older version is right for one place in the log only: further on it is a column dropped again.
            self._resolved[relation] = schema
        self._shapes.history.passed(relation.oid, rows.reaches_lsn)
        return schema

    def _version_of(self, rows: events.RowsCame) -> TableSchema | None:
        relation = rows.relation
        state = self._register.state(relation.oid)
        if state is None:
            if self.selected(relation.schema, relation.name):
                return self._generations.join(relation, self._register.facts(relation.oid))
            name = f"{relation.schema}.{relation.name}"
            self._register.say("info", "rows of a table that is not selected are left out", table=name)
            return None
        if not state.state.is_followed:
            return None
        policy = self._generations.policy(state)
        find = partial(self._shapes.version_of, relation, state, policy, position_lsn=rows.position_lsn, xid=rows.xid)
        return self._generations.follow(relation.oid, state, rows.position_lsn, find)

    def _open_rows_committed(self, rows: events.OpenRowsCommitted) -> bool:
        at, oid = rows.position_lsn, rows.relation.oid
        now = self.version_again(rows.relation, position_lsn=at, reaches_lsn=at + 1)
        if now == NOT_YET:
            now = self._rows_came(events.RowsCame(rows.relation, at, at + 1, rows.xid))
        if now is None or now.version == rows.schema.version:
            return now is not None
        what = (
            f"a transaction that was open when the table came to schema version {now.version} had written "
            f"rows in version {rows.schema.version}"
        )
        self._generations.mark_stale(oid, what, lsn=at, cause=Cause.SCHEMA)
        return False

    def _value_lost(self, lost: events.ValueLost) -> None:
        state, at = self._register.state(lost.oid), self._register.through_lsn if lost.lsn is None else lost.lsn
        if state is not None and (lost.lsn is None or lost.lsn >= state.lsn):
            self._generations.mark_stale(lost.oid, lost.reason, lsn=at, cause=Cause.VALUE)

    # the catalog

    def _catalog_seen(self, seen: events.CatalogSeen) -> bool:
        facts = seen.facts
        known, now = seen.before.get(str(facts.oid)), self._register.state(facts.oid)
        if now is not None and now.state == State.SNAPSHOT:
            self._examined[facts.oid] = facts, seen.wal_end
        # Each entry counts what waits for a table that is paused.
        if now is not known and (now is None or known is None or replace(now, paused=known.paused) != known):
            return False
        self._looks.take(facts, seen.wal_end, seen.before)
        now = self._register.state(facts.oid)
        return now is None or not differs(now, facts)

    # snapshots

    def _snapshot_due(self, facts: TableFacts) -> TableSchema | None:
        schema = self._generations.prepare(facts)
        if schema is not None:
            self._prepared[facts.oid] = self._register.states()[str(facts.oid)].generation
        return schema

    def _snapshot_read(self, entry: Snapshot) -> bool:
        oid = int(entry.table_id)
        state = self._register.state(oid)
        if state is None or state.state != State.SNAPSHOT or state.generation != entry.generation:
            return False
        if state.snapshot is None and self._prepared.get(oid) != entry.generation:
            return False
        if self._generations.outdated(state):
            return False
        examined = self._examined.get(oid)
        if entry.final and examined is not None:
            facts, wal_end = examined
            if compare(entry.relfilenode, entry.fingerprint, facts) is not None:
                return False
            # It is not live without a shape that was seen: no row may ever announce it.
            entry = replace(entry, awaits_shape=self._looks.awaits(facts, state, wal_end))
        self._register.publish_snapshot(entry, first=state.snapshot is None)
        if entry.final:
            self._generations.stale.taken(oid)
        return True

    def _snapshot_delayed(self, delayed: events.SnapshotDelayed) -> None:
        state, why = self._register.state(delayed.oid), Reason(ReasonCode.SNAPSHOT_WAITS, {"what": delayed.what})
        if state is not None and state.state == State.SNAPSHOT and state.why != why:
            self._register.become(state, state.state, why, cause=state.cause)

    def _snapshot_refused(self, refused: events.SnapshotRefused) -> None:
        state = self._register.state(refused.facts.oid)
        if state is not None and state.generation == refused.generation and state.state.is_followed:
            self._generations.stale.refused(refused.facts.oid)
            self._generations.quarantine(refused.facts, state, Reason.of(Cause.UNREADABLE, refused.what))

    # requests

    def _pause_asked(self, asked: events.PauseAsked) -> bool:
        state = self._register.states().get(asked.table_id)
        if state is not None and (state.paused is not None) != asked.paused:
            event = "table paused" if asked.paused else "table resumed"
            self._register.say("info", event, table=f"{state.schema_name}.{state.table_name}")
            self._register.pause(state, paused=asked.paused)
        return state is not None

    def _described(self, seen: events.Described) -> bool:
        state = self._register.state(seen.oid)
        latest = latest_schema(state) if state is not None else None
        if state is None or latest is None or state.state == State.DETACHED:
            return False
        described = seen.description.under(latest)
        if described != state.described:
            self._register.describe(state, described)
        return True

    def _forget(self, oid: int) -> None:
        """A generation ended or began: what was found out about its rows no longer holds."""
        self._resolved = {relation: schema for relation, schema in self._resolved.items() if relation.oid != oid}
        self._looks.forget(oid)
        self._examined.pop(oid, None)

"""Every table of a pipeline, and what becomes of each: one event after the other, in the order in which they are
given. Pure.

Invariant: a row is encoded in a schema version that the manifest holds before the row, or with it; a change of shape
that the lake cannot follow turns the table stale in the manifest before any later row of it is dropped.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial, singledispatchmethod
from typing import Any, cast

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.reasons import Reason, ReasonCode, unpublished
from sluice.contract.resyncs import Cause
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.protocol.messages import RelationVersion
from sluice.tables import events
from sluice.tables.catalog_diff import Unseen, compare
from sluice.tables.catalog_seen import CatalogJudge
from sluice.tables.column_changes import unhealed, version_of
from sluice.tables.column_policy import rules_differ
from sluice.tables.events import Answer, Decided, Event, Moment, NeedFacts
from sluice.tables.generations import Generations
from sluice.tables.policies import Policies
from sluice.tables.register import TableRegister, Unanswered, as_it_is, differs
from sluice.tables.schemas import relation_of
from sluice.tables.shape_history import NOT_YET, NotYet, ShapeHistory


class TableLives:
    """Every table of the pipeline, by oid. What the manifest has of them comes with each event; here is what was found
    out about rows since the process began.
    """

    def __init__(self, patterns: tuple[str, ...], policies: Policies) -> None:
        self._register = TableRegister(events.Configured(patterns, policies))
        self._answer_to: Callable[[Event[Any]], object] = self._answer  # which is made anew each time it is asked for
        self._generations = Generations(self._register)
        self._looks = CatalogJudge(self._register, self._generations)
        self._examined: dict[int, tuple[int, int, TableFacts, int]] = {}
        """By oid, of tables whose rows are being read: in which generation and version, and what a look has found,
        when.
        """
        self._prepared: dict[int, int] = {}
        """By oid, the newest generation whose rows may be read: what began it waits for nothing of the stream."""

    @property
    def configured(self) -> events.Configured:
        """What holds now."""
        return self._register.configured

    @property
    def history(self) -> ShapeHistory:
        """What was found out about rows since the connection began."""
        return self._register.history

    def decide(self, event: Event[Answer], at: Moment) -> Decided[Answer] | NeedFacts:
        """What `event` means at the moment `at`. After NeedFacts nothing has changed, here or there: the event is given
        again, at a moment with the answer.
        """
        with self._register.at(at) as decisions:
            try:
                answer = self._answer_to(event)
            except Unanswered as missing:
                return NeedFacts(missing.oid)
        return Decided(cast("Answer", answer), tuple(decisions))

    @singledispatchmethod
    def _answer(self, event: Event[Any]) -> object:
        raise TypeError(f"{type(event).__name__} is no event of a table's life")

    # what is asked without deciding anything

    def written_in(self, relation: RelationVersion, at: Moment) -> TableSchema | NotYet | None:
        """The schema version in which rows of a transaction that may still roll back can be written
        now; None when the table is not carried.

        NOT_YET for a shape that the manifest does not have: what it is shows when the transaction
        has committed, in the catalog no sooner than there.
        """
        with self._register.at(at):
            state = self._register.state(relation.oid)
            if state is None:
                return NOT_YET if self.configured.selected(relation.schema, relation.name) else None
            if not state.state.is_followed:
                return None
            if rules_differ(state, self._register.policy(state)):
                return NOT_YET
            possible = self.history.possible(state, relation, after_lsn=at.through_lsn)
            return state.latest if state.latest is not None and possible == [state.latest] else NOT_YET

    # settings

    @_answer.register
    def _configured(self, configured: events.Configured) -> None:
        self._register.configured = configured
        self.history.resolved = {}

    # the stream

    @_answer.register
    def _connection_ended(self, _: events.ConnectionEnded) -> None:
        self._register.history = self.history.begun_again()

    @_answer.register
    def _rows_came(self, rows: events.RowsCame) -> TableSchema | None:
        return self._resolve(rows)

    def _resolve(self, rows: events.RowsCame) -> TableSchema | None:
        relation = rows.relation
        schema = self._version_of(rows)
        state = self._register.state(relation.oid)
        if (schema is None and (state is None or not state.state.is_followed)) or (
            schema and state and schema.version == state.schema_version
        ):
            # An older version is right for one place in the log only: further on it is a column dropped again.
            self.history.resolved[relation] = schema
        self.history.passed(relation.oid, rows.reaches_lsn)
        return schema

    def _version_of(self, rows: events.RowsCame) -> TableSchema | None:
        relation = rows.relation
        state = self._register.state(relation.oid)
        if state is None:
            if self.configured.selected(relation.schema, relation.name):
                return self._generations.join(relation, self._register.facts(relation.oid))
            name = f"{relation.schema}.{relation.name}"
            self._register.say("info", "rows of a table that is not selected are left out", table=name)
            return None
        if not state.state.is_followed:
            return None
        return self._generations.follow(state, rows.position_lsn, partial(version_of, self._register, rows, state))

    @_answer.register
    def _open_rows_committed(self, rows: events.OpenRowsCommitted) -> bool:
        at, oid = rows.position_lsn, rows.relation.oid
        now = self.history.version_again(rows.relation, position_lsn=at, reaches_lsn=at + 1, xid=rows.xid)
        if now == NOT_YET:
            now = self._resolve(events.RowsCame(rows.relation, at, at + 1, rows.xid, rows.columns_said))
        if now is None or now.version == rows.schema.version:
            return now is not None
        what = (
            f"a transaction that was open when the table came to schema version {now.version} had written "
            f"rows in version {rows.schema.version}"
        )
        self._generations.mark_stale(oid, Unseen(Cause.SCHEMA, what), lsn=at)
        return False

    @_answer.register
    def _value_lost(self, lost: events.ValueLost) -> None:
        state, at = self._register.state(lost.oid), lost.position_lsn
        if state is not None and (at is None or at >= state.lsn):
            lsn = self._register.through_lsn if at is None else at
            self._generations.mark_stale(lost.oid, Unseen(Cause.VALUE, lost.reason), lsn=lsn)

    @_answer.register
    def _equality_lost(self, lost: events.EqualityLost) -> None:
        self._generations.mark_stale(lost.oid, lost.unseen, lsn=lost.lsn, generation=lost.generation)

    # the catalog

    @_answer.register
    def _table_gone(self, gone: events.TableGone) -> None:
        self._generations.detach(gone.oid, gone.why)

    @_answer.register
    def _look_ended(self, look: events.LookEnded) -> None:
        self.history.confirm(look.before_lsn, look.visible)

    @_answer.register
    def _catalog_seen(self, seen: events.CatalogSeen) -> bool:
        facts = seen.facts
        known, now = seen.before.get(str(facts.oid)), self._register.state(facts.oid)
        if now is not None and now.state == State.SNAPSHOT:
            self._examined[facts.oid] = now.generation, now.schema_version, facts, seen.wal_end
        # Each entry counts what waits for a table that is paused.
        if now is not known and (now is None or known is None or replace(now, paused=known.paused) != known):
            return False
        self._looks.take(seen)
        now = self._register.state(facts.oid)
        return now is None or not differs(now, facts)

    @_answer.register
    def _described(self, seen: events.Described) -> bool:
        state = self._register.state(seen.oid)
        if state is None or state.latest is None or state.state == State.DETACHED:
            return False
        described = seen.description.under(state.latest)
        if described != state.described:
            self._register.append(replace(as_it_is(state), described=described))
        return True

    # snapshots

    @_answer.register
    def _snapshot_due(self, due: events.SnapshotDue) -> TableSchema | None:
        schema = self._prepare(due.facts)
        if schema is not None:
            self._prepared[due.oid] = self._register.states()[str(due.oid)].generation
        return schema

    def _prepare(self, facts: TableFacts) -> TableSchema | None:
        generations = self._generations
        state = generations.named(facts)
        if state is None or state.state != State.SNAPSHOT:
            return None
        if not facts.published:
            generations.detach(facts.oid, unpublished(facts.publication))
            return None
        if generations.refuses(facts, state):
            return None
        unchanged = generations.shape(facts, state) is state.latest
        # Rows may have brought another shape since whoever reads compared its chunks with the newest one.
        joins = state.snapshot is None or state.snapshot.schema_version == state.schema_version
        return state.latest if unchanged and joins else generations.begin(facts, state, None)

    @_answer.register
    def _snapshot_read(self, read: events.SnapshotRead) -> bool:
        oid, entry = read.oid, read.entry
        state = self._register.state(oid)
        if state is None or state.state != State.SNAPSHOT or state.generation != entry.generation:
            return False
        if state.snapshot is None and self._prepared.get(oid) != entry.generation:
            return False
        if rules_differ(state, self._register.policy(state)):
            return False
        examined = self._examined.get(oid)
        if entry.final and examined is not None and examined[0] == entry.generation:
            _, version, facts, wal_end = examined
            if compare(entry.relfilenode, entry.fingerprint, facts) is not None:
                return False
            # It is not live without a shape that was seen: no row may ever announce it.
            entry = replace(entry, awaits_shape=self._looks.awaits(facts, state, wal_end))
            if version != state.schema_version:  # that shape may have come and gone: another look says where it is
                self.history.awaited.pop(oid, None)
        if state.snapshot is not None:  # the first entry says what is read, and under which facts
            entry = replace(entry, relations=(), fingerprint=entry.fingerprint if entry.final else "")
        self._register.append(entry)
        if entry.final:
            self._generations.stale.taken(oid)
        return True

    @_answer.register
    def _snapshot_spoiled(self, spoiled: events.SnapshotSpoiled) -> None:
        facts, stale, state = spoiled.facts, self._generations.stale, self._register.state(spoiled.oid)
        if state is None or (state.state, state.generation) != (State.SNAPSHOT, spoiled.generation):
            return
        unseen = unhealed(state, facts, self._register.policy(state)) or spoiled.unseen
        waits = unseen.cause != Cause.INTERRUPTED and stale.must_wait(state, unseen.cause)
        if not unseen.cause.heals or waits:
            self._generations.mark_stale(spoiled.oid, unseen, lsn=self._register.through_lsn)
        elif self._generations.begin(facts, state, unseen) is not None:
            self._register.say("warning", "the snapshot begins again", table=facts.qualified_name, reason=unseen.reason)

    @_answer.register
    def _snapshot_delayed(self, delayed: events.SnapshotDelayed) -> None:
        state, why = self._register.state(delayed.oid), Reason(ReasonCode.SNAPSHOT_WAITS, {"what": delayed.what})
        if state is not None and state.state == State.SNAPSHOT and state.why != why:
            self._register.become(state, state.state, why, cause=state.cause)

    @_answer.register
    def _snapshot_refused(self, refused: events.SnapshotRefused) -> None:
        state = self._register.state(refused.oid)
        if state is not None and state.generation == refused.generation and state.state.is_followed:
            self._generations.stale.refused(refused.oid)
            self._generations.quarantine(refused.facts, state, Reason.of(Cause.UNREADABLE, refused.what))

    # requests

    @_answer.register
    def _snapshot_asked(self, asked: events.SnapshotAsked) -> bool:
        state = self._register.state(asked.oid)
        if state is None:
            return self._generations.join(relation_of(asked.facts), asked.facts) is not None
        why = Unseen(Cause.REQUEST, "an operator asked for it")
        return state.state != State.SNAPSHOT and self._generations.begin(asked.facts, state, why) is not None

    @_answer.register
    def _pause_asked(self, asked: events.PauseAsked) -> bool:
        state = self._register.state(asked.oid)
        if state is not None and (state.paused is not None) != asked.paused:
            event = "table paused" if asked.paused else "table resumed"
            self._register.say("info", event, table=state.source_name)
            self._register.append(replace(as_it_is(state), paused=asked.paused))
        return state is not None

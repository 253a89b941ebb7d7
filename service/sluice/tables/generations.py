"""The generations of followed tables: how a table joins, when its next generation begins, and what ends
one. Pure.

Invariant: a generation begins with an entry that says why, and only for a table that can be carried.
One that ends for any other reason ends in the manifest first: stale, quarantined or detached, by name.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.conditions import refusal_of
from sluice.contract.entries import Table
from sluice.contract.reasons import DROPPED, Reason, ReasonCode, sentence
from sluice.contract.resyncs import Cause
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.manifest.values import TableState
from sluice.protocol.messages import RelationVersion
from sluice.tables import messages as messagetable
from sluice.tables.catalog_diff import Unseen
from sluice.tables.column_changes import CannotFollow, unhealed
from sluice.tables.column_policy import ruled_root, under_policy
from sluice.tables.lake_paths import next_path
from sluice.tables.policies import TablePolicy
from sluice.tables.register import TableRegister, as_it_is, as_seen
from sluice.tables.schemas import build_schema, relation_of
from sluice.tables.stale import StaleTables


class Generations:
    def __init__(self, register: TableRegister) -> None:
        self._register = register
        self.stale = StaleTables(register)

    def _policy_of(self, facts: TableFacts) -> TablePolicy:
        """Under the name that the catalog has for the table now. Its state may have an older one, whose rules the
        table was renamed away from.
        """
        return self._register.configured.policies.of(facts.schema, facts.name)

    def join(
        self, relation: RelationVersion, facts: TableFacts | None, before: Iterable[TableState] = ()
    ) -> TableSchema | None:
        """The first generation of a table. None when the table cannot be carried. `before` are the states of tables
        from before the look that found it.
        """
        if facts is not None:
            relation = replace(relation, schema=facts.schema, name=facts.name)
            self._clear_name(facts)
        states, policies = self._register.states(), self._register.configured.policies
        name = (relation.schema, relation.name)
        policy, path = policies.of(*name), next_path(relation.oid, name, None, self._register.taken(), policies)
        schema = under_policy(build_schema(relation, facts, None, 1), None, policy)
        why: Reason | None = DROPPED
        state = State.DETACHED
        if facts is not None:
            root = ruled_root(facts, (*before, *states.values()), policy.ruled)
            if not policy.rules:
                # What its rows had to be kept from outlasts that it is a partition.
                schema = replace(schema, rules_of=policy.rules_of(facts, None).of_root or root)
            why = refusal_of(schema) or policy.refusal(facts, None, root=root)
            state = State.QUARANTINED if why else State.SNAPSHOT
        lsn = self._register.wal_end()
        entry = Table(str(relation.oid), *name, state, generation=1, why=why, lsn=lsn, schema=schema, path=path)
        self._register.append(as_seen(entry, facts) if facts is not None else entry)
        if state == State.SNAPSHOT:
            self._register.say("info", "table joined", table=schema.qualified_name, path=path)
            return schema
        self._register.say("error", "table cannot be carried", table=schema.qualified_name, reason=entry.reason)
        return None

    def begin(self, facts: TableFacts, state: TableState, why: Unseen | None) -> TableSchema | None:
        """The next generation, to be read because of `why`; without it the generation before was not read either, and
        this one does not count. None, and quarantined, when the table cannot be carried.
        """
        if self.refuses(facts, state):
            return None
        schema = self.shape(facts, state)
        self._register.history.forget(facts.oid)
        name, policies = (facts.schema, facts.name), self._register.configured.policies
        entry = Table(
            state.table_id,
            *name,
            State.SNAPSHOT,
            state.generation + 1,
            why=Reason.of(why.cause, why.reason) if why else None,
            lsn=self._register.wal_end(),
            schema=None if schema == state.latest else schema,
            cause=why.cause if why else "",
            path=next_path(facts.oid, name, state, self._register.taken(), policies),
        )
        self._register.append(as_seen(entry, facts))
        return schema

    def shape(self, facts: TableFacts, state: TableState) -> TableSchema:
        """That of a generation which begins now: the newest one, if nothing has changed."""
        latest = state.latest
        schema = build_schema(relation_of(facts), facts, latest, state.next_version, begins=True)
        schema = under_policy(schema, latest, self._policy_of(facts))
        return latest if latest is not None and replace(schema, version=latest.version) == latest else schema

    def heal(self, facts: TableFacts) -> None:
        """Begins the next generation of a stale table, when it is time."""
        state = self._register.state(facts.oid)
        if state is None or state.state != State.STALE or not self.stale.is_due(state):
            return
        if (lost := unhealed(state, facts, self._register.policy(state))) is not None:
            self.stale.lose(state, lost, lsn=state.lsn)
        else:
            self.begin(facts, state, Unseen(Cause(state.cause), state.why.what if state.why else ""))

    def lose(self, oid: int, unseen: Unseen, facts: TableFacts | None, *, lsn: int) -> None:
        """The table is stale, or read again at once under `facts`, if the catalog has it still."""
        self.mark_stale(oid, unseen, lsn=lsn)
        if facts is not None and facts.published:
            self.heal(facts)

    def follow(
        self, state: TableState, position_lsn: int, find: Callable[[], TableSchema | None]
    ) -> TableSchema | None:
        """The schema version that `find` finds for rows from `position_lsn` on. Without one that can be followed the
        table is lost.
        """
        try:
            return find()
        except CannotFollow as reason:
            self._register.note_schema_change("other", "stale")
            self.lose(int(state.table_id), reason.unseen, reason.facts, lsn=position_lsn)
            return None

    def mark_stale(self, oid: int, unseen: Unseen, *, lsn: int, generation: int | None = None) -> None:
        """See EqualityLost."""
        state = self._register.state(oid)
        if state is not None and state.state.is_followed and generation in (None, state.generation):
            self.stale.lose(state, unseen, lsn=lsn)
            self._register.history.forget(oid)

    def refuses(self, facts: TableFacts, state: TableState) -> bool:
        """Whether the table cannot be carried under `facts`: it is quarantined then."""
        why = self._policy_of(facts).refusal(facts, state.latest)
        if why is not None:
            self.quarantine(facts, state, why)
        return why is not None

    def quarantine(self, facts: TableFacts, state: TableState, why: Reason) -> None:
        """The table cannot be carried."""
        self._register.history.forget(facts.oid)
        if (state.state, state.why) != (State.QUARANTINED, why):
            self._register.say("error", "table cannot be carried", table=facts.qualified_name, reason=why.what)
        entry = replace(as_it_is(state), state=State.QUARANTINED, why=why, lsn=self._register.through_lsn)
        self._register.append(as_seen(entry, facts))

    def detach(self, oid: int, why: Reason | None) -> None:
        """See TableGone."""
        state = self._register.state(oid)
        if state is None:  # rows said that there is one, and their connection ended before they were stored
            return
        if state.state == State.DETACHED:
            is_gone = state.why is not None and state.why.code == ReasonCode.DROPPED
            if state.why != why and not (state.is_forgotten or (why is not None and is_gone)):
                self._register.become(state, State.DETACHED, why)
        else:
            said = sentence(why, State.DETACHED, state.source_name)
            self._register.say("warning", "table detached", table=state.source_name, reason=said)
            self._register.become(state, State.DETACHED, why, lsn=self._register.through_lsn)
            self._register.history.forget(oid)

    def named(self, facts: TableFacts) -> TableState | None:
        """The state of a table, under the name that the catalog has for it now. Whoever had that name
        before is gone or has another one, too.
        """
        state, name = self._register.state(facts.oid), facts.qualified_name
        if state is not None and (state.schema_name, state.table_name) != (facts.schema, facts.name):
            self._register.say("info", "table renamed", table=state.source_name, name=name, path=state.path)
            self._register.append(replace(as_it_is(state), schema_name=facts.schema, table_name=facts.name))
            self._clear_name(facts)
        return self._register.state(facts.oid)

    def _clear_name(self, facts: TableFacts) -> None:
        for other in tuple(self._register.states().values()):
            oid = int(other.table_id)
            has_name = (other.schema_name, other.table_name) == (facts.schema, facts.name)
            if not has_name or other.state == State.DETACHED or oid in (facts.oid, int(messagetable.TABLE_ID)):
                continue
            found = self._register.facts(oid)
            if found is None:
                self.detach(oid, DROPPED)
            else:
                self.named(found)

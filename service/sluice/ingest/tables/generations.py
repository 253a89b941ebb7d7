"""The generations of followed tables: how a table joins, when its next generation begins, and what ends
one. For FollowedTables, under its lock.

Invariant: a generation begins with an entry that says why, and only for a table that can be carried.
One that ends for any other reason ends in the manifest first: stale, quarantined or detached, by name.
"""

from collections.abc import Callable
from dataclasses import replace

import structlog

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.conditions import refusal
from sluice.contract.reasons import DROPPED, Reason, ReasonCode, sentence
from sluice.contract.resyncs import Cause
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.ingest.tables.automatic_resyncs import AutomaticResyncs, Clock
from sluice.ingest.tables.catalog_diff import Unseen
from sluice.ingest.tables.lake_paths import LakePaths
from sluice.ingest.tables.policies import Policies, TablePolicy
from sluice.ingest.tables.register import TableRegister, latest_schema
from sluice.ingest.tables.schemas import build_schema, relation_of
from sluice.ingest.tables.shapes import contracted, first_entry, step
from sluice.manifest.values import TableState
from sluice.protocol.messages import RelationVersion

Lookup = Callable[[int], TableFacts | None]


class Generations:
    """`lookup` and `wal_end` are those of FollowedTables. `on_end` is called with the oid of each table
    whose generation ends or begins: what was found out about its rows no longer holds.
    """

    def __init__(
        self,
        register: TableRegister,
        policies: Policies,
        patterns: tuple[str, ...],
        *,
        lookup: Lookup,
        wal_end: Callable[[], int],
        clock: Clock,
        on_end: Callable[[int], None],
    ) -> None:
        self._register = register
        self.resyncs = AutomaticResyncs(register, policies, clock=clock)
        self.paths = LakePaths(register, policies, patterns)
        self._lookup = lookup
        self._wal_end = wal_end
        self._on_end = on_end
        self._logger = structlog.get_logger("tables")

    def configure(self, patterns: tuple[str, ...], policies: Policies) -> None:
        """From now on these hold."""
        self.resyncs.policies = self.paths.policies = policies
        self.paths.patterns = patterns

    def policy(self, state: TableState) -> TablePolicy:
        return self.resyncs.policies.of(state.schema_name, state.table_name)

    def join(self, relation: RelationVersion, facts: TableFacts | None) -> TableSchema | None:
        """The first generation of a table. None when the table cannot be carried."""
        if facts is not None:
            relation = replace(relation, schema=facts.schema, name=facts.name)
            self._clear_name(facts)
        path = self.paths.path(relation.oid, relation.schema, relation.name, None)
        policy = self.resyncs.policies.of(relation.schema, relation.name)
        entry = first_entry(relation, facts, policy, lsn=self._wal_end(), path=path)
        self._register.join(entry)
        name = f"{relation.schema}.{relation.name}"
        if entry.state == State.SNAPSHOT:
            self._logger.info("table joined", table=name, path=path)
        else:
            self._logger.error("table cannot be carried", table=name, reason=entry.reason)
        return entry.schema if entry.state == State.SNAPSHOT else None

    def begin(self, facts: TableFacts, state: TableState, why: Unseen | None) -> TableSchema | None:
        """The next generation, to be read because of `why`. None, and quarantined, when the table
        cannot be carried.
        """
        if self.refuses(facts, state):
            return None
        latest = latest_schema(state)
        schema = build_schema(relation_of(facts), facts, latest, state.next_version, begins=True)
        schema = contracted(schema, latest, self.policy(state))
        if latest is not None and replace(schema, version=latest.version) == latest:
            schema = latest
        self._on_end(facts.oid)
        self._register.begin(
            facts,
            schema,
            generation=state.generation + 1,
            lsn=self._wal_end(),
            path=self.paths.path(facts.oid, facts.schema, facts.name, state),
            cause=why.cause if why else None,
            what=why.reason if why else "",
        )
        return schema

    def heal(self, facts: TableFacts) -> None:
        """Begins the next generation of a stale table, when it is time."""
        state = self._register.state(facts.oid)
        if state is None or state.state != State.STALE or not self.resyncs.is_due(state):
            return
        lost = step(state, relation_of(facts), facts, self.policy(state)).lost
        if lost is not None and not lost.cause.heals:
            self.resyncs.lose(state, lost.reason, cause=lost.cause, lsn=state.lsn)
        else:
            self.begin(facts, state, self.resyncs.why(state))

    def lose(self, facts: TableFacts | None, unseen: Unseen, *, lsn: int, oid: int = 0) -> None:
        """The table is stale, or read again at once."""
        self.mark_stale(facts.oid if facts else oid, unseen.reason, lsn=lsn, cause=unseen.cause)
        if facts is not None and facts.published:
            self.heal(facts)

    def mark_stale(self, oid: int, reason: str, *, lsn: int, cause: Cause, generation: int | None = None) -> None:
        """See FollowedTables."""
        state = self._register.state(oid)
        if state is not None and state.state.is_followed and generation in (None, state.generation):
            self.resyncs.lose(state, reason, cause=cause, lsn=lsn)
            self._on_end(oid)

    def refuses(self, facts: TableFacts, state: TableState) -> bool:
        """Whether the table cannot be carried under `facts`: it is quarantined then."""
        why = refusal(facts, accept_missing=self.policy(state).accept_missing)
        if why is not None:
            self.quarantine(facts, state, why)
        return why is not None

    def quarantine(self, facts: TableFacts, state: TableState, why: Reason) -> None:
        """The table cannot be carried."""
        self._on_end(facts.oid)
        if (state.state, state.why) != (State.QUARANTINED, why):
            self._logger.error("table cannot be carried", table=facts.qualified_name, reason=why.what)
        self._register.become(state, State.QUARANTINED, why, lsn=self._register.through_lsn, facts=facts)

    def detach(self, oid: int, why: Reason | None) -> None:
        """See FollowedTables."""
        state = self._register.states()[str(oid)]
        if state.state == State.DETACHED:
            is_gone = state.why is not None and state.why.code == ReasonCode.DROPPED
            if state.why != why and not (state.is_forgotten or (why is not None and is_gone)):
                self._register.become(state, State.DETACHED, why)
        else:
            name = f"{state.schema_name}.{state.table_name}"
            self._logger.warning("table detached", table=name, reason=sentence(why, State.DETACHED, name))
            self._register.become(state, State.DETACHED, why, lsn=self._register.through_lsn)
            self._on_end(oid)

    def named(self, facts: TableFacts) -> TableState | None:
        """The state of a table, under the name that the catalog has for it now. Whoever had that name
        before is gone or has another one, too.
        """
        state, name = self._register.state(facts.oid), (facts.schema, facts.name)
        if state is not None and (state.schema_name, state.table_name) != name:
            self._register.rename(state, *name)
            self._clear_name(facts)
        return self._register.state(facts.oid)

    def _clear_name(self, facts: TableFacts) -> None:
        for other in self.paths.namesakes(facts.oid, facts.schema, facts.name):
            oid = int(other.table_id)
            found = self._lookup(oid)
            if found is None:
                self.detach(oid, DROPPED)
            else:
                self.named(found)

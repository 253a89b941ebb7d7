"""The tables of a pipeline as ingest sees them: which are carried, in which shape, and when one must be called stale.

Invariant: a row is encoded in a schema version that the manifest already holds, or not at all; a change of shape that the lake cannot follow turns the
table stale in the manifest before any later row of it is dropped. Thread-safe: the decoder, the copier and the catalog watch share it.
"""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final, Literal

import structlog

from service.contract.columns import folded, is_reserved
from service.contract.entries import Table
from service.contract.schema import TableSchema
from service.lsn import show
from service.manifest.log import ManifestLog
from service.manifest.state import TableState
from service.protocol.messages import RelationVersion
from service.runtime import messagetable
from service.source.catalog import TableFacts
from service.source.schemas import build_schema, diff_schema, relation_of, relation_sent_as
from service.source.watch import false_nulls, fingerprint

CARRIED = ("pending", "copying", "live")
"""States whose rows are spooled. Rows of other tables would only be thrown away by the applier."""

NOT_YET: Final = "not yet"

Lookup = Callable[[int], TableFacts | None]


class TableBook:
    """Every table of the pipeline, by oid.

    `lookup` asks the catalog, which knows today's shape only and may be ahead of the stream. `wal_end` asks for the server's position now: a copy that is begun
    now will have whatever committed before it.
    """

    def __init__(self, log: ManifestLog, lookup: Lookup, patterns: tuple[str, ...], *, wal_end: Callable[[], int]) -> None:
        self._log = log
        self._lookup = lookup
        self._patterns = patterns
        self._wal_end = wal_end
        self._lock = threading.RLock()
        self._resolved: dict[RelationVersion, TableSchema | None] = {}
        self.transitions: Counter[str] = Counter()
        """How often tables were put into each state by this process; `schema_changes` by (kind, outcome). For metrics."""
        self.schema_changes: Counter[tuple[str, str]] = Counter()
        self._logger = structlog.get_logger("tables")

    def selected(self, schema_name: str, table_name: str) -> bool:
        """Whether configuration asks for this table; no patterns means every table of the publication."""
        return matches(self._patterns, schema_name, table_name)

    def resolve(self, relation: RelationVersion, *, position_lsn: int) -> TableSchema | None:
        """The schema version in which rows of `relation` are spooled, or None when the table is not carried.

        May append to the manifest: a table that is new, a column that was added, a table that went stale. `position_lsn` is where the first commit record
        of the rows concerned begins. It must be that for every way in which a transaction can come: a position recorded for one of its rows is
        compared with those of its others, and with those of the same rows when they come again.
        """
        if relation == messagetable.RELATION:
            return messagetable.SCHEMA
        with self._lock:
            if relation in self._resolved:
                return self._resolved[relation]
            schema = self._resolve(relation, position_lsn)
            state = self._state(relation.oid)
            if (schema is None and (state is None or state.state not in CARRIED)) or (schema and state and schema.version == state.schema_version):
                # An older version is right for one place in the log only: the same shape further on is a column that was dropped again.
                self._resolved[relation] = schema
            return schema

    def written_in(self, relation: RelationVersion) -> TableSchema | Literal["not yet"] | None:
        """The schema version in which rows of a transaction that may still roll back can be written now; None when the table is not carried.

        NOT_YET for a shape that the manifest does not have: what it is shows when the transaction has committed, in the catalog no sooner than there.
        Records nothing and asks nobody.
        """
        with self._lock:
            state = self._state(relation.oid)
            if state is None:
                return NOT_YET if self.selected(relation.schema, relation.name) else None
            if state.state not in CARRIED:
                return None
            latest = _latest(state)
            same = latest is not None and relation_sent_as(latest) == relation
            return latest if same else NOT_YET

    def still_written_in(self, relation: RelationVersion, schema: TableSchema, *, position_lsn: int) -> bool:
        """Whether rows that were written in `schema` while their transaction was open may be published so, now that it has committed."""
        now = self.resolve(relation, position_lsn=position_lsn)
        if now is None or now.version == schema.version:
            return now is not None
        what = f"a transaction that was open when the table came to schema version {now.version} had written rows in version {schema.version}"
        self.mark_stale(relation.oid, what, lsn=position_lsn)
        return False

    def join(self, facts: TableFacts) -> TableSchema | None:
        """A table that the publication carries: recorded with its first shape, to be copied. Known ones are left as they are."""
        with self._lock:
            state = self._state(facts.oid)
            if state is not None or not self.selected(facts.schema, facts.name):
                return _latest(state) if state else None
            return self._join(relation_of(facts), facts)

    def begin_copy(self, facts: TableFacts) -> TableSchema | None:
        """Opens the next generation of a table whose copy was cut short or asked for again. Returns the shape that the copy will have."""
        with self._lock:
            state = self._log.state.tables[str(facts.oid)]
            version = max(state.schemas, default=0) + 1
            schema = build_schema(relation_of(facts), facts, _latest(state), version)
            latest = _latest(state)
            if latest is not None and replace(schema, version=latest.version) == latest:
                schema = latest
            refusal = _refusal(schema) or false_nulls(facts)
            self._forget(facts.oid)
            if refusal:
                self.mark_stale(facts.oid, refusal, lsn=self._log.state.through_lsn)
                return None
            self._append(facts, schema, state="copying", generation=state.generation + 1, lsn=self._wal_end())
            return schema

    def live(self, oid: int, *, snapshot_lsn: int) -> None:
        """The copy is in the manifest: from `snapshot_lsn` on the stream carries the table."""
        with self._lock:
            state = self._log.state.tables[str(oid)]
            if state.state == "copying":
                self._change(state, state="live", reason="", lsn=snapshot_lsn)

    def mark_stale(self, oid: int, reason: str, *, lsn: int) -> None:
        """The lake copy no longer equals the source, for `reason`; nothing more is spooled for the table until it is copied again.

        A table that is not known yet will be copied after the commit that makes it known, so that nothing of it is missing.
        """
        with self._lock:
            state = self._state(oid)
            if state is not None and state.state in CARRIED:
                self._logger.error("table went stale", table=f"{state.schema_name}.{state.table_name}", reason=reason, lsn=show(lsn))
                remedy = f"`sluice copy {state.schema_name}.{state.table_name}` copies it again"
                self._change(state, state="stale", reason=f"{reason}; {remedy}", lsn=lsn)
                self._forget(oid)

    def detach(self, oid: int, reason: str) -> None:
        """The source no longer publishes the table."""
        with self._lock:
            state = self._log.state.tables[str(oid)]
            if state.state != "detached":
                self._logger.warning("table detached", table=f"{state.schema_name}.{state.table_name}", reason=reason)
                self._change(state, state="detached", reason=reason, lsn=self._log.state.through_lsn)
                self._forget(oid)

    def note_catalog(self, facts: TableFacts) -> None:
        """Records what the catalog watch compares with next time."""
        with self._lock:
            state = self._log.state.tables[str(facts.oid)]
            self._change(state, relfilenode=facts.relfilenode, fingerprint=fingerprint(facts))

    def states(self) -> dict[str, TableState]:
        return self._log.state.tables

    # under the lock

    def _state(self, oid: int) -> TableState | None:
        return self._log.state.tables.get(str(oid))

    def _forget(self, oid: int) -> None:
        self._resolved = {relation: schema for relation, schema in self._resolved.items() if relation.oid != oid}

    def _resolve(self, relation: RelationVersion, position_lsn: int) -> TableSchema | None:
        state = self._state(relation.oid)
        if state is None:
            if not self.selected(relation.schema, relation.name):
                self._logger.info("rows of a table that is not selected are left out", table=f"{relation.schema}.{relation.name}")
                return None
            return self._join(relation, self._lookup(relation.oid))
        if state.state not in CARRIED:
            return None
        if (relation.schema, relation.name) != (state.schema_name, state.table_name):
            reason = f"renamed to {relation.schema}.{relation.name}: the lake table keeps the old name; copy the table again under the new one"
            self.schema_changes["other", "stale"] += 1
            self.mark_stale(relation.oid, reason, lsn=position_lsn)
            return None
        return self._follow(relation, state, position_lsn)

    def _follow(self, relation: RelationVersion, state: TableState, position_lsn: int) -> TableSchema | None:
        latest = _latest(state)
        older = [schema for schema in sorted(state.schemas.values(), key=lambda schema: -schema.version) if same_shape(schema, relation)]
        if older and older[0] is latest:
            return latest
        if position_lsn < state.lsn:
            # Written before the copy was taken: the copy has it, in whatever shape it was.
            return older[0] if older else None
        if older and position_lsn <= state.schema_lsn:
            # Seen before a restart, and its newer shapes with it. One transaction can bring several, so a shape that is not known is a new one even here.
            return older[0]
        facts = self._lookup(relation.oid)
        schema = build_schema(relation, facts, latest, latest.version + 1 if latest else 1)
        if latest is not None:
            difference = diff_schema(latest, schema, facts=facts, old_relfilenode=state.relfilenode)
            if difference.kind == "unsupported":
                self.schema_changes["other", "stale"] += 1
                self.mark_stale(relation.oid, difference.reason, lsn=position_lsn)
                return None
            if difference.kind == "same":
                return latest
        refusal = _refusal(schema)
        if latest is not None:
            self.schema_changes[difference.kind, "stale" if refusal else "followed"] += 1
        if refusal:
            self.mark_stale(relation.oid, refusal, lsn=position_lsn)
            return None
        self._logger.info("schema changed", table=schema.qualified_name, version=schema.version, lsn=show(position_lsn))
        self._change(state, schema=schema, lsn=position_lsn)
        self._forget(relation.oid)
        return schema

    def _join(self, relation: RelationVersion, facts: TableFacts | None) -> TableSchema | None:
        schema = build_schema(relation, facts, None, 1)
        entry = Table(str(relation.oid), relation.schema, relation.name, state="copying", generation=1, lsn=self._wal_end(), schema=schema)
        if facts is None:
            self._log.append(replace(entry, state="detached", reason="dropped at the source before it could be copied"))
            self.transitions["detached"] += 1
            return None
        refusal = _refusal(schema) or false_nulls(facts)
        if refusal:
            self._logger.error("table cannot be carried", table=schema.qualified_name, reason=refusal)
            self._log.append(replace(entry, state="quarantined", reason=refusal, relfilenode=facts.relfilenode, fingerprint=fingerprint(facts)))
            self.transitions["quarantined"] += 1
            return None
        self._logger.info("table joined", table=schema.qualified_name, key=[column.name for column in schema.key_columns])
        if not schema.key_columns and schema.replica_identity != "f":
            self._logger.warning(
                "table has no key and no full identity: kept as an append-only changelog, and the source refuses its updates and deletes",
                table=schema.qualified_name,
            )
        self._log.append(replace(entry, relfilenode=facts.relfilenode, fingerprint=fingerprint(facts)))
        self.transitions[entry.state] += 1
        return schema

    def _append(self, facts: TableFacts, schema: TableSchema, *, state: str, generation: int, lsn: int) -> None:
        known = self._log.state.tables[str(facts.oid)].schemas.get(schema.version)
        self._log.append(
            Table(
                str(facts.oid),
                facts.schema,
                facts.name,
                state=state,
                generation=generation,
                lsn=lsn,
                schema=None if known == schema else schema,
                relfilenode=facts.relfilenode,
                fingerprint=fingerprint(facts),
            )
        )
        self.transitions[state] += 1

    def _change(self, table: TableState, **changes: object) -> None:
        entry = Table(
            table.table_id,
            table.schema_name,
            table.table_name,
            state=table.state,
            generation=table.generation,
            reason=table.reason,
            lsn=table.lsn,
            relfilenode=table.relfilenode,
            fingerprint=table.fingerprint,
        )
        changed = replace(entry, **changes)  # type: ignore[arg-type]
        self._log.append(changed)
        if changed.state != table.state:
            self.transitions[changed.state] += 1


def matches(patterns: tuple[str, ...], schema_name: str, table_name: str) -> bool:
    """Whether one of `patterns` (`public.*`, `shop.orders`) names the table; no patterns at all name every table."""
    name = f"{schema_name}.{table_name}"
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def _latest(state: TableState) -> TableSchema | None:
    return state.schemas[max(state.schemas)] if state.schemas else None


def same_shape(schema: TableSchema, relation: RelationVersion) -> bool:
    """Whether rows of `relation` are rows of `schema`, as far as the wire can tell. The name is no part of it."""
    ours = relation_sent_as(schema)
    return (ours.replica_identity, ours.columns) == (relation.replica_identity, relation.columns)


def _refusal(schema: TableSchema) -> str:
    """Why a table of this shape cannot be carried at all; empty when it can."""
    if is_reserved(schema.schema_name):
        return f"schema {schema.schema_name!r} has a name that the lake needs for its own tables; rename it at the source"
    reserved = [column.name for column in schema.columns if is_reserved(column.name)]
    if reserved:
        return f"column {reserved[0]!r} has a name that the lake table needs for itself; rename it at the source"
    seen: dict[str, str] = {}
    for column in schema.columns:
        other = seen.setdefault(folded(column.name), column.name)
        if other != column.name:
            return f"columns {other!r} and {column.name!r} differ only by case, which Delta does not allow; rename one at the source"
    return ""

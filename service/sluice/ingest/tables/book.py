"""The tables of a pipeline as ingest sees them: which are carried, in which shape, and when one
must be called stale.

Invariant: a row is encoded in a schema version that the manifest already holds, or not at all; a
change of shape that the lake cannot follow turns the table stale in the manifest before any later
row of it is dropped. Thread-safe: the decoder, the snapshotter and the catalog watch share it.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Literal

import structlog

from sluice.backoff import RetryTime
from sluice.contract.carrying import refusal, refusal_of
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.entries import Snapshot, Table
from sluice.contract.evolution import diff_schema
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.ingest.status import TableCounts
from sluice.ingest.tables import messages as messagetable
from sluice.ingest.tables.catalog_diff import compare, fingerprint
from sluice.ingest.tables.register import TableRegister, differs, latest_schema
from sluice.ingest.tables.schemas import build_schema, relation_of, relation_sent_as, same_shape
from sluice.lsn import show
from sluice.manifest.state import SNAPSHOT_WAITS, TableState, resync_remedy
from sluice.manifest.writer import ManifestLog
from sluice.protocol.messages import RelationVersion
from sluice.source.selection import matches

AWAITED = "its columns changed at the source, and the stream has not come to the position of that change yet"

NOT_YET: Final = "not yet"

RETRY_SECONDS = (5.0, 30.0, 120.0, 600.0)
"""Pauses before a table that the server refused to let be read is tried again; the last one
repeats. Each try costs the source a snapshot.
"""

Lookup = Callable[[int], TableFacts | None]


class TableBook:
    """Every table of the pipeline, by oid.

    `lookup` asks the catalog, which knows today's shape only and may be ahead of the stream.
    `wal_end` asks for the server's position now: a snapshot that is begun now will have whatever
    committed before it.
    """

    def __init__(
        self,
        log: ManifestLog,
        lookup: Lookup,
        patterns: tuple[str, ...],
        *,
        wal_end: Callable[[], int],
        counts: TableCounts | None = None,
    ) -> None:
        self._register = TableRegister(log, counts or TableCounts())
        self._lookup = lookup
        self._patterns = patterns
        self._wal_end = wal_end
        self._lock = threading.RLock()
        self._resolved: dict[RelationVersion, TableSchema | None] = {}
        self._awaited: dict[int, tuple[str, int]] = {}
        """By oid: the facts of a shape that the stream has not come to, and the position of the
        server after they were seen.
        """
        self._refused: dict[int, RetryTime] = {}
        """By oid, when the snapshot of a table may be tried again that the server refused."""
        self._logger = structlog.get_logger("tables")

    def selected(self, schema_name: str, table_name: str) -> bool:
        """Whether configuration asks for this table; no patterns means every table of the
        publication.
        """
        return matches(self._patterns, schema_name, table_name)

    def resolve(self, relation: RelationVersion, *, position_lsn: int) -> TableSchema | None:
        """The schema version in which rows of `relation` are spooled, or None when the table is not
        carried.

        May append to the manifest: a table that is new, a column that was added, a table that went
        stale. `position_lsn` is where the first commit record of the rows concerned begins. It must
        be that for every way in which a transaction can come: a position recorded for one of its
        rows is compared with those of its others, and with those of the same rows when they come
        again.
        """
        if relation == messagetable.RELATION:
            return messagetable.SCHEMA
        with self._lock:
            if relation in self._resolved:
                return self._resolved[relation]
            schema = self._resolve(relation, position_lsn)
            state = self._register.state(relation.oid)
            if (schema is None and (state is None or not state.state.is_followed)) or (
                schema and state and schema.version == state.schema_version
            ):
                # An older version is right for one place in the log only: the same shape further on
                # is a column that was dropped again.
                self._resolved[relation] = schema
            return schema

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
            same = latest is not None and relation_sent_as(latest) == relation
            return latest if same else NOT_YET

    def still_written_in(self, relation: RelationVersion, schema: TableSchema, *, position_lsn: int) -> bool:
        """Whether rows that were written in `schema` while their transaction was open may be
        published so, now that it has committed.
        """
        now = self.resolve(relation, position_lsn=position_lsn)
        if now is None or now.version == schema.version:
            return now is not None
        what = (
            f"a transaction that was open when the table came to schema version {now.version} had written "
            f"rows in version {schema.version}"
        )
        self.mark_stale(relation.oid, what, lsn=position_lsn)
        return False

    def look(self, facts: TableFacts, known: TableState | None, *, wal_end: int) -> None:
        """Takes one look's facts of a published table into account; what was committed when they
        were read ended at or before `wal_end`.

        `known` is the table's state from before the look. One that has changed since is left for
        the next look: the facts may be older than its state.
        """
        with self._lock:
            if self._register.state(facts.oid) is not known:
                return
            if not self.selected(facts.schema, facts.name):
                if known is not None:
                    self.detach(facts.oid, "source.tables no longer selects it")
            elif known is None:
                self._join(relation_of(facts), facts)
            elif known.state.is_followed:
                self._look_at_carried(facts, known, wal_end)
            elif known.state == State.DETACHED or (known.state == State.QUARANTINED and self._may_try(facts, known)):
                self._begin(facts, known)

    def request_snapshot(self, facts: TableFacts) -> bool:
        """Begins the table's next generation, because an operator asks for it. False when its snapshot
        is under way already, or when it cannot be carried.
        """
        with self._lock:
            state = self._register.state(facts.oid)
            if state is None:
                return self._join(relation_of(facts), facts) is not None
            return state.state != State.SNAPSHOT and self._begin(facts, state) is not None

    def prepare_snapshot(self, facts: TableFacts) -> TableSchema | None:
        """The shape in which a table that waits for its rows can be read under `facts`, None when
        it is not to be read (any more).

        A table that changed since it joined begins another generation.
        """
        with self._lock:
            state = self._register.state(facts.oid)
            if state is None or state.state != State.SNAPSHOT:
                return None
            if not facts.published:
                self.detach(facts.oid, "the publication no longer carries it")
                return None
            latest = latest_schema(state)
            if (
                latest is None
                or refusal(facts)
                or build_schema(relation_of(facts), facts, latest, latest.version) != latest
            ):
                return self._begin(facts, state)
            return latest

    def finish_snapshot(self, entry: Snapshot) -> bool:
        """Publishes a whole snapshot, which makes its table live. False when the table has moved on
        meanwhile: then nothing is published.
        """
        with self._lock:
            state = self._register.state(int(entry.table_id))
            if state is None or state.state != State.SNAPSHOT or state.generation != entry.generation:
                return False
            self._register.finish_snapshot(entry)
            self._refused.pop(int(entry.table_id), None)
            return True

    def begin_again(self, facts: TableFacts, *, generation: int, reason: str) -> None:
        """The rows of a snapshot that is under way in `generation` are of no use, for `reason`: begins
        the next one under today's facts.
        """
        with self._lock:
            state = self._register.state(facts.oid)
            if state is not None and (state.state, state.generation) == (State.SNAPSHOT, generation):
                self._logger.warning("the snapshot begins again", table=facts.qualified_name, reason=reason)
                self._begin(facts, state)

    def note_wait(self, oid: int, reason: str) -> None:
        """The snapshot of a table cannot be taken for `reason`, and is tried again. Stored, so that
        whoever looks from outside sees it.
        """
        with self._lock:
            state, reason = self._register.state(oid), f"{SNAPSHOT_WAITS}{reason}"
            if state is not None and state.state == State.SNAPSHOT and state.reason != reason:
                self._register.change(state, reason=reason)

    def quarantine(self, facts: TableFacts, reason: str, *, generation: int) -> None:
        """The server refused to let the table be read, for `reason`, in `generation`. It is tried
        again after a pause, or when its facts are other ones.
        """
        with self._lock:
            state = self._register.state(facts.oid)
            if state is not None and state.generation == generation and state.state.is_followed:
                self._refused.setdefault(facts.oid, RetryTime(RETRY_SECONDS)).failed(time.monotonic())
                self._quarantine(facts, state, reason)

    @property
    def awaiting(self) -> bool:
        """Whether a table's change of shape waits for the stream to come to its position."""
        return any(table.state == State.PENDING for table in self.states().values())

    def mark_stale(self, oid: int, reason: str, *, lsn: int, generation: int | None = None) -> None:
        """The lake table no longer equals the source, for `reason`; nothing more is spooled for the
        table until it is read again from a new snapshot.

        A table that is not known yet will be read after the commit that makes it known, so that
        nothing of it is missing. With `generation`, only while that one is in force.
        """
        with self._lock:
            state = self._register.state(oid)
            if state is not None and state.state.is_followed and generation in (None, state.generation):
                self._logger.error(
                    "table went stale", table=f"{state.schema_name}.{state.table_name}", reason=reason, lsn=show(lsn)
                )
                self._register.change(
                    state,
                    state=State.STALE,
                    reason=f"{reason}; {resync_remedy(state.schema_name, state.table_name)}",
                    lsn=lsn,
                )
                self._forget(oid)

    def mark_all_stale(self, reason: str, *, lsn: int) -> None:
        """Every table whose rows are spooled, that of logical messages too."""
        for state in tuple(self.states().values()):
            self.mark_stale(int(state.table_id), reason, lsn=lsn)

    def detach(self, oid: int, reason: str) -> None:
        """The source no longer publishes the table."""
        with self._lock:
            state = self.states()[str(oid)]
            if state.state != State.DETACHED:
                self._logger.warning("table detached", table=f"{state.schema_name}.{state.table_name}", reason=reason)
                self._register.change(state, state=State.DETACHED, reason=reason, lsn=self._register.through_lsn)
                self._forget(oid)

    def states(self) -> dict[str, TableState]:
        """By table id; a value that does not change."""
        return self._register.states()

    # under the lock

    def _may_try(self, facts: TableFacts, known: TableState) -> bool:
        """Whether the cause of a quarantine may be gone. No condition shows what the server refused
        while a table was read: that is tried again and again.
        """
        if differs(known, facts):
            return True
        refused = self._refused.get(facts.oid)
        return not refusal(facts) and (refused is None or refused.due(time.monotonic()))

    def _look_at_carried(self, facts: TableFacts, known: TableState, wal_end: int) -> None:
        refused = refusal(facts)
        if refused:
            self._quarantine(facts, known, refused)
        elif known.state != State.SNAPSHOT:  # what a snapshot was taken under, its own end compares
            reason = compare(known.relfilenode, known.fingerprint, facts)
            if reason:
                self.mark_stale(facts.oid, reason, lsn=self._register.through_lsn)
                return
            if differs(known, facts):
                self._register.change(known, relfilenode=facts.relfilenode, fingerprint=fingerprint(facts))
            self._follow_catalog(facts, self.states()[known.table_id], wal_end)

    def _follow_catalog(self, facts: TableFacts, state: TableState, wal_end: int) -> None:
        """A shape that no row announces is followed once the stream has passed the position at
        which the catalog was seen to have it.

        Every row that was sent by then is of an older shape, or would have announced this one; and
        none of an older shape can follow, since whoever wrote one held a lock that kept the shape
        from changing until its transaction had ended.
        """
        latest = latest_schema(state)
        relation = relation_of(facts)
        if latest is not None and same_shape(latest, relation):
            self._awaited.pop(facts.oid, None)
            # What the wire does not say of the same shape: the primary key under another identity,
            # which of two columns of one name it is.
            unseen = diff_schema(
                latest,
                build_schema(relation, facts, latest, latest.version),
                facts=facts,
                old_relfilenode=state.relfilenode,
            )
            if unseen.kind == "unsupported":
                self.mark_stale(facts.oid, unseen.reason, lsn=self._register.through_lsn)
                return
            if state.state == State.PENDING:
                self._register.change(state, state=State.LIVE, reason="")
            return
        seen = fingerprint(facts)
        before, position = self._awaited.get(facts.oid, ("", 0))
        if before != seen:
            self._awaited[facts.oid] = (seen, wal_end)
            if state.state == State.LIVE:
                self._logger.info(
                    "columns changed, and no row has announced it yet", table=facts.qualified_name, lsn=show(wal_end)
                )
                self._register.change(state, state=State.PENDING, reason=AWAITED)
        elif self._register.through_lsn >= position:
            # Before every commit that is still to come: those begin at this position or behind it.
            self.resolve(relation, position_lsn=self._register.through_lsn - 1)
            followed = self.states()[state.table_id]
            if followed.state == State.PENDING:
                self._register.change(followed, state=State.LIVE, reason="")

    def _begin(self, facts: TableFacts, state: TableState) -> TableSchema | None:
        """The next generation, to be read. None, and quarantined, when the table cannot be
        carried.
        """
        reason = refusal(facts)
        if reason:
            self._quarantine(facts, state, reason)
            return None
        version = max(state.schemas, default=0) + 1
        latest = latest_schema(state)
        schema = build_schema(relation_of(facts), facts, latest, version)
        if latest is not None and replace(schema, version=latest.version) == latest:
            schema = latest
        self._forget(facts.oid)
        self._register.begin(facts, schema, generation=state.generation + 1, lsn=self._wal_end())
        return schema

    def _quarantine(self, facts: TableFacts, state: TableState, reason: str) -> None:
        self._forget(facts.oid)
        if (state.state, state.reason) != (State.QUARANTINED, reason):
            self._logger.error("table cannot be carried", table=facts.qualified_name, reason=reason)
        lsn = self._register.through_lsn
        self._register.change(
            state,
            state=State.QUARANTINED,
            reason=reason,
            lsn=lsn,
            relfilenode=facts.relfilenode,
            fingerprint=fingerprint(facts),
        )

    def _forget(self, oid: int) -> None:
        self._resolved = {relation: schema for relation, schema in self._resolved.items() if relation.oid != oid}
        self._awaited.pop(oid, None)

    def _resolve(self, relation: RelationVersion, position_lsn: int) -> TableSchema | None:
        state = self._register.state(relation.oid)
        if state is None:
            if not self.selected(relation.schema, relation.name):
                self._logger.info(
                    "rows of a table that is not selected are left out", table=f"{relation.schema}.{relation.name}"
                )
                return None
            return self._join(relation, self._lookup(relation.oid))
        if not state.state.is_followed:
            return None
        if (relation.schema, relation.name) != (state.schema_name, state.table_name):
            reason = (
                f"renamed to {relation.schema}.{relation.name}: the lake table keeps the old name; copy "
                "the table again under the new one"
            )
            self._register.note_schema_change("other", "stale")
            self.mark_stale(relation.oid, reason, lsn=position_lsn)
            return None
        return self._follow(relation, state, position_lsn)

    def _follow(self, relation: RelationVersion, state: TableState, position_lsn: int) -> TableSchema | None:
        latest = latest_schema(state)
        older = [
            schema
            for schema in sorted(state.schemas.values(), key=lambda schema: -schema.version)
            if same_shape(schema, relation)
        ]
        if older and older[0] is latest:
            return latest
        if position_lsn < state.lsn:
            # Written before the snapshot was taken: the snapshot has it, in whatever shape it was.
            return older[0] if older else None
        if older and position_lsn <= state.schema_lsn:
            # Seen before a restart, and its newer shapes with it. One transaction can bring
            # several, so a shape that is not known is a new one even here.
            return older[0]
        facts = self._lookup(relation.oid)
        schema = build_schema(relation, facts, latest, latest.version + 1 if latest else 1)
        if latest is not None:
            difference = diff_schema(latest, schema, facts=facts, old_relfilenode=state.relfilenode)
            if difference.kind == "unsupported":
                self._register.note_schema_change("other", "stale")
                self.mark_stale(relation.oid, difference.reason, lsn=position_lsn)
                return None
            if difference.kind == "same":
                return latest
        refused = refusal_of(schema)
        if latest is not None:
            self._register.note_schema_change(difference.kind, "stale" if refused else "followed")
        if refused:
            self.mark_stale(relation.oid, refused, lsn=position_lsn)
            return None
        self._logger.info("schema changed", table=schema.qualified_name, version=schema.version, lsn=show(position_lsn))
        self._register.change(state, schema=schema, lsn=position_lsn)
        self._forget(relation.oid)
        return schema

    def _join(self, relation: RelationVersion, facts: TableFacts | None) -> TableSchema | None:
        schema = build_schema(relation, facts, None, 1)
        entry = Table(
            str(relation.oid),
            relation.schema,
            relation.name,
            state=State.SNAPSHOT,
            generation=1,
            lsn=self._wal_end(),
            schema=schema,
        )
        if facts is None:
            self._register.join(
                replace(entry, state=State.DETACHED, reason="dropped at the source before its snapshot could be taken")
            )
            return None
        refused = refusal_of(schema) or refusal(facts)
        if refused:
            self._logger.error("table cannot be carried", table=schema.qualified_name, reason=refused)
            self._register.join(
                replace(
                    entry,
                    state=State.QUARANTINED,
                    reason=refused,
                    relfilenode=facts.relfilenode,
                    fingerprint=fingerprint(facts),
                )
            )
            return None
        self._logger.info(
            "table joined", table=schema.qualified_name, key=[column.name for column in schema.key_columns]
        )
        if not schema.key_columns and schema.replica_identity != "f":
            self._logger.warning(
                "table has no key and no full identity: kept as an append-only changelog, and the "
                "source refuses its updates and deletes",
                table=schema.qualified_name,
            )
        self._register.join(replace(entry, relfilenode=facts.relfilenode, fingerprint=fingerprint(facts)))
        return schema

"""What the manifest says of tables, read and appended to.

Invariant: a table's state changes by an entry and in no other way, and each change of state is
counted.
"""

from dataclasses import replace

import structlog

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.entries import Snapshot, Table
from sluice.contract.reasons import Reason, ReasonCode
from sluice.contract.resyncs import Cause
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.ingest.status import TableCounts
from sluice.ingest.tables.catalog_diff import fingerprint
from sluice.lsn import show
from sluice.manifest.state import TableState
from sluice.manifest.writer import ManifestLog


class TableRegister:
    """For FollowedTables, under its lock. Every method that appends raises what `ManifestLog.append`
    raises.
    """

    def __init__(self, log: ManifestLog, counts: TableCounts) -> None:
        self._log = log
        self._counts = counts
        self._logger = structlog.get_logger("tables")

    @property
    def through_lsn(self) -> int:
        """The position through which the manifest is complete."""
        return self._log.state.through_lsn

    def examined(self, lsn: int) -> None:
        """See ManifestLog."""
        self._log.examined(lsn)

    def states(self) -> dict[str, TableState]:
        """By table id; a value that does not change."""
        return self._log.state.tables

    def state(self, oid: int) -> TableState | None:
        return self._log.state.tables.get(str(oid))

    def join(self, entry: Table) -> None:
        """Appends the first entry of a table or of a generation."""
        self._log.append(entry)
        self._counts.transitions[entry.state] += 1

    def begin(
        self,
        facts: TableFacts,
        schema: TableSchema,
        *,
        generation: int,
        lsn: int,
        path: str,
        cause: Cause | None = None,
        what: str = "",
    ) -> None:
        """Begins the next generation of a table: its rows are to be read, because of `what`. Without
        a `cause` the generation before was not read either, and this one does not count.
        """
        known = self._log.state.tables[str(facts.oid)].schemas.get(schema.version)
        self.join(
            Table(
                str(facts.oid),
                facts.schema,
                facts.name,
                state=State.SNAPSHOT,
                generation=generation,
                lsn=lsn,
                schema=None if known == schema else schema,
                relfilenode=facts.relfilenode,
                fingerprint=fingerprint(facts),
                why=Reason.of(cause, what) if cause else None,
                cause=cause or "",
                path=path,
            )
        )
        if cause is not None:
            self._counts.resyncs[cause] += 1

    def change(self, table: TableState, **changes: object) -> None:
        """Appends the table's entry with `changes`."""
        entry = Table(
            table.table_id,
            table.schema_name,
            table.table_name,
            state=table.state,
            generation=table.generation,
            why=table.why,
            lsn=table.lsn,
            relfilenode=table.relfilenode,
            fingerprint=table.fingerprint,
            cause=table.cause,
            resync_at=table.resync_at,
        )
        if changes.get("state", table.state) != table.state:
            changes = {"cause": "", "resync_at": "", **changes}
        changed = replace(entry, **changes)  # type: ignore[arg-type]
        self._log.append(changed)
        if changed.state != table.state:
            self._counts.transitions[changed.state] += 1

    def follow(self, table: TableState, schema: TableSchema, *, lsn: int) -> None:
        """The table has the shape `schema` from `lsn` on."""
        self._logger.info("schema changed", table=schema.qualified_name, version=schema.version, lsn=show(lsn))
        self.change(table, schema=schema, lsn=lsn)

    def await_shape(self, table: TableState, *, lsn: int) -> None:
        """The catalog shows another shape, which the stream reaches at `lsn`."""
        name = f"{table.schema_name}.{table.table_name}"
        self._logger.info("columns changed, and no row has announced it yet", table=name, lsn=show(lsn))
        self.change(table, state=State.PENDING, why=Reason(ReasonCode.SHAPE_AWAITED))

    def rename(self, table: TableState, schema_name: str, table_name: str) -> None:
        """The table has another name."""
        self._logger.info(
            "table renamed",
            table=f"{table.schema_name}.{table.table_name}",
            name=f"{schema_name}.{table_name}",
            path=table.path,
        )
        self.change(table, schema_name=schema_name, table_name=table_name)

    def publish_snapshot(self, entry: Snapshot, *, first: bool) -> None:
        """Publishes rows of a snapshot; the final entry makes its table live. The first one says what is
        read, and under which facts.
        """
        if not first:
            entry = replace(entry, relations=(), fingerprint=entry.fingerprint if entry.final else "")
        self._log.append(entry)
        if entry.final:
            self._counts.transitions[State.LIVE] += 1

    def note_schema_change(self, kind: str, outcome: str) -> None:
        """Counts a change of shape that was `followed`, or turned its table `stale`."""
        self._counts.schema_changes[kind, outcome] += 1


def latest_schema(state: TableState) -> TableSchema | None:
    """The newest shape that the manifest has of the table."""
    return state.schemas[max(state.schemas)] if state.schemas else None


def differs(state: TableState, facts: TableFacts) -> bool:
    """Whether the catalog shows the table otherwise than when it was last looked at."""
    return (state.relfilenode, state.fingerprint) != (facts.relfilenode, fingerprint(facts))

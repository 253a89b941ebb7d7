"""What the manifest says of tables, read and appended to.

Invariant: a table's state changes by an entry and in no other way, and each change of state is
counted.
"""

from dataclasses import replace

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.entries import Snapshot, Table
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.ingest.status import TableCounts
from sluice.ingest.tables.catalog_diff import fingerprint
from sluice.manifest.state import TableState
from sluice.manifest.writer import ManifestLog


class TableRegister:
    """For TableBook, under its lock. Every method that appends raises what `ManifestLog.append`
    raises.
    """

    def __init__(self, log: ManifestLog, counts: TableCounts) -> None:
        self._log = log
        self._counts = counts

    @property
    def through_lsn(self) -> int:
        """The position through which the manifest is complete."""
        return self._log.state.through_lsn

    def states(self) -> dict[str, TableState]:
        """By table id; a value that does not change."""
        return self._log.state.tables

    def state(self, oid: int) -> TableState | None:
        return self._log.state.tables.get(str(oid))

    def join(self, entry: Table) -> None:
        """Appends the first entry of a table."""
        self._log.append(entry)
        self._counts.transitions[entry.state] += 1

    def begin(self, facts: TableFacts, schema: TableSchema, *, generation: int, lsn: int) -> None:
        """Begins the next generation of a table: its rows are to be read."""
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
            )
        )

    def change(self, table: TableState, **changes: object) -> None:
        """Appends the table's entry with `changes`."""
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
            self._counts.transitions[changed.state] += 1

    def finish_snapshot(self, entry: Snapshot) -> None:
        """Publishes a whole snapshot, which makes its table live."""
        self._log.append(entry)
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

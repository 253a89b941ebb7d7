"""What is decided of tables: the only way by which one changes.

Invariant: a table's state changes by an entry and in no other way, and each change of state is
counted.
"""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace

import structlog

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.entries import Snapshot, Table
from sluice.contract.reasons import Reason, ReasonCode
from sluice.contract.receipt import DurableReceipt
from sluice.contract.resyncs import Cause
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice.ingest.status import TableCounts
from sluice.ingest.tables.catalog_diff import fingerprint
from sluice.lsn import show
from sluice.manifest.ordered_log import OrderedLog
from sluice.manifest.values import TableState


class TableRegister:
    """For FollowedTables, under its lock. Every method that changes a table raises what `OrderedLog.append`
    raises.
    """

    def __init__(self, log: OrderedLog, counts: TableCounts) -> None:
        self._log = log
        self._counts = counts
        self._stream_lsn: int | None = None
        self._logger = structlog.get_logger("tables")

    @contextmanager
    def deciding_at(self, position_lsn: int) -> Iterator[None]:
        """What changes meanwhile was decided by rows, at that position in the stream, and is stored with them."""
        before, self._stream_lsn = self._stream_lsn, position_lsn
        try:
            yield
        finally:
            self._stream_lsn = before

    @property
    def through_lsn(self) -> int:
        """The position through which the manifest is complete."""
        return self._log.stored.through_lsn

    def states(self) -> dict[str, TableState]:
        """By table id, with all that is decided; a value that does not change."""
        return self._log.state.tables

    def state(self, oid: int) -> TableState | None:
        return self._log.state.tables.get(str(oid))

    def join(self, entry: Table) -> None:
        """The first entry of a table or of a generation."""
        self._append(entry)
        if entry.state is not None:
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

    def become(
        self,
        table: TableState,
        state: State,
        why: Reason | None,
        *,
        lsn: int | None = None,
        cause: Cause | str = "",
        resync_at: str = "",
        facts: TableFacts | None = None,
    ) -> None:
        """The table is in `state`, because of `why`, from `lsn` on (None: since it was in the one before)."""
        self._append(
            Table(
                table.table_id,
                table.schema_name,
                table.table_name,
                state=state,
                generation=table.generation,
                why=why,
                lsn=table.lsn if lsn is None else lsn,
                relfilenode=facts.relfilenode if facts is not None else 0,
                fingerprint=fingerprint(facts) if facts is not None else "",
                cause=cause,
                resync_at=resync_at,
            )
        )
        if state != table.state:
            self._counts.transitions[state] += 1

    def follow(self, table: TableState, schema: TableSchema, *, lsn: int) -> None:
        """The table has the shape `schema` from `lsn` on."""
        self._logger.info("schema changed", table=schema.qualified_name, version=schema.version, lsn=show(lsn))
        latest = latest_schema(table)
        before = {column.attnum for column in latest.left_out} if latest is not None else set()
        if added := [column.name for column in schema.left_out if column.attnum not in before]:
            self._logger.warning("columns were added and are left out", table=schema.qualified_name, columns=added)
        self._append(replace(_as_it_is(table), schema=schema, lsn=lsn))

    def seen(self, table: TableState, facts: TableFacts) -> None:
        """The catalog has the table as `facts` say, which changes nothing else."""
        self._append(replace(_as_it_is(table), relfilenode=facts.relfilenode, fingerprint=fingerprint(facts)))

    def rename(self, table: TableState, schema_name: str, table_name: str) -> None:
        """The table has another name."""
        self._logger.info(
            "table renamed",
            table=f"{table.schema_name}.{table.table_name}",
            name=f"{schema_name}.{table_name}",
            path=table.path,
        )
        self._append(replace(_as_it_is(table), schema_name=schema_name, table_name=table_name))

    def pause(self, table: TableState, *, paused: bool) -> None:
        """Begins or ends a pause."""
        self._append(replace(_as_it_is(table), paused=paused))

    def await_shape(self, table: TableState, *, lsn: int) -> None:
        """The catalog shows another shape, which the stream reaches at `lsn`."""
        name = f"{table.schema_name}.{table.table_name}"
        self._logger.info("columns changed, and no row has announced it yet", table=name, lsn=show(lsn))
        self.become(table, State.PENDING, Reason(ReasonCode.SHAPE_AWAITED))

    def publish_snapshot(self, entry: Snapshot, *, first: bool) -> "Future[DurableReceipt]":
        """Publishes rows of a snapshot; the final entry makes its table live. The first one says what is
        read, and under which facts. The future is done when it is durable.
        """
        if not first:
            entry = replace(entry, relations=(), fingerprint=entry.fingerprint if entry.final else "")
        stored = self._log.append(entry)
        if entry.final:
            self._counts.transitions[State.LIVE] += 1
        return stored

    def _append(self, entry: Table) -> None:
        if self._stream_lsn is not None or entry.table_id in self._log.held:
            self._log.hold(entry, position_lsn=self._stream_lsn or 0)
        else:
            self._log.append(entry)

    def note_schema_change(self, kind: str, outcome: str) -> None:
        """Counts a change of shape that was `followed`, or turned its table `stale`."""
        self._counts.schema_changes[kind, outcome] += 1


def _as_it_is(table: TableState) -> Table:
    """In its state, whatever that is."""
    return Table(table.table_id, table.schema_name, table.table_name, None, table.generation)


def latest_schema(state: TableState) -> TableSchema | None:
    """The newest shape that the manifest has of the table."""
    return state.schemas[max(state.schemas)] if state.schemas else None


def differs(state: TableState, facts: TableFacts) -> bool:
    """Whether the catalog shows the table otherwise than when it was last looked at."""
    return (state.relfilenode, state.fingerprint) != (facts.relfilenode, fingerprint(facts))

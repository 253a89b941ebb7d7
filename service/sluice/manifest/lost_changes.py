"""What becomes of tables when a writer opens an epoch and something cannot be had any more. Pure.

Invariant: it follows from the `opened` entry alone, so that no writer can die between going on and
saying what is missing.
"""

from dataclasses import replace

from sluice.contract.entries import Entry, Lost, Opened
from sluice.contract.reasons import Reason
from sluice.contract.resyncs import Cause
from sluice.contract.table_state import State
from sluice.lsn import show
from sluice.manifest.gaps import widened
from sluice.manifest.values import TableState


def with_gap(table: TableState, entry: Entry, lost: Lost) -> TableState:
    """After changes were lost. Rows of a snapshot that is under way are of no use without them, and columns
    that are about to change may have changed.
    """
    if not table.state.is_followed or (table.state == State.SNAPSHOT and table.snapshot is None):
        return table
    again = {State.SNAPSHOT: Cause.INTERRUPTED, State.PENDING: Cause.SCHEMA}.get(table.state)
    if table.state in (State.LIVE, State.GAP) and table.schema_lsn >= entry.from_lsn:
        again = Cause.SCHEMA  # what was to bring the newest shape is lost: the lake table never gets it
    if again is not None:
        return _lost(table, lost.reason, entry.through_lsn, cause=again, resync_at=entry.written_at)
    if table.table_id not in lost.repairable or table.snapshot is None or not table.snapshot.final:
        return _lost(table, lost.reason, entry.through_lsn)
    gaps = widened(
        table.gaps,
        seq=entry.seq,
        schema_version=table.schema_version,
        from_lsn=entry.from_lsn,
        to_lsn=entry.through_lsn,
    )
    return replace(table, state=State.GAP, why=Reason.of(Cause.GAP, lost.reason), lsn=entry.through_lsn, gaps=gaps)


def lacking_origins(table: TableState, lsn: int) -> TableState:
    """In the entry that asks for every origin, so that no writer can die between asking and saying
    what is missing.
    """
    reason = "source.origin was none: what replication brought to the source meanwhile was not sent"
    if not table.state.is_followed or table.snapshot is None or not table.snapshot.final:
        return broken(table, reason)
    return _lost(table, reason, lsn)


def since_the_fork(tables: dict[str, TableState], before: Opened | None, now: Opened) -> dict[str, TableState]:
    """After a promotion: a snapshot that was taken on the server from before, past the position at which
    the promoted one left it, may have rows that are nowhere else.
    """
    if before is None or before.timeline == now.timeline or len(now.forks) <= len(before.forks):
        return tables
    fork = now.forks[len(before.forks)].lsn
    reason = f"its snapshot was taken past {show(fork)}, where the source was promoted to timeline {now.timeline}"
    return {
        table_id: _lost(table, reason, fork)
        if table.state.is_followed and table.snapshot is not None and table.snapshot.snapshot_lsn > fork
        else table
        for table_id, table in tables.items()
    }


def on_its_server(tables: dict[str, TableState], before: Opened | None, now: Opened) -> dict[str, TableState]:
    """After pg_upgrade: looks at the catalog of the server from before cannot be compared with this one's,
    where every row is a new one. The comparison that closes the gap of a table looks at its rows.
    """
    if before is None or before.system_identifier == now.system_identifier:
        return tables
    return {table_id: replace(table, relfilenode=0, fingerprint="") for table_id, table in tables.items()}


def _lost(table: TableState, reason: str, lsn: int, *, cause: Cause = Cause.GAP, resync_at: str = "") -> TableState:
    why = Reason.of(cause, reason)
    return replace(table, state=State.STALE, why=why, lsn=lsn, cause=cause, resync_at=resync_at)


def broken(table: TableState, reason: str) -> TableState:
    return table if table.snapshot is None else replace(table, snapshot=table.snapshot.interrupted(reason))

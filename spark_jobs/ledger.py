"""Every table the applier knows: its manifest state, its backlog, how far it is and why it stopped.

Owns the rules by which a table is worked on: only in the newest generation, only while neither the manifest nor the applier calls it stale, quarantined,
paused or detached, and never twice at once. No Spark, no threads: the loop in `applier` calls it from one thread.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from service.contract import keys
from service.contract.applied import AppliedLog, AppliedTable
from service.contract.entries import CARRIED_STATES, COPIED_STATES, Changes, Copy, Entry, Table
from service.manifest.state import PipelineState, TableState, reduce
from spark_jobs.options import CHANGELOG, ApplyOptions
from spark_jobs.table import Applied, mode_of
from spark_jobs.window import NO_ORIGINS, Backlog, Window

NO_KEY = "no key and no full replica identity: an append-only changelog, not a mirror"

WORKING_STATES = CARRIED_STATES


@dataclass(slots=True)
class Known:
    """One table in its newest generation. `committed_seq` is the last entry whose changes its Delta version holds."""

    backlog: Backlog
    stale_reason: str = ""
    trouble: str = ""
    """Why the last attempt at a window failed, while it is tried again."""
    busy: bool = False
    failures: int = 0
    committed_seq: int = 0
    commit_time_us: int = 0
    delta_version: int = -1
    rows_applied: int = 0
    schema_version: int = 0


class Ledger:
    """Starts from the newest manifest state; entries from `read_seq` + 1 on are then taken in one by one."""

    def __init__(self, options: ApplyOptions, state: PipelineState) -> None:
        self._options = options
        self.state = state
        self.tables: dict[str, Known] = {}
        self.read_seq = 0
        self.read_lsn = 0
        self._reshaped: set[str] = set()
        """Tables with a shape that the entries read so far do not reach."""

    def begin(self, known: dict[str, Known]) -> None:
        """Takes the tables as found in the lake, and goes back to the first entry that any of them still needs."""
        self.tables = known
        self._reshaped = {table_id for table_id, item in known.items() if item.backlog.coming}
        needed = [item.backlog.applied_seq if item.backlog.copied else item.backlog.generation_seq for item in known.values()]
        # One entry earlier, to learn through which LSN that one goes.
        self.read_seq = max(0, min(needed, default=self.state.seq) - 1)

    def take_in(self, entry: Entry, sha256: str) -> None:
        """Notes the next entry."""
        if entry.seq > self.state.seq:
            self.state = reduce(self.state, entry, sha256)
            for table_id, state in self.state.tables.items():
                known = self.tables.get(table_id)
                if known is None or known.backlog.generation != state.generation:
                    self.tables[table_id] = Known(Backlog(state.generation, state.generation_seq, state.generation_seq))
        body = entry.body
        ids = {body.table_id} if isinstance(body, Copy | Table) else {segment.table_id for segment in body.segments} if isinstance(body, Changes) else set()
        ids |= self._reshaped
        origins = body.commits.origins_by_lsn() if isinstance(body, Changes) else NO_ORIGINS
        for table_id in ids:
            self.tables[table_id].backlog.take_in(entry, table_id, through_lsn=self.read_lsn, origins=origins)
        self._reshaped = {table_id for table_id in ids if self.tables[table_id].backlog.coming}
        self.read_seq, self.read_lsn = entry.seq, entry.through_lsn

    def backlog_entries(self) -> int:
        return sum(len(known.backlog.changes) for table_id, known in self.tables.items() if self.works(table_id))

    def works(self, table_id: str) -> bool:
        """Whether windows of the table may be applied."""
        return not self.tables[table_id].stale_reason and self.state.tables[table_id].state in WORKING_STATES

    def ready(self, *, until_seq: int) -> Iterator[tuple[str, Known, TableState, Window]]:
        """A window of each table that may work and is not busy, the table that is furthest behind first."""
        for table_id, known in sorted(self.tables.items(), key=lambda item: item[1].committed_seq):
            if known.busy or not self.works(table_id):
                continue
            window = known.backlog.next_window(max_bytes=self._options.max_window_bytes, until_seq=until_seq)
            if window is not None:
                yield table_id, known, self.state.tables[table_id], window

    def applied(self, known: Known, window: Window, result: Applied) -> None:
        """`window` is in the lake."""
        known.backlog.done(window)
        known.failures, known.trouble = 0, ""
        known.delta_version = result.delta_version
        known.rows_applied += result.rows
        known.schema_version = max(known.schema_version, result.schema_version)
        known.commit_time_us = max(known.commit_time_us, result.commit_time_us)
        if result.committed:
            known.committed_seq = window.last_seq

    def idle(self, *, until_seq: int) -> bool:
        """Whether nothing is left to do up to `until_seq`."""
        return not any(known.busy for known in self.tables.values()) and next(self.ready(until_seq=until_seq), None) is None

    def report(self) -> dict[str, AppliedTable]:
        """Every table as the applier sees it."""
        return {table_id: self._row(table_id, known) for table_id, known in self.tables.items() if self.state.tables[table_id].schemas}

    def _row(self, table_id: str, known: Known) -> AppliedTable:
        state, backlog = self.state.tables[table_id], known.backlog
        schema = state.schemas[state.schema_version]
        mode = mode_of(self._options, schema)
        forced = mode == CHANGELOG and self._options.mode_of(schema.qualified_name) != CHANGELOG
        shown, reason = state.state, state.reason or (NO_KEY if forced else "")
        if known.stale_reason:
            shown, reason = "stale", known.stale_reason
        elif self.works(table_id):
            shown, reason = "copying" if not backlog.copied else "live" if state.state == "copying" else state.state, known.trouble or reason
        return AppliedTable(
            table_id=table_id,
            schema_name=state.schema_name,
            table_name=state.table_name,
            path=keys.lake_path(state.schema_name, state.table_name),
            mode=mode,
            generation=state.generation,
            state=shown,
            reason=reason,
            through_seq=backlog.through_seq(self.read_seq),
            complete_through_lsn=backlog.complete_through(self.read_lsn),
            commit_time_us=known.commit_time_us,
            delta_version=known.delta_version,
            rows_applied=known.rows_applied,
            schema_version=known.schema_version,
        )


def restore(state: TableState, log: AppliedLog | None, *, marker: int | None, delta_version: int) -> Known:
    """One table at start: the lake's marker decides what is applied, the last log adds idle progress, counters and the reason of a stop."""
    copied = marker is not None and marker >= state.generation_seq
    known = Known(
        Backlog(state.generation, state.generation_seq, state.generation_seq, copied=copied, snapshot_lsn=state.copy.snapshot_lsn if state.copy else 0)
    )
    known.delta_version = delta_version
    if marker is not None and copied:
        known.committed_seq = known.backlog.applied_seq = marker
    if state.schema_lsn:
        # Whether the lake has it already, only the lake knows; looking twice is harmless.
        known.backlog.coming = [(state.schema_lsn, state.schema_version)]
    last = log.tables.get(state.table_id) if log else None
    if last is None or last.generation != state.generation:
        return known
    known.rows_applied, known.commit_time_us = last.rows_applied, last.commit_time_us
    if last.state == "stale" and state.state in WORKING_STATES:
        known.stale_reason = last.reason
    elif last.state in COPIED_STATES and (not copied or delta_version < last.delta_version):
        known.stale_reason = f"the lake table went from version {last.delta_version} to {delta_version}: somebody else restored, replaced or removed it"
    elif copied:
        known.backlog.applied_seq = max(known.backlog.applied_seq, last.through_seq)
    return known

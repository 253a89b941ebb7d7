"""Every table the applier knows: its manifest state, its backlog, how far it is and why it stopped.

Owns the rules by which a table is worked on: only in the newest generation, only while neither the
manifest nor the applier calls it stale, quarantined, paused or detached, and never twice at once:
one lake table has one window in flight, whatever table of the source and whatever generation it is
of. A table whose window fails waits, longer each time, and is quarantined after some attempts; it
is tried again, and the others go on. No Spark, no threads, no clock: the loop in `applier` calls it
from one thread.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from sluice.contract import keys
from sluice.contract.applied import AppliedLog, AppliedTable
from sluice.contract.entries import CARRIED_STATES, Changes, Copy, Entry, Table
from sluice.manifest.state import PipelineState, TableState, reduce
from sluice_spark.lake.table import Place
from sluice_spark.options import CHANGELOG, ApplyOptions
from sluice_spark.read.window import NO_ORIGINS, Backlog, Window
from sluice_spark.table_apply import OTHER_MODE, Applied, mode_of

NO_KEY = "no key and no full replica identity: an append-only changelog, not a mirror"

KEPT_WHILE_WAITING, KEPT_BY_ONE = 5_000, 4
"""Entries that wait in memory for all tables that cannot go on now, because their windows fail or
their copy is not whole, and at least for each. The rest is read again when they go on.
"""
WORKING_STATES = CARRIED_STATES
ATTEMPTS = 5
"""Failures in a row after which a table is quarantined."""
FIRST_WAIT_SECONDS = 0.2
LONGEST_WAIT_SECONDS = 300.0
LOOK_SECONDS, LOOK_PAUSE_SECONDS = 60.0, 0.5
"""How often an idle lake table is looked at, and the pause between the looks at two of them: a look
lists the end of one Delta log.
"""


@dataclass(slots=True)
class Known:
    """One table in its newest generation. `place` is where its lake table stands."""

    backlog: Backlog
    place: Place = field(default_factory=Place)
    stale_reason: str = ""
    trouble: str = ""
    """Why the last attempt at a window failed, while it is tried again."""
    failures: int = 0
    not_before: float = 0.0
    """When it may be tried again, on the loop's clock."""
    begun_seq: int = 0
    """The furthest entry that a window of this process was begun for, whatever became of it."""
    looked_at: float | None = None
    """When the lake table was last looked at or about to be, on the loop's clock."""
    commit_time_us: int = 0
    rows_applied: int = 0
    schema_version: int = 0

    @property
    def committed_seq(self) -> int:
        """The last entry whose changes the Delta version holds, 0 before the copy."""
        return self.place.marker or 0

    @property
    def goes_on(self) -> bool:
        """Whether what waits for the table can become windows now."""
        return not self.failures and (self.backlog.copied or self.backlog.copy_final)

    @property
    def quarantined(self) -> bool:
        return self.failures >= ATTEMPTS

    def failed(self, reason: str, *, now: float, passing: bool) -> None:
        """An attempt failed. What is `passing` is no fault of the table's and never quarantines it."""
        self.failures = min(self.failures + 1, ATTEMPTS - 1) if passing else self.failures + 1
        self.trouble = f"attempt {self.failures} failed: {reason}"
        self.not_before = now + min(FIRST_WAIT_SECONDS * 2 ** min(self.failures, 20), LONGEST_WAIT_SECONDS)


class Ledger:
    """Starts from the newest manifest state; entries from `read_seq` + 1 on are then taken in one
    by one.
    """

    def __init__(self, options: ApplyOptions, state: PipelineState) -> None:
        self._options = options
        self.state = state
        self.tables: dict[str, Known] = {}
        self.busy: set[str] = set()
        """Lake paths with a window in flight."""
        self.read_seq = 0
        self.read_lsn = 0
        self._looked_at = float("-inf")
        """When the last look at an idle table was given out."""
        self._reshaped: set[str] = set()
        """Tables with a shape that the entries read so far do not reach."""

    def begin(self, known: dict[str, Known]) -> None:
        """Takes the tables as found in the lake, and goes back to the first entry that any of those
        that work still needs.
        """
        self.tables = known
        self._reshaped = {table_id for table_id, item in known.items() if item.backlog.coming}
        needed = []
        for table_id, item in known.items():
            if self.works(table_id):
                needed.append(item.backlog.applied_seq if item.backlog.copied else item.backlog.generation_seq)
            else:
                item.backlog.stop()
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
        ids = (
            {body.table_id}
            if isinstance(body, Copy | Table)
            else {segment.table_id for segment in body.segments}
            if isinstance(body, Changes)
            else set()
        )
        ids |= self._reshaped
        origins = body.commits.origins_by_lsn() if isinstance(body, Changes) else NO_ORIGINS
        for table_id in ids:
            self.tables[table_id].backlog.take_in(entry, table_id, through_lsn=self.read_lsn, origins=origins)
        self._reshaped = {table_id for table_id in ids if self.tables[table_id].backlog.coming}
        self.read_seq, self.read_lsn = entry.seq, entry.through_lsn

    def behind(self) -> dict[str, int]:
        """Tables that have worked off what they were given, with the first entry that they were
        not: `take_again` wants that one and those behind it.
        """
        ends = {
            table_id: known.backlog.skipped
            for table_id, known in self.tables.items()
            if not known.backlog.changes and self.works(table_id)
        }
        return {table_id: end[0] for table_id, end in ends.items() if end is not None and end[0] <= self.read_seq}

    def take_again(self, table_id: str, entry: Entry) -> None:
        """Notes an entry that was read before, for one table that was not given it then."""
        origins = entry.body.commits.origins_by_lsn() if isinstance(entry.body, Changes) else NO_ORIGINS
        self.tables[table_id].backlog.take_again(entry, table_id, newest_seq=self.read_seq, origins=origins)
        if self.tables[table_id].backlog.coming:
            self._reshaped.add(table_id)

    def let_go(self) -> None:
        """Forgets what waits for tables that are stopped, and most of what waits for those that
        cannot go on now.

        Neither may fill the memory, nor stop the reading. Those that fail and those whose copy is
        not whole yet share one budget, however many they are.
        """
        waiting = []
        for table_id, known in self.tables.items():
            if not self.works(table_id):
                known.backlog.keep(0)
            elif not known.goes_on:
                waiting.append(known)
        for known in waiting:
            known.backlog.keep(max(KEPT_BY_ONE, KEPT_WHILE_WAITING // len(waiting)))

    def backlog_entries(self) -> int:
        """Entries that wait for tables which go on: windows work them off, so that whoever waits
        for room gets it.
        """
        return sum(
            len(known.backlog.changes)
            for table_id, known in self.tables.items()
            if known.goes_on and self.works(table_id)
        )

    def works(self, table_id: str) -> bool:
        """Whether windows of the table may be applied."""
        return not self.tables[table_id].stale_reason and self.state.tables[table_id].state in WORKING_STATES

    def ready(self, *, now: float, boundary_seq: int) -> Iterator[tuple[str, Known, TableState, Window]]:
        """A window of each table that may work now and is not busy, the table that is furthest
        behind first.

        A table that has not passed entry `boundary_seq` gets none that reaches past it, so that it
        can be read as of that entry.
        """
        for table_id, known in sorted(self.tables.items(), key=lambda item: item[1].committed_seq):
            state = self.state.tables[table_id]
            if now < known.not_before or not self.works(table_id) or lake_path(state) in self.busy:
                continue
            window = self._next_window(known, boundary_seq)
            if window is not None:
                known.looked_at = now
                yield table_id, known, state, window
        yield from self._look(now)

    def _look(self, now: float) -> Iterator[tuple[str, Known, TableState, Window]]:
        """An empty window of the table that was looked at longest ago, when one is due: a lake
        table that is gone or was changed is noticed while the source is idle. One at a time,
        with a pause between two, so that many tables cost no more than a few.
        """
        if now - self._looked_at < LOOK_PAUSE_SECONDS:
            return
        due: list[tuple[float, str]] = []
        for table_id, known in self.tables.items():
            idle = known.backlog.copied and not known.failures and not known.backlog.changes and self.works(table_id)
            if not idle or lake_path(self.state.tables[table_id]) in self.busy:
                continue
            if known.looked_at is None:
                known.looked_at = now
            due.append((known.looked_at, table_id))
        looked_at, table_id = min(due, default=(now, ""))
        if now - looked_at >= LOOK_SECONDS:
            known = self.tables[table_id]
            self._looked_at = known.looked_at = now
            yield table_id, known, self.state.tables[table_id], Window((), known.backlog.applied_seq)

    def _next_window(self, known: Known, boundary_seq: int) -> Window | None:
        until = boundary_seq if known.backlog.through_seq(self.read_seq) < boundary_seq else self.read_seq
        window = known.backlog.next_window(max_bytes=self._options.max_window_bytes, until_seq=until)
        if window is None and known.failures and known.backlog.copied:
            # It failed before it had work: a look says whether it has recovered.
            return Window((), known.backlog.applied_seq)
        return window

    def applied(self, known: Known, window: Window, result: Applied) -> None:
        """`window` is in the lake, as far as `result` says."""
        known.backlog.done(
            window if result.through_seq == window.last_seq or window.is_copy else Window((), result.through_seq)
        )
        if window.is_copy and result.through_seq > window.last_seq:
            known.backlog.done(Window((), result.through_seq))
        known.failures, known.trouble, known.not_before = 0, "", 0.0
        known.place = result.place
        known.rows_applied += result.rows
        known.schema_version = max(known.schema_version, result.schema_version)
        known.commit_time_us = max(known.commit_time_us, result.commit_time_us)

    def idle(self) -> bool:
        """Whether nothing is left to do but what waits in quarantine."""
        at_work = (known for table_id, known in self.tables.items() if self.works(table_id) and not known.quarantined)
        return not self.busy and all(self._next_window(known, 0) is None for known in at_work)

    def report(self) -> dict[str, AppliedTable]:
        """Every table as the applier sees it."""
        return {
            table_id: self._row(table_id, known)
            for table_id, known in self.tables.items()
            if self.state.tables[table_id].schemas
        }

    def _row(self, table_id: str, known: Known) -> AppliedTable:
        state, backlog = self.state.tables[table_id], known.backlog
        schema = state.schemas[state.schema_version]
        mode = mode_of(self._options, schema)
        forced = mode == CHANGELOG and self._options.mode_of(schema.qualified_name) != CHANGELOG
        shown, reason = state.state, state.reason or (NO_KEY if forced else "")
        failing = False
        if known.stale_reason:
            shown, reason = "stale", known.stale_reason
        elif self.works(table_id):
            shown = "copying" if not backlog.copied else "live" if state.state == "copying" else state.state
            shown, reason = "quarantined" if known.quarantined else shown, known.trouble or reason
            failing = bool(known.trouble)
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
            delta_version=known.place.version,
            committed_seq=known.committed_seq,
            rows_applied=known.rows_applied,
            schema_version=known.schema_version,
            failing=failing,
        )


def lake_path(state: TableState) -> str:
    """Where the table's Delta table lies below the lake."""
    return keys.lake_path(state.schema_name, state.table_name)


def reported(state: TableState, log: AppliedLog | None) -> Place | None:
    """Where the last log says that the present generation's lake table stands, None if it does not
    say.
    """
    last = log.tables.get(state.table_id) if log else None
    if last is None or last.generation != state.generation or last.delta_version < 0:
        return None
    return Place(last.delta_version, last.committed_seq or None)


def restore(state: TableState, log: AppliedLog | None, *, place: Place, doubt: str = "") -> Known:
    """One table at start: the lake's marker decides what is applied, the last log adds idle
    progress, counters and the reason of a stop.

    `place` is where the lake table stands, `doubt` why it is not known to equal what was applied.
    """
    marker = place.marker
    copied = marker is not None and marker >= state.generation_seq
    known = Known(
        Backlog(
            state.generation,
            state.generation_seq,
            state.generation_seq,
            copied=copied,
            snapshot_lsn=state.copy.snapshot_lsn if state.copy else 0,
        )
    )
    known.place = place
    if marker is not None and copied:
        known.backlog.applied_seq = marker
    if state.schema_lsn:
        # Whether the lake has it already, only the lake knows; looking twice is harmless.
        known.backlog.coming = [(state.schema_lsn, state.schema_version)]
    last = log.tables.get(state.table_id) if log else None
    known.stale_reason = doubt if state.state in WORKING_STATES else ""
    if last is None or last.generation != state.generation:
        return known
    known.rows_applied, known.commit_time_us = last.rows_applied, last.commit_time_us
    known.backlog.reported_lsn = last.complete_through_lsn
    if last.state == "stale" and state.state in WORKING_STATES and not last.reason.startswith(OTHER_MODE):
        known.stale_reason = last.reason
    elif copied and last.committed_seq == marker:
        known.backlog.applied_seq = max(known.backlog.applied_seq, last.through_seq)
    return known

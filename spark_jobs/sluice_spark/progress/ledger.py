"""Every table of the pipeline: its manifest state, the changes that wait, how far it is and why it
stopped.

Owns the rules by which a table gets windows: only its newest generation, only while neither the manifest nor
the applier calls it stale, quarantined, paused or detached, and never two at once. One lake table has one
window in flight, even if two tables of the source or two generations share it. A table whose window fails
waits, longer each time, and is quarantined after some attempts. It is tried again, and the other tables
continue. What is asked once per round costs by the tables with work, however many are idle. No Spark, no
threads, no clock: the loop in `applier` calls it from one thread.
"""

from collections.abc import Collection, Iterable, Iterator

from sluice.contract.applied import AppliedTable
from sluice.contract.entries import Changes, Entry, Opened, Repair, Snapshot
from sluice.contract.reasons import Reason, ReasonCode
from sluice.contract.table_state import State
from sluice.manifest.gaps import gap_at
from sluice.manifest.state import reduce
from sluice.manifest.targets import Targets, clashing, fed
from sluice.manifest.values import PipelineState, TableState
from sluice_spark.applied_window import Applied
from sluice_spark.kinds.registry import kind_of
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.options import ApplyOptions
from sluice_spark.progress import cadence
from sluice_spark.progress.table_progress import TableProgress, Work
from sluice_spark.read.window import BEFORE, NO_ORIGINS, Window

KEPT_WHILE_WAITING, KEPT_BY_ONE = 5_000, 4
"""Entries that wait in memory for all tables that cannot continue now, because their windows fail
or their snapshot is not complete, and at least for each. The rest is read again when they
continue.
"""
LOOK_SECONDS, LOOK_PAUSE_SECONDS = 60.0, 0.5
"""How often an idle lake table is looked at, and the pause between the looks at two of them: a look
lists the end of one Delta log.
"""


class Ledger:
    """Starts from the newest manifest state; entries from `read_seq` + 1 on are then taken in one
    by one.
    """

    def __init__(self, options: ApplyOptions, state: PipelineState) -> None:
        self._options = options
        self._all_at_once = options.once or options.until_lsn > 0
        """Somebody waits for the end: no table waits for more changes."""
        self.targets = Targets(options.targets_of)
        self.manifest = state
        """What the manifest says of the tables of the source."""
        self.state = self.targets.of(state)
        """The same of the lake tables that they feed, by key."""
        self.tables: dict[str, TableProgress] = {}
        self.busy: set[str] = set()
        """Lake paths with a window in flight, or with maintenance under way."""
        self.in_maintenance: set[str] = set()
        """Those of `busy` that are maintained."""
        self.read_seq = self.read_lsn = self.read_time_us = self.reached_us = 0
        """No transaction that was read was committed after `read_time_us`, and none is missing that was committed
        before `reached_us`.
        """
        self.examined_lsn = 0
        """Through where the catalog had been examined by then: no table is complete beyond it."""
        self.tables_seq = 0  # of the newest entry that says something of a table
        self._looked_at = float("-inf")
        """When the last look at an idle table was given out."""
        self._active: set[str] = set()
        """Tables that may have something to do. All others are at rest: nothing waits for them."""
        self._moved: set[str] = set()
        """Tables whose progress or state may have changed since `moved` was last asked."""
        self._rewritten: list[tuple[str, int, int]] = []
        """Tables whose files were put in order since `rewritten` was last asked."""
        self._looks: dict[str, None] = {}
        """All tables, the one that was looked at longest ago first."""

    def reconfigure(self, options: ApplyOptions) -> None:
        """From now on `options` hold: what is due, and when."""
        self._options = options
        self.targets.configured = options.targets_of

    def names(self) -> list[str]:
        """The tables that the source has, as schema.table."""
        return self.manifest.names

    def begin(self, tables: dict[str, TableProgress], *, floor_seq: int = 0) -> None:
        """Takes the tables as found in the lake, and starts with the first entry that any followed
        table still needs. Entries through `floor_seq` were pruned.
        """
        self.tables = tables
        self._active, self._moved, self._looks = set(tables), set(tables), dict.fromkeys(tables)
        needed = []
        for table_id, item in tables.items():
            if not item.pending.has_snapshot and self._may_apply_when_resumed(table_id):
                needed.append(item.pending.generation_seq)
            elif self.may_apply(table_id):
                needed.append(item.pending.applied_seq)
            else:
                item.pending.stop()
        # One entry earlier, to find out through which LSN that one goes.
        self.read_seq = max(floor_seq, min(needed, default=self.state.seq) - 1)

    def take_in(self, entry: Entry, sha256: str, *, since: float = BEFORE) -> None:
        """Notes the next entry, which could first be read at `since` on the loop's clock."""
        body = entry.body
        if entry.seq > self.manifest.seq:
            self.manifest = reduce(self.manifest, entry, sha256)
            self.state = self.targets.of(self.manifest)
            for table in entry.tables:
                self._follow(table.table_id)
            self.tables_seq = entry.seq if entry.tables else self.tables_seq
        sources = {table.table_id for table in entry.tables} | (
            {body.table_id}
            if isinstance(body, Snapshot | Repair)
            else {segment.table_id for segment in body.segments}
            if isinstance(body, Changes)
            else {key for key, table in self.manifest.tables.items() if gap_at(table.gaps, entry.seq)}
            if isinstance(body, Opened)
            else set()
        )
        origins = body.commits.origins_by_lsn() if isinstance(body, Changes) else NO_ORIGINS
        ids = {key for table_id in sources for key in self.targets.keys(table_id)}
        for table_id in ids:
            state, progress = self.state.tables[table_id], self.tables[table_id]
            gap = gap_at(state.gaps, entry.seq)
            if gap is not None and state.keeps_changes and progress.stale is None:
                # Whoever recorded the loss did not know of this target: the table would be read again.
                progress.lacks_changes()
            progress.pending.take_in(
                entry,
                state.table_id,
                through_lsn=self._through(table_id, entry, self.read_lsn),
                origins=origins,
                since=since,
                gap=gap,
                schemas=state.schemas,
            )
        self._active |= ids
        self._moved |= ids
        self.read_seq, self.read_lsn, self.examined_lsn = entry.seq, entry.through_lsn, entry.examined_lsn
        self.read_time_us = max(self.read_time_us, entry.committed_by_us)
        self.reached_us = max(self.reached_us, entry.newest_commit_us)

    def _through(self, table_id: str, entry: Entry, lsn: int) -> int:
        """Through where the table is complete without `entry`, in front of which the manifest is at `lsn`: a shape that
        begins in it may be older, as a look had found.
        """
        state = self.state.tables[table_id]
        known = state.known_lsns
        begun = (table.schema.version for table in entry.tables if table.table_id == state.table_id and table.schema)
        return min([lsn, *(known[version] for version in begun if version in known)])

    def halted(self, table_id: str) -> bool:
        """Whether the table has everything in front of a gap that is open: it waits for its repair."""
        return self.state.tables[table_id].gap is not None and self.tables[table_id].pending.is_halted

    def _follow(self, table_id: str) -> None:
        """A table that is new, or begins again, has made no progress, and none of its lake tables has."""
        begun = set()
        for key in self.targets.keys(table_id):
            state, progress = self.state.tables[key], self.tables.get(key)
            if progress is None or progress.pending.generation != state.generation:
                self.tables[key] = TableProgress.new(state, progress)
                self._looks.setdefault(key)
                begun.add(key)
        if begun:
            self.separate(self.tables.keys() - begun)

    def separate(self, first: Collection[str]) -> list[TableState]:
        """Stops lake tables that would stand where another one stands; those of `first`, by key, were there before."""
        clashes = clashing(self.state.tables, first)
        for key, holder in clashes.items():
            self.tables[key].turns_stale_at_taken_path(self.state.tables[key], holder)
        return [self.state.tables[key] for key in clashes]

    def behind(self) -> dict[str, int]:
        """Tables that have applied all that they were given, with the first entry that they were
        not given: `take_again` expects that one and those after it.
        """
        ends = {
            table_id: self.tables[table_id].pending.skipped
            for table_id in self._active
            if not self.tables[table_id].pending.changes and self.may_apply(table_id) and not self.halted(table_id)
        }
        return {table_id: end[0] for table_id, end in ends.items() if end is not None and end[0] <= self.read_seq}

    def take_again(self, table_id: str, entry: Entry) -> None:
        """Notes an entry that was read before, for one table that was not given it then."""
        origins = entry.body.commits.origins_by_lsn() if isinstance(entry.body, Changes) else NO_ORIGINS
        self.tables[table_id].pending.take_again(
            entry,
            self.state.tables[table_id].table_id,
            through_lsn=self._through(table_id, entry, entry.from_lsn),
            newest_seq=self.read_seq,
            origins=origins,
            gap=gap_at(self.state.tables[table_id].gaps, entry.seq),
            schemas=self.state.tables[table_id].schemas,
        )
        self._moved.add(table_id)

    def moved(self) -> set[str]:
        """Tables whose progress or state may have changed since this was last asked."""
        moved, self._moved = self._moved, set()
        return moved

    def trim(self) -> None:
        """Forgets the entries that wait for tables that are stopped, and most of those that wait
        for tables that cannot continue now. Tables without work come to rest.

        Neither may fill the memory or stop the reading. Tables that fail and tables whose snapshot
        is not complete share one budget, however many they are.
        """
        waiting = []
        for table_id in tuple(self._active):
            progress = self.tables[table_id]
            if not self.may_apply(table_id):
                progress.pending.keep(0)
                self._active.discard(table_id)
            elif self._rests(progress):
                self._active.discard(table_id)
            elif not progress.can_continue and progress.pending.changes:
                waiting.append(progress)
        for progress in waiting:
            progress.pending.keep(max(KEPT_BY_ONE, KEPT_WHILE_WAITING // len(waiting)))

    @staticmethod
    def _rests(progress: TableProgress) -> bool:
        """Whether the table has nothing to do before an entry names it."""
        pending = progress.pending
        return not progress.failures and pending.since is None and not pending.changes and pending.skipped is None

    def pending_entries(self) -> int:
        """Entries that wait for tables that continue. Windows consume them, so this number falls."""
        return sum(
            len(self.tables[table_id].pending.changes)
            for table_id in self._active
            if self.tables[table_id].can_continue and self.may_apply(table_id)
        )

    def may_apply(self, table_id: str) -> bool:
        """Whether windows of the table may be applied."""
        return self.state.tables[table_id].is_applied and self.tables[table_id].stale is None

    def _may_apply_when_resumed(self, table_id: str) -> bool:
        """Whether windows of the table may be applied, now or when its pause ends."""
        return self.state.tables[table_id].state.is_followed and self.tables[table_id].stale is None

    def ready(self, *, now: float, boundary_seq: int) -> Iterator[Work]:
        """A window of each table that is due and not busy, the table first that has been due for
        most of its freshness targets. `begun` says which of them a worker took.

        A table that has not passed entry `boundary_seq` gets none that reaches past it, so that it
        can be read as of that entry.
        """
        turns: list[tuple[float, int, str]] = []
        for table_id in self._active:
            due = self._due_at(table_id)
            if due is not None and due <= now:
                progress = self.tables[table_id]
                target = self._freshness(table_id)
                order = cadence.overdue(due, begun_at=progress.begun_at, freshness_seconds=target, now=now)
                turns.append((-order, progress.committed_seq, table_id))
        for _, _, table_id in sorted(turns):
            state, progress = self.state.tables[table_id], self.tables[table_id]
            if state.path in self.busy:
                continue
            window = self._next_window(progress, boundary_seq)
            if window is not None:
                yield Work(table_id, progress, state, window)
        yield from self._look(now)

    def following(self, work: Work, *, boundary_seq: int) -> Window | None:
        """The window that its table is given once that of `work` is in the lake, None where that is not
        certain: it must be due then, and as large as it can become.
        """
        pending = work.progress.pending
        if work.window.is_snapshot or work.window.is_part or not work.window.segments:
            return None
        limit = self._options.max_window_bytes
        left = pending.waiting_bytes - work.window.bytes
        until = boundary_seq if work.window.last_seq < boundary_seq else self.read_seq
        window = pending.next_window(max_bytes=limit, until_seq=until, after_seq=work.window.last_seq)
        if window is None or (left < min(cadence.SMALL_BYTES, limit) and not self._all_at_once):
            return None
        return window if pending.changes[-1].seq > window.last_seq else None

    def next_due(self, *, after: float) -> float:
        """When the first of the tables is due that are not due at `after`; infinity without any."""
        dues = map(self._due_at, self._active)
        return min((due for due in dues if due is not None and due > after), default=float("inf"))

    def begun(self, work: Work, *, now: float) -> None:
        """A worker has taken `work`."""
        self.busy.add(work.state.path)
        if not work.window.is_part:
            work.progress.begun_seq = max(work.progress.begun_seq, work.window.last_seq)
        self._looked(work.table_id, now)
        if work.window.last_seq > work.progress.pending.applied_seq or work.window.is_snapshot:
            work.progress.begun_at = now

    def _due_at(self, table_id: str) -> float | None:
        """When the table may have its next window, None while it has no work."""
        progress = self.tables[table_id]
        if not self.may_apply(table_id):
            return None
        if self._all_at_once and not progress.failures:
            return progress.pending.since
        return progress.due_at(self._freshness(table_id), max_bytes=self._options.max_window_bytes)

    def _freshness(self, table_id: str) -> float:
        state = self.state.tables[table_id]
        return self._options.freshness_of(state.source_name, state.target_name)

    def _look(self, now: float) -> Iterator[Work]:
        """An empty window of the table that was looked at longest ago, when one is due: a lake
        table that is gone or was changed is noticed while the source is idle. One at a time,
        with a pause between two, so that many tables cost no more than a few.
        """
        if now - self._looked_at < LOOK_PAUSE_SECONDS:
            return
        while (table_id := next(iter(self._looks), None)) is not None:
            progress, looked_at = self.tables[table_id], self.tables[table_id].looked_at
            if looked_at is not None and now - looked_at < LOOK_SECONDS:
                return
            # This one, or the next one in its place: each is passed by once in LOOK_SECONDS.
            self._looked(table_id, now)
            if looked_at is not None and self._is_idle(table_id):
                self._looked_at = now
                yield Work(table_id, progress, self.state.tables[table_id], Window((), progress.pending.applied_seq))
                return

    def _looked(self, table_id: str, now: float) -> None:
        self.tables[table_id].looked_at = now
        self._looks.pop(table_id, None)
        self._looks[table_id] = None

    def _is_idle(self, table_id: str) -> bool:
        progress = self.tables[table_id]
        return (
            progress.pending.has_snapshot
            and not progress.failures
            and not progress.pending.changes
            and self.may_apply(table_id)
            and self.state.tables[table_id].path not in self.busy
        )

    def _next_window(self, progress: TableProgress, boundary_seq: int) -> Window | None:
        until = boundary_seq if progress.pending.through_seq(self.read_seq) < boundary_seq else self.read_seq
        window = progress.pending.next_window(
            max_bytes=self._options.max_window_bytes, until_seq=until, read_lsn=self.read_lsn
        )
        if window is None and progress.failures and progress.pending.has_snapshot:
            # It failed before it had work: a look says whether it has recovered.
            return Window((), progress.pending.applied_seq)
        return window

    def failed(self, work: Work, reason: str, *, now: float, at: float, passing: bool) -> None:
        """The window of `work` failed, see `TableProgress.failed`: its table is tried again."""
        work.progress.failed(reason, now=now, at=at, passing=passing)
        self._active.add(work.table_id)
        self._moved.add(work.table_id)

    def applied(self, work: Work, result: Applied, *, seconds: float = 0.0) -> None:
        """The window of `work` is in the lake, as far as `result` says. It took `seconds`, 0 if nobody knows."""
        progress, window = work.progress, work.window
        self._active.add(work.table_id)
        self._moved.add(work.table_id)
        if window.is_part:
            self._went_beside(progress, window, result)
            return
        progress.pending.done(
            window if result.through_seq == window.last_seq or window.is_snapshot else Window((), result.through_seq)
        )
        if window.is_snapshot and result.through_seq > window.last_seq:
            progress.pending.done(Window((), result.through_seq))
        progress.went_well(unarranged=result.unarranged)
        if not (window.segments or window.is_snapshot or window.schema_version):
            self._stands_at(work.table_id, progress, result.place)
        progress.place = result.place
        progress.rows_applied += result.rows
        progress.schema_version = max(progress.schema_version, result.schema_version)
        progress.commit_time_us = max(progress.commit_time_us, result.commit_time_us)
        if result.committed:
            progress.window_seconds = seconds if work.is_small else progress.window_seconds
            progress.way = result.way if result.way.name else progress.way
            progress.files = -1 if result.files is None else result.files

    @staticmethod
    def _went_beside(progress: TableProgress, window: Window, result: Applied) -> None:
        """A part of a snapshot is beside the lake table, which stands where it stood."""
        progress.pending.done(window, apart=not result.not_in_parts)
        progress.went_well(unarranged=None)
        progress.rows_applied += result.rows

    def waiting(self, *, now: float) -> dict[str, float]:
        """Tables whose windows are due, with the seconds since then: infinity for what was there when the
        process began. Those that fail and those that wait for the repair of a gap do not count.
        """
        found: dict[str, float] = {}
        for table_id in self._active:
            progress = self.tables[table_id]
            if not progress.can_continue or not self.may_apply(table_id) or self.halted(table_id):
                continue
            due = BEFORE if progress.pending.skipped is not None else self._due_at(table_id)
            if due is not None and due <= now:
                found[table_id] = now - due
        return found

    def maintainable(self) -> list[str]:
        """Tables that may be maintained now, as far as they are concerned."""
        return [table_id for table_id in self.tables if self._is_maintainable(table_id)]

    def _is_maintainable(self, table_id: str) -> bool:
        progress = self.tables[table_id]
        return (
            progress.pending.has_snapshot
            and not progress.failures
            and progress.place.version >= 0
            and self.may_apply(table_id)
            and self.state.tables[table_id].path not in self.busy
        )

    def maintain(self, path: str) -> None:
        """The lake table at `path` gets no window before `maintained`."""
        self.busy.add(path)
        self.in_maintenance.add(path)

    def maintained(self, path: str) -> None:
        """The maintenance of the lake table at `path` has ended."""
        self.busy.discard(path)
        self.in_maintenance.discard(path)

    def stands_at(self, table_id: str, progress: TableProgress, place: ExaminedVersion) -> None:
        """The lake table of `progress` was brought to `place`, with the same rows."""
        self._stands_at(table_id, progress, place)
        progress.place = place
        self._moved.add(table_id)

    def _stands_at(self, table_id: str, progress: TableProgress, place: ExaminedVersion) -> None:
        before = progress.place
        if self.tables.get(table_id) is progress and before.marker == place.marker and before.version < place.version:
            self._rewritten.append((table_id, before.version, place.version))

    def rewritten(self) -> list[tuple[str, int, int]]:
        """Tables by id, the version where each stood, and one with the same rows where it stands, since this
        was last asked.
        """
        rewritten, self._rewritten = self._rewritten, []
        return rewritten

    def idle(self) -> bool:
        """Whether nothing is left to do, quarantined tables apart."""
        at_work = (self.tables[table_id] for table_id in self._active if self.may_apply(table_id))
        if self.busy != self.in_maintenance:
            return False
        return all(item.quarantined or self._next_window(item, 0) is None for item in at_work)

    def report(self, tables: Iterable[str] | None = None) -> dict[str, AppliedTable]:
        """Every table, or those of `tables`, as the applier sees it."""
        return {
            table_id: self._row(table_id, self.tables[table_id])
            for table_id in (self.tables if tables is None else tables)
            if self.state.tables[table_id].schemas
        }

    def _row(self, table_id: str, progress: TableProgress) -> AppliedTable:
        state, pending = self.state.tables[table_id], progress.pending
        target = fed(state)
        schema = state.schemas[state.schema_version]
        shown, why = state.state, state.why
        failing = False
        if progress.stale is not None:
            shown, why = State.STALE, progress.stale
        elif state.paused is not None and state.state.is_followed:
            shown = State.PAUSED
        elif self.may_apply(table_id):
            shown = State.LIVE if state.state == State.SNAPSHOT else state.state
            shown = shown if pending.has_snapshot else State.SNAPSHOT
            if shown == State.LIVE and state.gaps and state.gaps[-1].seq > pending.applied_seq:
                shown, why = State.GAP, Reason(ReasonCode.GAP_NOT_APPLIED)
            shown, why = State.QUARANTINED if progress.quarantined else shown, progress.problem or why
            failing = progress.problem is not None
        return AppliedTable(
            table_id=state.table_id,
            schema_name=state.schema_name,
            table_name=state.table_name,
            path=state.path,
            mode=kind_of(state, schema).name,
            generation=state.generation,
            state=shown,
            why=why,
            through_seq=pending.through_seq(self.read_seq),
            complete_through_lsn=pending.complete_through(
                self.examined_lsn, held_lsn=None if state.state == State.LIVE else state.held_lsn
            ),
            commit_time_us=progress.commit_time_us,
            delta_version=progress.place.version,
            committed_seq=progress.committed_seq,
            rows_applied=progress.rows_applied,
            schema_version=progress.schema_version,
            failing=failing,
            way=progress.way.name,
            way_reason=progress.way.reason,
            files=progress.files,
            maintenance=progress.shown_maintenance(maintained=self._options.maintains(state.source_name)),
            target=target.name,
            track=target.track,
            soft_delete_retention=target.soft_delete_retention,
            layout=target.layout,
        )

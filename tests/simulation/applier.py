"""One applier process of a history, and the lake that it leaves.

Real are the intake, the ledger with its windows, what a restart makes of the lake's markers and the last report, and
what a step between schema versions is. The lake is a dictionary, and a window is folded row by row: strictly, so that
an insert of a row that is there, and a change of one that is not, are findings and not merged away. The order of the
steps of one window is that of `TableApply`.
"""

from dataclasses import dataclass, field
from typing import Any

from sluice.contract.applied import AppliedLog
from sluice.contract.entries import Changes, Segment
from sluice.contract.evolution import Added, identified_since, steps
from sluice.contract.schema import TableSchema
from sluice.errors import UnsupportedChange
from sluice.manifest.reader import load_state, read_entries
from sluice.manifest.values import TableState
from sluice_spark.applied_window import Applied
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.options import ApplyOptions
from sluice_spark.progress.intake import Intake
from sluice_spark.progress.ledger import Ledger
from sluice_spark.progress.restart import restore
from sluice_spark.progress.table_progress import Work
from sluice_spark.read.window import Window, visible
from tests.simulation.encoding import UNCHANGED, Change, Values, changes_of
from tests.simulation.steps import Clock, Store

FAR = (1 << 63) - 1


class Finding(AssertionError):
    """Something that must never happen, and did."""


@dataclass(slots=True)
class Kept:
    """The rows of a lake table as they were from `from_lsn` on, and no change of it came before `to_lsn`."""

    from_lsn: int
    to_lsn: int
    schema: TableSchema
    rows: dict[tuple[str | None, ...], Values]


@dataclass(slots=True)
class LakeTable:
    """One lake table: `marker` is in the same commit as the rows."""

    generation: int
    marker: int
    schema: TableSchema
    rows: dict[tuple[str | None, ...], Values]
    version: int = 0
    kept: list[Kept] = field(default_factory=list)
    taken: set[tuple[int, int]] = field(default_factory=set)
    """(LSN, ordinal) of the changes of this generation."""


@dataclass(slots=True)
class Lake:
    """What outlives a process: tables by id, and the newest report."""

    tables: dict[str, LakeTable] = field(default_factory=dict)
    log: AppliedLog | None = None


class Applier:
    """Raises StoreError when the store is away at the start."""

    def __init__(self, store: Store, lake: Lake, clock: Clock, *, window_bytes: int) -> None:
        self._store = store
        self._lake = lake
        self._clock = clock
        options = ApplyOptions("simulated", "memory://s", "memory://l", until_lsn=FAR, max_window_bytes=window_bytes)
        state = load_state(store)
        self.ledger = Ledger(options, state)
        self.ledger.begin({table_id: self._restored(one) for table_id, one in state.tables.items()})
        self.intake = Intake(store, self.ledger, poll_seconds=0)
        self.running: list[Work] = []
        self._brought: dict[str, int] = {}

    def _restored(self, state: TableState) -> Any:
        found = self._lake.tables.get(state.table_id)
        known = found is not None and found.generation == state.generation
        place = ExaminedVersion(found.version, found.marker, seen=True) if found is not None and known else None
        return restore(state, self._lake.log, place=place or ExaminedVersion())

    def read(self) -> None:
        """Takes entries in that are new."""
        self.intake.read(now=self._clock.monotonic())

    @property
    def can_begin(self) -> bool:
        """Whether a window is ready for a worker."""
        return len(self.running) < 2 and self._ready() is not None

    def _ready(self) -> Work | None:
        ready = self.ledger.ready(now=self._clock.monotonic(), boundary_seq=0)
        return next((one for one in ready if _has_work(one.window)), None)

    def begin(self) -> bool:
        """Gives a window to a worker, if one is ready."""
        now = self._clock.monotonic()
        work = self._ready()
        if work is None:
            return False
        self.ledger.begun(work, now=now)
        self.running.append(work)
        return True

    def end(self, number: int, *, fails: bool = False) -> None:
        """The worker has applied its window; with `fails` it meets an error right behind the commit."""
        work = self.running.pop(number)
        self.ledger.busy.discard(work.state.path)
        try:
            done = self._apply(work)
        except UnsupportedChange as error:
            work.progress.turns_stale(error)
            return
        if fails:
            self.ledger.failed(work, "an error behind the commit", now=self._clock.monotonic(), at=0.0, passing=True)
        else:
            self.ledger.applied(work, done)

    def report(self) -> None:
        """Writes what a restart begins with."""
        self._lake.log = AppliedLog(1, "simulated", "2030-01-01T00:00:00+00:00", self.ledger.report())

    @property
    def idle(self) -> bool:
        return not self.running and not self.ledger.behind() and self.ledger.idle()

    # one window

    def _apply(self, work: Work) -> Applied:
        window, state = work.window, work.state
        lake = self._lake.tables.get(work.table_id)
        lake = lake if lake is not None and lake.generation == state.generation else None
        if window.is_part:
            return Applied(work.progress.place, window.last_seq, committed=False, not_in_parts="not here")
        if lake is not None and lake.marker != work.progress.place.marker:
            # An earlier attempt has committed before it failed.
            return Applied(_place(lake), lake.marker, committed=False)
        if window.is_snapshot:
            return self._snapshot(work)
        assert lake is not None
        return self._changes(work, lake)

    def _snapshot(self, work: Work) -> Applied:
        state, snapshot = work.state, work.state.snapshot
        assert snapshot is not None
        schema = state.schemas[snapshot.schema_version]
        events: list[tuple[int, int, int, Change]] = []
        for place, segment in enumerate(work.window.segments):
            events += [(change[1], 1, place, change) for change in self._of(segment, state)]
        first, last = snapshot.first_lsn, snapshot.snapshot_lsn
        if first not in (0, last):
            for segment in self._between(state, first, last):
                events += [(one[1], 0, one[2], one) for one in self._of(segment, state) if first < one[1] <= last]
        rows: dict[tuple[str | None, ...], Values] = {}
        fresh = first in (0, last)
        for _, _, _, change in sorted(events, key=lambda event: event[:3]):
            _fold(rows, change, schema, strict=fresh, where=schema.qualified_name)
        before = self._lake.tables.get(work.table_id)
        version = before.version + 1 if before is not None else 0
        lake = LakeTable(state.generation, work.window.last_seq, schema.carried, rows, version)
        lake.kept.append(Kept(last, FAR, lake.schema, dict(rows)))
        self._lake.tables[work.table_id] = lake
        self._brought[work.table_id] = schema.version
        return Applied(_place(lake), work.window.last_seq, len(rows), schema.version)

    def _between(self, state: TableState, after_lsn: int, until_lsn: int) -> list[Segment]:
        found: list[Segment] = []
        for entry, _ in read_entries(self._store, after_seq=state.generation_seq):
            if entry.from_lsn >= until_lsn:
                break
            if isinstance(entry.body, Changes):
                found += [one for one in entry.body.segments if one.table_id == state.table_id]
        return [one for one in found if one.last_lsn > after_lsn and one.first_lsn <= until_lsn]

    def _changes(self, work: Work, lake: LakeTable) -> Applied:
        state, window = work.state, work.window
        snapshot = state.snapshot
        assert snapshot is not None
        after_lsn = state.after_lsn(window.last_seq)
        changes: list[tuple[Change, TableSchema]] = []
        for segment in visible(window.segments, snapshot_lsn=after_lsn):
            version = state.schemas[segment.schema_version]
            changes += [(one, version) for one in self._of(segment, state) if one[1] > after_lsn]
        changes.sort(key=lambda one: one[0][1:3])
        versions = {version.version for _, version in changes}
        known = self._brought.get(work.table_id, 0)
        newest = max(window.schema_version, snapshot.schema_version, known, *versions, 0)
        if not versions and newest == snapshot.schema_version:
            return Applied(_place(lake), window.last_seq, committed=False)
        numbers = {number for number in versions | {window.schema_version} if number >= snapshot.schema_version}
        identity = max((identified_since(state.schemas, number) for number in numbers), default=newest)
        self._evolve(lake, state, newest)
        self._brought[work.table_id] = newest
        if identity < identified_since(state.schemas, newest):
            changes = []
        if not changes:
            return Applied(_place(lake), window.last_seq, schema_version=newest, committed=False)
        if len({identified_since(state.schemas, version.version) for _, version in changes}) > 1:
            raise Finding(f"{lake.schema.qualified_name}: one window has rows that are identified in two ways")
        rows = dict(lake.rows)
        for kept in lake.kept:
            kept.to_lsn = min(kept.to_lsn, changes[0][0][1] - 1)
        for change, version in changes:
            if change[1:3] in lake.taken:
                raise Finding(f"{lake.schema.qualified_name}: the change at {change[1]:#x} is there twice")
            lake.taken.add((change[1], change[2]))
            # What came while the table was out of the publication is missing until a look finds that out.
            strict = change[1] <= self.ledger.examined_lsn
            _fold(rows, _projected(change, version, lake.schema), lake.schema, strict=strict,
                  where=lake.schema.qualified_name)  # fmt: skip
        lake.rows, lake.marker, lake.version = rows, window.last_seq, lake.version + 1
        from_lsn = max(changes[-1][0][1], state.schema_lsns.get(newest, 0) + 1)
        lake.kept.append(Kept(from_lsn, FAR, lake.schema, rows))
        return Applied(_place(lake), window.last_seq, len(changes), newest)

    def _of(self, segment: Segment, state: TableState) -> list[Change]:
        return changes_of(self._store, segment, state.schemas[segment.schema_version])

    @staticmethod
    def _evolve(lake: LakeTable, state: TableState, number: int) -> None:
        target = state.schemas[number].carried
        if target.version <= lake.schema.version:
            return
        found = steps(lake.schema, target)
        added = [step.column for step in found if isinstance(step, Added)]
        kept = {column.attnum for column in target.columns}
        rows: dict[tuple[str | None, ...], Values] = {}
        for row in lake.rows.values():
            row = {attnum: value for attnum, value in row.items() if attnum in kept}
            row.update({column.attnum: column.missing for column in added})
            rows[_key(row, target)] = row
        if len(rows) != len(lake.rows):
            raise UnsupportedChange("two rows have one key")
        lake.rows, lake.schema, lake.version = rows, target, lake.version + 1
        lsn = state.schema_lsns.get(number, 0)
        lake.kept[-1].to_lsn = min(lake.kept[-1].to_lsn, lsn)
        lake.kept.append(Kept(lsn + 1, FAR, target, rows))


def _has_work(window: Window) -> bool:
    return bool(window.segments or window.is_snapshot or window.schema_version or window.is_part)


def _place(lake: LakeTable) -> ExaminedVersion:
    return ExaminedVersion(lake.version, lake.marker, seen=True)


def _key(row: Values, schema: TableSchema) -> tuple[str | None, ...]:
    key = [column.attnum for column in schema.key_columns] or [column.attnum for column in schema.columns]
    return tuple(row.get(attnum) for attnum in key)


def _projected(change: Change, version: TableSchema, target: TableSchema) -> Change:
    """The change as one of the version that the lake table has."""
    op, lsn, ordinal, xid, new, old = change
    if version.version == target.version:
        return change
    had = {column.attnum for column in version.columns}

    def projected(row: Values) -> Values:
        return {
            column.attnum: row[column.attnum] if column.attnum in had else column.missing for column in target.columns
        }

    if op in "iu":
        new = projected(new)
    if old is not None and had <= old.keys():  # a whole row, which identifies one of the lake
        old = projected(old)
    return op, lsn, ordinal, xid, new, old


def _fold(
    rows: dict[tuple[str | None, ...], Values], change: Change, schema: TableSchema, *, strict: bool, where: str
) -> None:
    op, lsn, _, _, new, old = change
    if op == "t":
        rows.clear()
        return
    before = _key(old, schema) if old is not None else _key(new, schema)
    if op == "i":
        if strict and before in rows:
            raise Finding(f"{where}: the row {before} that was inserted at {lsn:#x} is there already")
        rows[before] = new
        return
    found = rows.pop(before, None)
    if found is None and strict:
        raise Finding(f"{where}: the row {before} that changed at {lsn:#x} is not there")
    if op == "u":
        whole = {attnum: (found or {}).get(attnum) if value == UNCHANGED else value for attnum, value in new.items()}
        after = _key(whole, schema)
        if strict and after in rows:
            raise Finding(f"{where}: the row {after} that another one became at {lsn:#x} is there already")
        rows[after] = whole

"""What is in the manifest and not in the lake: how many files and bytes, and since when.

Invariant: entries never change, so each is read once while it is pending; what is not read yet is
never taken for nothing. Reads in portions, so that one look at a long backlog stays short: until it
has caught up the sums are too low, and ages are those of what was read. Must not write.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from sluice.contract.applied import AppliedLog
from sluice.contract.entries import Changes, Entry, Segment, Snapshot
from sluice.health.tables import current
from sluice.manifest import horizon
from sluice.manifest.reader import read_entries
from sluice.manifest.values import PipelineState
from sluice.store.base import ObjectStore

READ_AT_ONCE = 1000
"""Entries read in one look: a second against a distant store."""
FAR_BEHIND = 1000
MOST_ITEMS = 400_000
"""Pending (entry, table) pairs that are remembered, some 60 MB; past it reading waits for the
applier.
"""

Appended = Callable[[int], Entry | None]
"""An entry that need not be asked of the store, by its number; None for others."""


@dataclass(frozen=True, slots=True)
class Pending:
    """`oldest_us` is the commit time of the oldest pending change, or when its entry was written if that was earlier;
    of a snapshot the time when it was written. `live` has, by key, every lake table that has its snapshot, with the
    time of the oldest change that it lacks (None: nothing).
    """

    files: int = 0
    bytes: int = 0
    oldest_us: int | None = None
    live: dict[str, int | None] = field(default_factory=dict)

    @property
    def oldest_live_us(self) -> int | None:
        """Commit time of the oldest change that any live table lacks."""
        return min((time_us for time_us in self.live.values() if time_us is not None), default=None)

    def lag_seconds(self, table_id: str, *, now: float) -> float | None:
        """Age of the oldest change in the spool that the table lacks, 0 when there is none; None
        when its rows are not in the lake.
        """
        if table_id not in self.live:
            return None
        oldest_us = self.live[table_id]
        return 0.0 if oldest_us is None else max(0.0, now - oldest_us / 1e6)


@dataclass(frozen=True, slots=True)
class _Item:
    seq: int
    files: int
    bytes: int
    first_us: int


class Backlog:
    """Follows one pipeline's manifest. For one thread."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._changes: dict[str, deque[_Item]] = {}
        self._snapshots: dict[tuple[str, int], _Item] = {}
        self._followed: set[str] = set()
        self._read_seq = 0
        self._read_us = 0
        self.appended: Appended = lambda _seq: None

    def read(self, state: PipelineState, applied: AppliedLog | None) -> Pending:
        """What is pending when the lake tables of the manifest are at `state` and the applier has said `applied`.
        Raises StoreError, ManifestCorrupt, FormatTooNew.
        """
        through, live = _through(state, applied)
        floor = min(through.values(), default=state.seq)
        fresh = through.keys() - self._followed
        if any(through[table_id] < self._read_seq for table_id in fresh):
            # A table that is followed again, or whose records went back: its entries have been passed by.
            self._changes, self._snapshots, self._read_seq = {}, {}, floor
        self._followed = set(through)
        self._read_seq = max(self._read_seq, floor)
        self._read(state.seq)
        self._forget(state, through, live)
        return self._sum(state, through, live, all_read=self._read_seq >= state.seq)

    def _read(self, last_seq: int) -> None:
        free = MOST_ITEMS - sum(map(len, self._changes.values()))
        if last_seq - self._read_seq > FAR_BEHIND:
            # What was pruned since is applied. A record that says otherwise is lost or old.
            self._read_seq = max(self._read_seq, horizon.floor_seq(self._store))
        limit = min(READ_AT_ONCE, last_seq - self._read_seq)
        if limit <= 0 or free <= 0:
            return
        end = self._read_seq + limit
        while self._read_seq < end and (entry := self.appended(self._read_seq + 1)) is not None:
            self._passed(entry)
        for entry, _ in read_entries(self._store, after_seq=self._read_seq, limit=end - self._read_seq):
            self._passed(entry)

    def _passed(self, entry: Entry) -> None:
        self._take(entry)
        self._read_seq = entry.seq

    def _take(self, entry: Entry) -> None:
        body, written_us = entry.body, int(datetime.fromisoformat(entry.written_at).timestamp() * 1_000_000)
        if isinstance(body, Snapshot):
            before = self._snapshots.get((body.table_id, body.generation), _Item(0, 0, 0, written_us))
            nbytes = sum(segment.bytes for segment in body.segments)
            self._snapshots[body.table_id, body.generation] = _Item(
                entry.seq, before.files + len(body.segments), before.bytes + nbytes, before.first_us
            )
        elif isinstance(body, Changes):
            times = body.commits.commit_time_us
            self._read_us = min(times[-1], written_us) if times else self._read_us
            for table_id, item in _items(entry.seq, body, written_us=written_us):
                self._changes.setdefault(table_id, deque()).append(item)

    def _forget(self, state: PipelineState, through: dict[str, int], live: set[str]) -> None:
        followed: dict[str, list[str]] = {}
        for key in through:
            followed.setdefault(state.tables[key].table_id, []).append(key)
        self._changes = {table_id: items for table_id, items in self._changes.items() if table_id in followed}
        for table_id, items in self._changes.items():
            # All lake tables of a source table wait for the same objects.
            slowest = min(through[key] for key in followed[table_id])
            while items and items[0].seq <= slowest:
                items.popleft()
        self._snapshots = {
            (table_id, generation): item
            for (table_id, generation), item in self._snapshots.items()
            if any(key not in live and state.tables[key].generation == generation for key in followed.get(table_id, ()))
        }

    def _sum(self, state: PipelineState, through: dict[str, int], live: set[str], *, all_read: bool) -> Pending:
        waiting = [item for items in self._changes.values() for item in items] + list(self._snapshots.values())
        unseen = None if all_read else self._read_us or None
        # Before the first commit that was read, nothing is known of a table without pending changes.
        oldest: dict[str, int | None] = {}
        for key in live:
            items = self._changes.get(state.tables[key].table_id, ())
            first_us = next((item.first_us for item in items if item.seq > through[key]), None)
            if first_us is not None or all_read or unseen:
                oldest[key] = unseen if first_us is None else first_us
        return Pending(
            files=sum(item.files for item in waiting),
            bytes=sum(item.bytes for item in waiting),
            oldest_us=min((item.first_us for item in waiting), default=unseen),
            live=oldest,
        )


def _through(state: PipelineState, applied: AppliedLog | None) -> tuple[dict[str, int], set[str]]:
    """The last entry of which nothing is left to do, by table that the applier works on; and the
    tables whose snapshot is in the lake. A table that is paused is no backlog; its record may say so
    for a while after the pause has ended.
    """
    known = applied.tables if applied else {}
    through: dict[str, int] = {}
    live: set[str] = set()
    for table_id, table in state.tables.items():
        record = current(table, known.get(table_id))
        if not table.is_applied or (record is not None and not record.state.is_followed):
            continue
        has_snapshot = record is not None and (record.state.has_initial_rows or record.complete_through_lsn > 0)
        through[table_id] = record.through_seq if record is not None and has_snapshot else table.generation_seq
        if has_snapshot:
            live.add(table_id)
    return through, live


def _items(seq: int, changes: Changes, *, written_us: int) -> Iterator[tuple[str, _Item]]:
    # The clock of the source may be ahead of ours. A change is not younger than the entry that holds it.
    by_table: dict[str, list[Segment]] = {}
    for segment in changes.segments:
        by_table.setdefault(segment.table_id, []).append(segment)
    for table_id, segments in by_table.items():
        first_us = min(written_us, *map(changes.first_commit_time_us, segments))
        yield table_id, _Item(seq, len(segments), sum(segment.bytes for segment in segments), first_us)

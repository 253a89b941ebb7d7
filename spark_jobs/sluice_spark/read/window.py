"""Which changes one commit to one table takes: the changes that wait for a table, and how windows
are cut from them.

Owns: windows are gap-free and in manifest order, no change is taken before the snapshot of its
generation is complete, and a snapshot is one window of its own. A snapshot of several entries is given out in
parts before, while it is still read. No window has changes that name their
rows in two ways (`identified_alike`): ingest ends an entry where the way changes. The changes of a table that is
stopped can be forgotten: what remains says from which entry on to read again, and reports no more
progress than was made. Pure: entries in, windows out.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from sluice.contract.entries import Body, Changes, Entry, Opened, Repair, Segment, Snapshot
from sluice.contract.evolution import identified_since
from sluice.contract.schema import TableSchema
from sluice.manifest.gaps import Gap

NO_ORIGINS: Mapping[int, tuple[str, int]] = {}
NO_SCHEMAS: Mapping[int, TableSchema] = MappingProxyType({})
BEFORE = float("-inf")
"""When something could first be read that was there before the clock was looked at."""


class Chunk(NamedTuple):
    """Entry `seq` of a snapshot of several: rows as of `lsn`, which could first be read at `since`."""

    seq: int
    lsn: int
    segments: tuple[Segment, ...]
    since: float


@dataclass(frozen=True, slots=True)
class Window:
    """What one commit carries. `last_seq` becomes the marker's version; for a snapshot it is the
    generation's first entry.

    `chunks` are those of a snapshot of several entries, from the first one on: all of them when
    `is_snapshot`, otherwise those through entry `last_seq`, of which `segments` are new. `changed` says
    whether rows of the table changed since the first of them.

    `origins` has (name, LSN there) of transactions that replication brought to the source, by
    commit end LSN. `schema_version` is the newest one that began within the window (0: none): the
    lake table gets its shape even when no row came in it. A window without either is there because something else is
    said of the table.
    """

    segments: tuple[Segment, ...]
    last_seq: int
    is_snapshot: bool = False
    origins: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    schema_version: int = 0
    chunks: tuple[Chunk, ...] = ()
    changed: bool = False

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)

    @property
    def is_part(self) -> bool:
        """Whether it is a part of a snapshot, which goes beside the lake table."""
        return bool(self.chunks) and not self.is_snapshot


class Waiting(NamedTuple):
    """What one entry holds for a table. `through_lsn` is through where the table is complete without it, `since` is
    when the entry could first be read, on the loop's clock. `alone`: it is a window of its own. The table is that of
    `as_of_lsn` afterwards, where that is not 0. `schema_version` is the newest one that begins here, with the first
    rows in it or without any (0: none), `identity` the version from which on rows are identified as they are here.
    """

    seq: int
    through_lsn: int
    segments: tuple[Segment, ...]
    bytes: int
    since: float
    alone: bool = False
    as_of_lsn: int = 0
    schema_version: int = 0
    identity: int = 0

    @property
    def rows(self) -> int:
        """Changes in the segments."""
        return sum(segment.rows for segment in self.segments)


@dataclass(slots=True)
class PendingChanges:
    """What one generation of one table still has to take.

    `applied_seq` is the last manifest entry of which nothing is left to do: every change up to it
    is in the lake.
    """

    generation: int
    generation_seq: int
    applied_seq: int
    snapshot_lsn: int = 0
    has_snapshot: bool = False
    snapshot_final: bool = False
    snapshot_since: float = BEFORE
    """When its last entry could first be read, once it is final."""
    chunks: list[Chunk] = field(default_factory=list)
    """The entries of the snapshot."""
    chunk_seq: int = 0
    """The newest entry of the snapshot."""
    built: int = 0
    """How many of `chunks` were given out as parts, and are beside the lake table."""
    in_parts: bool = False
    """Whether the snapshot is given out in parts."""
    changed_lsn: int = 0
    """Where the newest change ended that came before the snapshot was complete."""
    changes: deque[Waiting] = field(default_factory=deque)
    waiting_bytes: int = 0
    """Of the segments in `changes`."""
    waiting_rows: int = 0
    """Of the segments in `changes`."""
    origins: dict[int, Mapping[int, tuple[str, int]]] = field(default_factory=dict)
    """By seq, of entries that have any."""
    identities: dict[int, int] = field(default_factory=dict)
    """By schema version, see Waiting; as far as it was asked for."""
    takes_repairs: bool = True
    """Whether rows that were read again become rows of the lake table."""
    reported_lsn: int = 0
    """Through which LSN an earlier process reported the table to be complete."""
    confirmed_lsn: int = 0
    """The same where the lake table stands as it was reported: it has not become less since."""
    halted_seq: int = 0
    """The entry of a gap that is open: nothing behind it is taken in. 0 without one."""
    skipped: tuple[int, int] | None = None
    """(seq, through_lsn of the entry before) of the first entry that is not in `changes` although
    it may hold some; those behind it are not there either.
    """

    def take_in(
        self,
        entry: Entry,
        table_id: str,
        *,
        through_lsn: int,
        origins: Mapping[int, tuple[str, int]] = NO_ORIGINS,
        since: float = BEFORE,
        gap: Gap | None = None,
        schemas: Mapping[int, TableSchema] = NO_SCHEMAS,
    ) -> None:
        """Notes the changes that `entry` holds for the table. Entries come in order and without repetition; the
        one before went through `through_lsn`. `gap` is the table's that begins with this entry, and `schemas`
        are all its schema versions.

        `origins` are the entry's, by commit end LSN; they are shared by all tables. `since` is when
        the entry could first be read.
        """
        if entry.seq <= self.generation_seq:
            return
        body = entry.body
        if isinstance(body, Changes) and not self.has_snapshot:
            ends = (segment.last_lsn for segment in body.segments if segment.table_id == table_id)
            self.changed_lsn = max([self.changed_lsn, *ends])
        if isinstance(body, Snapshot) and body.table_id == table_id and body.generation == self.generation:
            self.snapshot_lsn = max(self.snapshot_lsn, body.snapshot_lsn)
            if not self.has_snapshot and not self.snapshot_final:
                self._take_chunk(entry.seq, body, since)
        elif self.skipped is None:
            empty = Waiting(entry.seq, min(through_lsn, entry.examined_lsn), (), 0, since)
            if isinstance(body, Opened):
                self._take_in_gap(gap, empty)
            else:
                self._note(entry, table_id, empty, origins, schemas)

    def _take_chunk(self, seq: int, body: Snapshot, since: float) -> None:
        if seq <= self.chunk_seq:
            return  # Taken in while changes were skipped; now the changes around it are.
        self.chunk_seq = seq
        if not self.chunks:
            self.in_parts = not body.final
        if body.segments or not body.final:
            self.chunks.append(Chunk(seq, body.snapshot_lsn, body.segments, since))
        self.snapshot_final, self.snapshot_since = body.final, since

    def _take_in_gap(self, gap: Gap | None, empty: Waiting) -> None:
        """At the beginning of a gap: what closed it comes before everything behind it, and until there is
        such a thing nothing does.
        """
        if gap is None or empty.seq <= self.applied_seq:
            return
        if not gap.closed:
            self.halted_seq, self.skipped = empty.seq, (empty.seq, empty.through_lsn)
            return
        self.halted_seq = 0
        size = sum(segment.bytes for segment in gap.segments)
        self.changes.append(empty._replace(segments=gap.segments, bytes=size, alone=True, as_of_lsn=gap.as_of_lsn))
        self._weigh(size, self.changes[-1].rows)

    @property
    def is_halted(self) -> bool:
        """Whether everything in front of an open gap is applied."""
        return (
            self.halted_seq > 0
            and not self.changes
            and self.skipped is not None
            and (self.skipped[0] == self.halted_seq)
        )

    def _note(
        self,
        entry: Entry,
        table_id: str,
        empty: Waiting,
        origins: Mapping[int, tuple[str, int]],
        schemas: Mapping[int, TableSchema],
    ) -> None:
        body = entry.body
        if entry.seq <= self.applied_seq or _closes_gap(body) or (isinstance(body, Repair) and not self.takes_repairs):
            return
        segments: tuple[Segment, ...] = ()
        if isinstance(body, Changes | Repair):
            segments = tuple(segment for segment in body.segments if segment.table_id == table_id)
        begun = [table.schema.version for table in entry.tables if table.table_id == table_id and table.schema]
        described = any(table.table_id == table_id and table.described is not None for table in entry.tables)
        if not segments and not begun and not described:
            return
        size = sum(segment.bytes for segment in segments)
        numbers = (*begun, *(file.schema_version for file in segments))
        identity = max((self._identity(one, schemas) for one in numbers), default=0)
        self.changes.append(
            empty._replace(
                segments=segments,
                bytes=size,
                # Rows that were read again tell nothing of those before them: a fold takes one or the other.
                alone=isinstance(body, Repair),
                schema_version=max(begun, default=0),
                identity=identity,
            )
        )
        self._weigh(size, self.changes[-1].rows)
        if segments and origins:
            self.origins[entry.seq] = origins

    def _weigh(self, size: int, rows: int) -> None:
        self.waiting_bytes += size
        self.waiting_rows += rows

    def _identity(self, version: int, schemas: Mapping[int, TableSchema]) -> int:
        if version not in self.identities and version in schemas:
            self.identities[version] = identified_since(schemas, version)
        return self.identities.get(version, 0)

    def keep(self, count: int) -> None:
        """Forgets all but the `count` oldest entries with changes. What is forgotten can be taken
        in again, see `take_again`.
        """
        while len(self.changes) > count:
            last = self.changes.pop()
            self._weigh(-last.bytes, -last.rows)
            self.origins.pop(last.seq, None)
            self.skipped = last.seq, last.through_lsn

    def stop(self) -> None:
        """From now on no changes are taken in for this table, before they are taken again. Only its
        position is kept.
        """
        self.skipped = self.applied_seq + 1, self.reported_lsn

    def take_again(
        self,
        entry: Entry,
        table_id: str,
        *,
        through_lsn: int | None = None,
        newest_seq: int,
        origins: Mapping[int, tuple[str, int]] = NO_ORIGINS,
        gap: Gap | None = None,
        schemas: Mapping[int, TableSchema] = NO_SCHEMAS,
    ) -> None:
        """Takes in the entry that `skipped` names; up to `newest_seq` more of them follow, unless it
        begins a gap that is open.
        """
        assert self.skipped is not None
        assert self.skipped[0] == entry.seq
        self.skipped = None
        through_lsn = entry.from_lsn if through_lsn is None else through_lsn
        self.take_in(entry, table_id, through_lsn=through_lsn, origins=origins, gap=gap, schemas=schemas)
        if entry.seq < newest_seq and self.skipped is None:
            self.skipped = entry.seq + 1, min(entry.through_lsn, entry.examined_lsn)

    @property
    def since(self) -> float | None:
        """When the oldest thing that can be applied now could first be read, None without any."""
        if not self.has_snapshot:
            if self.in_parts and self.built < len(self.chunks):
                return self.chunks[self.built].since
            return self.snapshot_since if self.snapshot_final else None
        return self.changes[0].since if self.changes else None

    def next_window(self, *, max_bytes: int, until_seq: int, read_lsn: int = 0, after_seq: int = 0) -> Window | None:
        """The next thing to apply, no later than `until_seq`, or None. An entry larger than
        `max_bytes` is taken whole: a transaction is never cut. With `after_seq` it is what comes next
        once everything up to there was applied.

        Entries through `read_lsn` have been taken in: a part of a snapshot of another moment than its
        first one comes with all changes up to that moment, and waits for them.
        """
        if not self.has_snapshot:
            return self._part(max_bytes, read_lsn) or self._whole()
        taken: list[Segment] = []
        origins: dict[int, tuple[str, int]] = {}
        last_seq = schema_version = size = identity = 0
        for item in self.changes:
            if item.seq <= after_seq:
                continue
            size += item.bytes
            otherwise = item.identity not in (0, identity) and identity > 0
            if item.seq > until_seq or (last_seq and (item.alone or otherwise)) or (taken and size > max_bytes):
                break
            taken.extend(item.segments)
            schema_version = item.schema_version or schema_version
            identity = item.identity or identity
            origins.update(self.origins.get(item.seq, NO_ORIGINS))
            last_seq = item.seq
            if item.alone:
                break
        if not last_seq:
            return None
        return Window(tuple(taken), last_seq, origins=origins, schema_version=schema_version)

    def _part(self, max_bytes: int, read_lsn: int) -> Window | None:
        """The next chunks of one moment."""
        if not self.in_parts:
            return None
        taken: list[Segment] = []
        size, end = 0, self.built
        for chunk in self.chunks[self.built :]:
            is_there = self.snapshot_final or chunk.lsn == self.chunks[0].lsn or read_lsn >= chunk.lsn
            size += sum(segment.bytes for segment in chunk.segments)
            if not is_there or chunk.lsn != self.chunks[self.built].lsn or (end > self.built and size > max_bytes):
                break
            taken += chunk.segments
            end += 1
        chunks = tuple(self.chunks[:end])
        changed = self.changed_lsn > self.chunks[0].lsn
        return Window(tuple(taken), chunks[-1].seq, chunks=chunks, changed=changed) if end > self.built else None

    def _whole(self) -> Window | None:
        """The snapshot, once nothing of it is missing. Its parts were given out before."""
        if not self.snapshot_final:
            return None
        segments = tuple(segment for chunk in self.chunks for segment in chunk.segments)
        chunks = tuple(self.chunks) if self.in_parts else ()
        return Window(segments, self.generation_seq, is_snapshot=True, chunks=chunks)

    def done(self, window: Window, *, apart: bool = True) -> None:
        """`window` is in the lake, or beside it if it is a part of a snapshot. Without `apart` it cannot be
        there: no other part is given out, and the snapshot comes as a whole.
        """
        if window.is_part:
            self.built, self.in_parts = max(self.built, len(window.chunks)), self.in_parts and apart
            return
        if window.is_snapshot:
            self.has_snapshot = True
            self.chunks.clear()
            return
        self.applied_seq = max(self.applied_seq, window.last_seq)
        while self.changes and self.changes[0].seq <= window.last_seq:
            item = self.changes.popleft()
            self._weigh(-item.bytes, -item.rows)
            self.snapshot_lsn = max(self.snapshot_lsn, item.as_of_lsn)
            self.origins.pop(item.seq, None)
        if self.skipped is not None and self.skipped[0] <= window.last_seq:
            self.skipped = window.last_seq + 1, self.skipped[1]

    def _next(self) -> tuple[int, int] | None:
        """(seq, through_lsn of the entry before) of the first entry that is still to be applied, if
        there is one.
        """
        return self.changes[0][:2] if self.changes else self.skipped

    def complete_through(self, newest_lsn: int, *, held_lsn: int | None = None) -> int:
        """The LSN through which the lake table is complete, when entries through `newest_lsn` have
        been taken in and the catalog was examined so far; 0 before the snapshot. `held_lsn` is that of a table
        that is not live.
        """
        if not self.has_snapshot:
            return 0
        following = self._next()
        known = following[1] if following else newest_lsn
        return max(self.snapshot_lsn, self.confirmed_lsn, known if held_lsn is None else min(known, held_lsn))

    def through_seq(self, newest_seq: int) -> int:
        """The last entry of which every change is in the lake, when entries up to `newest_seq` have
        been taken in.
        """
        if not self.has_snapshot:
            return 0
        following = self._next()
        return following[0] - 1 if following else max(newest_seq, self.applied_seq)


def _closes_gap(body: Body) -> bool:
    """Its rows come where the gap begins."""
    return isinstance(body, Repair) and body.gap_seq > 0


def visible(segments: Iterable[Segment], *, snapshot_lsn: int) -> list[Segment]:
    """Segments that may hold a change which the snapshot does not."""
    return [segment for segment in segments if segment.body is not None or segment.last_lsn > snapshot_lsn]

"""What a stream has to read between two entries of the manifest, and where it must end.

Owns that a range of entries gives the same parts whenever it is planned, and that nothing is passed over in silence: in
front of whatever the stream cannot carry (another generation, another shape, lost changes, entries that were pruned)
it stops, and the next step says by name what it is. Reads only.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sluice.contract.entries import Changes, Entry, Opened, Repair, Segment, Snapshot
from sluice.contract.entries import Table as Stated
from sluice.contract.table_state import State
from sluice.errors import ServiceError, UnsupportedChange, UsageError
from sluice.lsn import show
from sluice.manifest import entry_lookup
from sluice.manifest.reader import load_state, objects_pruned_through, pruned_through, read_entries
from sluice.manifest.values import PipelineState, TableState
from sluice.store.base import ObjectStore
from sluice_spark.source.rows import REPAIR, SNAPSHOT, STATE, Part, require_carried
from sluice_spark.spool import StorePrefix

_STOPPED = (State.STALE, State.QUARANTINED, State.DETACHED)
_ANEW = "begin again with a new checkpoint"
_BEHIND = "begin behind them, with startingPosition=latest and a new checkpoint, or resync the table"
_known: dict[StorePrefix, PipelineState] = {}
"""The newest state that this process has read: what follows it is read next."""


def newest(spool: StorePrefix) -> PipelineState:
    """The state of the manifest. Raises ManifestCorrupt, FormatTooNew, StoreError."""
    _known[spool] = load_state(spool.open(), known=_known.get(spool))
    return _known[spool]


@dataclass(frozen=True, slots=True)
class Followed:
    """One table as a stream follows it: `table` as of now, in the shape that it had when the stream was planned."""

    table: TableState
    version: int

    @property
    def name(self) -> str:
        return self.table.source_name

    @property
    def of(self) -> str:
        """What tells it from everything else in its manifest."""
        return f"{self.table.table_id}/{self.table.generation}"

    @property
    def first_seq(self) -> int:
        """The entry behind which the present generation of the table lies as a whole."""
        return self.table.generation_seq

    @property
    def is_whole(self) -> bool:
        """Whether its initial rows are there."""
        return self.table.snapshot is not None and self.table.snapshot.final

    def begins_at(self, seq: int) -> bool:
        """Whether the snapshot is still to come behind entry `seq`."""
        return seq <= self.table.generation_seq

    def is_end_of_snapshot(self, entry: Entry) -> bool:
        body = entry.body
        return isinstance(body, Snapshot) and body.table_id == self.table.table_id and body.final

    def obstacle(self, entry: Entry) -> str:
        """Why the stream cannot go past `entry`, empty when it can."""
        table = self.table
        if isinstance(entry.body, Opened) and entry.body.lost is not None:
            return f"changes of {self.name} up to {show(entry.through_lsn)} were lost with the slot; {_BEHIND}"
        # An entry that opens an epoch turns tables stale without a word of its own about them.
        if table.state in _STOPPED and entry.seq >= table.stated_seq:
            return f"{self.name} is {table.state}: {table.reason} (entry {table.stated_seq})"
        for stated in entry.tables:
            if stated.table_id == table.table_id and (why := self._stated(stated)):
                return f"{why} (entry {entry.seq})"
        return ""

    def _stated(self, stated: Stated) -> str:
        if stated.generation > self.table.generation:
            return f"{self.name} was read again as a whole; {_ANEW}"
        if stated.generation == self.table.generation and stated.state in _STOPPED:
            return f"{self.name} is {stated.state}: {stated.reason}"
        if stated.schema is not None and stated.schema.version > self.version:
            return f"the columns of {self.name} changed; start the query again, and it goes on with those of now"
        return ""

    def parts(self, entry: Entry, spool: StorePrefix) -> Iterator[Part]:
        """What `entry` has of the table, for tasks. Raises UnsupportedChange."""
        table, body = self.table, entry.body
        snapshot = table.snapshot
        after_lsn = snapshot.first_lsn if snapshot is not None else 0
        if isinstance(body, Snapshot | Repair) and (body.table_id, body.generation) == (
            table.table_id,
            table.generation,
        ):
            how, lsn = (SNAPSHOT, body.snapshot_lsn) if isinstance(body, Snapshot) else (REPAIR, body.as_of_lsn)
            for segment in body.segments:
                yield self._part(segment, spool, after_lsn, how=how, as_of_lsn=lsn)
        elif isinstance(body, Changes):
            for segment in body.segments:
                is_later = segment.body is not None or segment.last_lsn > after_lsn
                if segment.table_id == table.table_id and entry.seq > table.generation_seq and is_later:
                    yield self._part(segment, spool, after_lsn)

    def _part(self, segment: Segment, spool: StorePrefix, after_lsn: int, *, how: str = "", as_of_lsn: int = 0) -> Part:
        version, target = self.table.schemas[segment.schema_version], self.table.schemas[self.version]
        require_carried(version, target, moves=segment.key_changes > 0)
        return Part(spool, segment, version, target, self.table.generation, after_lsn, how, as_of_lsn)


def followed(state: PipelineState, name: str) -> Followed:
    """The table called schema.table. Raises UsageError when there is none, or no snapshot of it yet."""
    tables = state.tables.values()
    found = [table for table in tables if table.source_name == name and table.state is not State.DETACHED]
    if not found:
        raise UsageError(f"{name} is no table that the pipeline carries; `sluice tables` lists them as schema.table")
    if len(found) > 1:
        raise UsageError(f"{name} may be more than one table of the pipeline, and no stream can tell which is meant")
    (table,) = found
    if not table.schemas:
        raise UsageError(f"{name} has no snapshot yet; try again when `sluice tables` shows it as live")
    return Followed(table, table.schema_version)


@dataclass(frozen=True, slots=True)
class Everything:
    """All tables as a stream follows them, each change in the shape that it came in. `tables` are those of now."""

    tables: Mapping[str, TableState]
    name: str = "every table"
    of: str = "*"
    first_seq: int = 0
    is_whole: bool = True

    def begins_at(self, seq: int) -> bool:  # noqa: ARG002 - the form of Followed
        """Snapshots come as they were read."""
        return False

    def is_end_of_snapshot(self, entry: Entry) -> bool:  # noqa: ARG002 - the form of Followed
        return False

    def obstacle(self, entry: Entry) -> str:  # noqa: ARG002 - the form of Followed
        """What becomes of a table is a row of its own."""
        return ""

    def parts(self, entry: Entry, spool: StorePrefix) -> Iterator[Part]:
        """What `entry` has of all tables, for tasks. Raises UnsupportedChange."""
        body = entry.body
        for stated in entry.tables:
            if stated.state is not None and stated.state is not State.LIVE:
                yield self._said(spool, entry, stated.table_id, stated.state, stated.reason, stated.generation)
        if isinstance(body, Opened):
            for table in self.tables.values():
                if body.lost is not None and _was_there(table, entry):
                    said = f"changes up to {show(entry.through_lsn)} were lost with the slot"
                    yield self._said(spool, entry, table.table_id, State.GAP, said, None)
                elif table.stated_seq == entry.seq:
                    yield self._said(spool, entry, table.table_id, table.state, table.reason, table.generation)
        if isinstance(body, Snapshot | Repair):
            how, lsn = (SNAPSHOT, body.snapshot_lsn) if isinstance(body, Snapshot) else (REPAIR, body.as_of_lsn)
            for segment in body.segments:
                yield self._part(segment, spool, generation=body.generation, how=how, as_of_lsn=lsn)
        elif isinstance(body, Changes):
            for segment in body.segments:
                yield self._part(segment, spool)

    def _part(
        self,
        segment: Segment,
        spool: StorePrefix,
        *,
        generation: int | None = None,
        how: str = "",
        as_of_lsn: int = 0,
    ) -> Part:
        table = self.tables.get(segment.table_id)
        version = table.schemas.get(segment.schema_version) if table is not None else None
        if version is None:
            raise UnsupportedChange(
                f"{segment.key} is of a table that was dropped so long ago that its columns are forgotten; "
                "begin with startingPosition=latest and a new checkpoint"
            )
        return Part(spool, segment, version, version, generation, 0, how, as_of_lsn)

    def _said(
        self, spool: StorePrefix, entry: Entry, table_id: str, state: State, reason: str, generation: int | None
    ) -> Part:
        table = self.tables.get(table_id)
        names = (table.schema_name, table.table_name) if table is not None else ("", table_id)
        said = json.dumps({"state": state, "reason": reason}, ensure_ascii=False)
        return Part(spool, None, None, None, generation, 0, STATE, entry.through_lsn, said, names)


def _was_there(table: TableState, entry: Entry) -> bool:
    """Whether the pipeline carried the table at `entry`."""
    has_left = table.state is State.DETACHED and table.stated_seq < entry.seq
    return not has_left and (table.generation > 1 or table.generation_seq < entry.seq)


Subject = Followed | Everything
ALL = "*"


def subject(state: PipelineState, name: str) -> Subject:
    """The table called schema.table, or all of them. Raises UsageError."""
    return Everything(state.tables) if name == ALL else followed(state, name)


@dataclass(frozen=True, slots=True)
class Place:
    """Behind entry `seq`, whose bytes have the hash `sha256`, empty where that is not known. After an older copy of the
    spool was restored, the number belongs to another entry.
    """

    seq: int
    sha256: str


def place_at(store: ObjectStore, seq: int) -> Place:
    """Behind entry `seq`, which may be gone. Raises ManifestCorrupt, FormatTooNew, StoreError."""
    link = entry_lookup.find(store, seq) if seq else None
    return Place(seq, link.sha256 if link is not None else "")


def end_of(state: PipelineState) -> Place:
    """Behind the last entry that `state` has."""
    return Place(state.seq, state.previous_sha256)


def require_known(state: PipelineState, place: Place) -> None:
    """Raises UnsupportedChange when `state` does not come to `place`, or has another entry as its last one."""
    if state.seq < place.seq or (state.seq == place.seq and place.sha256 not in ("", state.previous_sha256)):
        raise _restored(place)


def further(store: ObjectStore, one: Subject, *, after: Place, last_seq: int, most: int) -> Place:
    """How far the stream can go on behind `after`, to `last_seq` at most, and about `most` entries at once. A snapshot
    comes as a whole. Raises ServiceError for what stands right in front of it, or of the end of its snapshot.
    """
    whole, reached = not one.begins_at(after.seq), after
    for entry, sha256 in _entries(store, after=after, last_seq=last_seq):
        if why := one.obstacle(entry):
            if reached.seq == after.seq:
                raise UnsupportedChange(why)
            break
        whole = whole or one.is_end_of_snapshot(entry)
        if whole:
            reached = Place(entry.seq, sha256)
            if entry.seq - after.seq >= most:
                break
    return reached


def parts(store: ObjectStore, one: Subject, spool: StorePrefix, *, after: Place, last: Place) -> list[Part]:
    """What the entries behind `after`, through `last`, have of the table. Raises ServiceError."""
    found: list[tuple[int, Part]] = []
    reached = after
    for entry, sha256 in _entries(store, after=after, last_seq=last.seq):
        if why := one.obstacle(entry):
            raise UnsupportedChange(why)
        found += ((entry.seq, part) for part in one.parts(entry, spool))
        reached = Place(entry.seq, sha256)
    if reached != last:
        raise _restored(last)
    first = next((seq for seq, part in found if part.segment is not None), None)
    if first is not None:
        _require_kept(store, first)
    return [part for _, part in found]


def _entries(store: ObjectStore, *, after: Place, last_seq: int) -> Iterator[tuple[Entry, str]]:
    if last_seq > after.seq and after.seq < (floor := pruned_through(store)):
        raise _pruned(after.seq + 1, floor)
    for entry, sha256 in read_entries(store, after_seq=after.seq, limit=max(0, last_seq - after.seq)):
        if entry.seq == after.seq + 1 and after.sha256 not in ("", entry.previous_sha256):
            raise _restored(after)
        yield entry, sha256


def _restored(place: Place) -> UnsupportedChange:
    return UnsupportedChange(
        f"the spool does not have entry {place.seq} that this query has read: an older copy of the spool was restored; "
        f"{_ANEW}"
    )


def _require_kept(store: ObjectStore, seq: int) -> None:
    if seq <= (pruned := objects_pruned_through(store)):
        raise _pruned(seq, pruned)


def _pruned(seq: int, pruned: int) -> ServiceError:
    return UsageError(
        f"this reader has lost its place: it needs entry {seq} of the manifest, and the spool was pruned through entry "
        f"{pruned}; {_ANEW}, or with startingPosition=latest, or keep more with spool.retention"
    )

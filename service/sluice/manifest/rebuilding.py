"""What a lake table needs of the spool to be made again without the source: everything of its present generation.

Invariant: a table is called rebuildable only when every object that its entries name is there, with its size. What was
pruned is named. Reads only.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sluice.contract.entries import Changes, Entry, Repair, Segment, Snapshot
from sluice.errors import UsageError
from sluice.manifest.ending import begins
from sluice.manifest.reader import pruned_through, read_entries
from sluice.manifest.values import PipelineState, TableState
from sluice.store.base import ObjectStore
from sluice.store.calls import together

THREADS = 16
_ANEW = "`sluice resync {table}` reads the table from the source again"


@dataclass(frozen=True, slots=True)
class Rebuild:
    """All that the present generation of a table is made of."""

    first_seq: int
    last_seq: int
    segments: int
    bytes: int


def plan(store: ObjectStore, state: PipelineState, table: TableState) -> Rebuild:
    """What `table` would be made of. Raises UsageError when the spool does not have all of it, or the table is none
    that is applied, ManifestCorrupt, FormatTooNew, StoreError.
    """
    return plans(store, state, [table])[table.table_id]


def plans(store: ObjectStore, state: PipelineState, tables: Iterable[TableState]) -> dict[str, Rebuild]:
    """The same of several tables, by id: all through the entry of `state`, and what ended through its position."""
    wanted = {table.table_id: table for table in tables}
    floor = pruned_through(store)
    for table in wanted.values():
        _require_beginning(table, floor=floor)
    segments: dict[str, dict[str, Segment]] = {table_id: {} for table_id in wanted}
    first = min((table.generation_seq for table in wanted.values()), default=state.seq + 1)
    for entry, _ in read_entries(store, after_seq=first - 1, limit=state.seq - first + 1):
        for table_id, table in wanted.items():
            if entry.seq >= table.generation_seq:
                found = (segment for segment in segments_of(entry, table) if begins(segment) <= state.through_lsn)
                segments[table_id].update((segment.key, segment) for segment in found)
    for table_id, table in wanted.items():
        _require_objects(store, table, segments[table_id])
    return {
        table_id: Rebuild(
            table.generation_seq,
            state.seq,
            len(segments[table_id]),
            sum(segment.bytes for segment in segments[table_id].values()),
        )
        for table_id, table in wanted.items()
    }


def _require_beginning(table: TableState, *, floor: int) -> None:
    name = table.source_name
    hint = _ANEW.format(table=name)
    if not table.is_applied:
        raise UsageError(f"{name} is {table.state}, and its changes are not applied now", hint=hint)
    if not table.schemas:
        raise UsageError(f"{name} has no snapshot yet", hint="the applier creates its lake table without being asked")
    if table.generation_seq <= floor:
        raise UsageError(
            f"the snapshot of {name} began with entry {table.generation_seq}, and the spool begins after entry {floor}",
            hint=hint,
        )


def _require_objects(store: ObjectStore, table: TableState, segments: Mapping[str, Segment]) -> None:
    name = table.source_name
    missing = [
        key
        for key, size in zip(segments, together(store.size, list(segments), threads=THREADS), strict=True)
        if size != segments[key].bytes
    ]
    if missing:
        raise UsageError(
            f"segments of {name} are not in the spool any more, {len(missing)} of {len(segments)}: {missing[0]} "
            "is the first",
            hint=_ANEW.format(table=name),
        )


def segments_of(entry: Entry, table: TableState) -> Iterator[Segment]:
    """What the entry has of the present generation of `table`."""
    body = entry.body
    if isinstance(body, Snapshot | Repair):
        if (body.table_id, body.generation) == (table.table_id, table.generation):
            yield from body.segments
    elif isinstance(body, Changes):
        yield from (segment for segment in body.segments if segment.table_id == table.table_id)

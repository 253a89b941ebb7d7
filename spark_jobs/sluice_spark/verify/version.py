"""Which version of a lake table to read for a position, and which changes of the spool come on top.

Owns that nothing is left out between the two: the version's marker says through which entry it has
everything, and the entries behind that one are read up to the position.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract import envelope
from sluice.contract.applied import AppliedTable
from sluice.contract.entries import Changes, Repair, Segment
from sluice.errors import ApplyError, ObjectMissing
from sluice.lsn import show
from sluice.manifest import horizon
from sluice.manifest.reader import identity, load_state, read_entries, read_entry
from sluice.manifest.values import PipelineState, TableState
from sluice.store.base import ObjectStore
from sluice_spark.fold.spill import Versioned
from sluice_spark.lake.entry_hashes import EntryHashes
from sluice_spark.lake.foreign_commits import (
    COMMIT,
    Commit,
    changes_data,
    commit_name,
    of_another_entry,
    read_commit,
)
from sluice_spark.lake.opening import application_id
from sluice_spark.read.changes import read_rows
from sluice_spark.read.window import visible

POLL_SECONDS = 0.5
_RESYNC = "`sluice resync {}` reads the table from the source again"
MOST_COMMITS = 2000
"""Of a table's log that are looked through for the version of a position."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of the lake table, complete through `lsn`, and the entry behind which changes may be
    missing in it. `newest`: there is no later one.
    """

    number: int
    lsn: int
    after_seq: int
    newest: bool


class WaitedOut(ApplyError):
    """The time of the question has passed: another attempt would only take as long again."""


class NotThere(WaitedOut):
    """The lake table has to come further before it can be compared."""


def wait_for(store: ObjectStore, *, lsn: int, seconds: float) -> PipelineState:
    """The manifest's state once it has passed `lsn`. Raises WaitedOut when ingest does not come there in time."""
    deadline = time.monotonic() + seconds
    state = load_state(store)
    while state.through_lsn < lsn:
        if time.monotonic() > deadline:
            raise WaitedOut(
                f"the source was read as of {show(lsn)}; in {seconds:g}s ingest has come to {show(state.through_lsn)}",
                hint="is ingest running? `sluice status` says why it does not continue",
            )
        time.sleep(POLL_SECONDS)
        state = load_state(store)
    return state


def find_version(
    spool: ObjectStore,
    lake: ObjectStore,
    state: TableState,
    *,
    pipeline: str,
    lsn: int,
    before: AppliedTable | None,
    marker_now: Callable[[], tuple[int, int | None]],
) -> Version:
    """The newest version that has nothing from after `lsn`. `marker_now` asks Delta for the newest
    version and its marker, where the log's own files do not say; `before` is that of the question. Raises ApplyError
    when there is none.
    """
    app_id = application_id(pipeline, state, manifest=identity(spool))
    folder = f"{state.path}/_delta_log/"
    names = (key.removeprefix(folder) for key in lake.list(folder))
    numbers = sorted((int(match[1]) for name in names if (match := COMMIT.fullmatch(name))), reverse=True)
    candidate = numbers[0] if numbers else -1
    changed: Commit | None = None
    for number in numbers[:MOST_COMMITS]:
        name = commit_name(number)
        try:
            commit = read_commit(number, lake.get(folder + name).splitlines(), name=name)
        except ObjectMissing:
            break
        marker = commit.markers.get(app_id)
        if marker is None:
            changed = commit if changes_data(commit) and not commit.is_of(app_id) else changed
            continue
        _require_in_front(state, marker)
        position = _position(spool, state, marker)
        if position <= lsn:
            if state.gap is not None and changed is not None:
                _refuse_changed(state, changed)
            if said := of_another_entry(commit, marker, EntryHashes(spool).of(marker)):
                raise ApplyError(said, hint=_RESYNC.format(state.source_name))
            return Version(candidate, position, _done(before, state, marker), newest=candidate == numbers[0])
        candidate, changed = number - 1, None
    newest, marker = marker_now()
    if marker is not None:
        _require_in_front(state, marker)
    if marker is not None and candidate == newest and _position(spool, state, marker) <= lsn:
        return Version(newest, _position(spool, state, marker), _done(before, state, marker), newest=True)
    raise ApplyError(
        "the lake table has no version as of that position: its first rows are not there, or its log was cleaned up",
        hint="try again when `sluice tables` shows it as live",
    )


def _require_in_front(state: TableState, marker: int) -> None:
    """Raises ApplyError when the lake table names an entry behind the open gap, where the applier stands still: the
    table is of a log that went on elsewhere. What closes the gap, and what follows, would be taken for applied.
    """
    if state.gap is not None and marker >= state.gap.seq:
        raise ApplyError(
            f"the lake table has entry {marker}, and the gap begins with entry {state.gap.seq}: an older copy of the "
            "spool was restored",
            hint=_RESYNC.format(state.source_name),
        )


def _refuse_changed(state: TableState, changed: Commit) -> None:
    """What somebody else put into a lake table would not be read again for the others that the gap is closed for."""
    raise ApplyError(
        f"somebody else changed the lake table in front of the gap: {changed.description()}",
        hint=_RESYNC.format(state.source_name),
    )


def _position(spool: ObjectStore, state: TableState, marker: int) -> int:
    """Through which LSN the rows of a marker are complete."""
    if marker == state.generation_seq:
        assert state.snapshot is not None
        return state.snapshot.snapshot_lsn
    gap = next((gap for gap in state.gaps if gap.seq == marker), None)
    if gap is not None:
        return gap.as_of_lsn
    entry = read_entry(spool, marker)
    if entry is None:
        # Entries are pruned when their changes are in the lake: there were none behind this one.
        pruned = horizon.base(spool)
        if pruned.seq < marker:
            raise ApplyError(f"manifest entry {marker}, which the lake table names, is gone")
        return pruned.through_lsn
    return entry.through_lsn


def _done(before: AppliedTable | None, state: TableState, marker: int) -> int:
    """The last entry behind `marker` through which the applier has found nothing for the table."""
    if before is None or (before.generation, before.committed_seq) != (state.generation, marker):
        return marker
    return max(marker, before.through_seq)


def segments_until(spool: ObjectStore, state: TableState, *, after_seq: int, lsn: int) -> list[Segment]:
    """Those of the table in the entries behind `after_seq` that may hold a change which ended at or
    before `lsn` and is not in the rows that were read; of a table with an open gap all in front of it. Raises
    NotThere while rows that were read again are not in the lake.
    """
    if any(gap.seq > after_seq and gap.closed for gap in state.gaps):
        raise NotThere("what closed a gap of it is not in the lake yet")
    segments: list[Segment] = []
    for entry, _ in read_entries(spool, after_seq=after_seq):
        if isinstance(entry.body, Repair) and entry.body.table_id == state.table_id and not entry.body.gap_seq:
            raise NotThere("a repair of it is not in the lake yet")
        if isinstance(entry.body, Changes):
            segments += [
                segment
                for segment in entry.body.segments
                if segment.table_id == state.table_id and _begins(segment) <= lsn
            ]
        if entry.seq >= state.gap.seq if state.gap is not None else entry.through_lsn >= lsn:
            break
    return visible(segments, snapshot_lsn=state.after_lsn(after_seq + 1))


def changes_in(
    spool: ObjectStore, state: TableState, segments: list[Segment], *, after_seq: int, lsn: int, limit: int
) -> Iterator[Versioned]:
    """The changes of `segments`, from behind entry `after_seq`, that ended at or before `lsn`. Raises
    ApplyError when they take more than `limit` bytes.
    """
    size = sum(segment.bytes for segment in segments)
    if size > limit:
        raise ApplyError(
            f"{size} bytes of changes are not applied yet, more than can be taken into account",
            hint="try again when the applier has caught up, or raise apply.max_memory",
        )
    for segment in segments:
        for rows in read_rows(spool, segment, after_lsn=state.after_lsn(after_seq + 1)):
            until: pa.Table = rows.filter(pc.less_equal(rows[envelope.LSN], lsn))
            if len(until):
                yield until, state.schemas[segment.schema_version]


def _begins(segment: Segment) -> int:
    return segment.body.end_lsn if segment.body is not None else segment.first_lsn

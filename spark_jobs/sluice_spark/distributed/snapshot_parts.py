"""A snapshot of several entries, applied part by part to a table of its own while the rest is still read.

Owns the rule of `sluice.contract.chunks` on this side: the changes from between two moments come before the
chunks of the later one. Behind them the table has the row of every key that changed, as of that moment: every
change sends all values, or the chunks are not joined. So of a chunk the rows of these keys are left out, and
all others are new (a row that did not change is in one chunk). Behind each commit the table is what the
contract's replay makes of everything up to there. The marker says what that is: `_marker`. Each part is a
commit, and what a crash costs is the part that was under way.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from sluice.contract import envelope
from sluice.contract.entries import Segment
from sluice.errors import ServiceError, UnsupportedChange
from sluice.manifest.values import TableState
from sluice_spark.distributed.distribution import Distribution
from sluice_spark.distributed.touched_keys import TouchedSpan
from sluice_spark.kinds.registry import kind_of, snapshot_columns
from sluice_spark.lake.build import BuildTable, part_marker
from sluice_spark.lake.commit_way import NotDirect
from sluice_spark.lake.table import LakeTable
from sluice_spark.options import ApplyOptions
from sluice_spark.read.window import Chunk


class _Part(NamedTuple):
    """Chunks of one moment, one after the other."""

    lsn: int
    chunks: list[Chunk]

    @property
    def segments(self) -> list[Segment]:
        return [segment for chunk in self.chunks for segment in chunk.segments]


class SnapshotParts:
    """The snapshot of the table in the state `state`, whose parts go to `build`."""

    def __init__(self, options: ApplyOptions, build: BuildTable, state: TableState) -> None:
        assert state.snapshot is not None
        self._build = build
        self._table = build.table
        self._schema = state.schemas[state.snapshot.schema_version]
        self._snapshot = state.snapshot
        if refused := kind_of(state, self._schema).not_in_parts:
            raise NotDirect(refused)
        self._columns = snapshot_columns(options, state, self._schema.carried)
        # A row of the source may be in the table already, whatever it is called.
        self._distribution = Distribution(options, build.table, build.path, state, removals_sent=False)

    def has(self, chunks: Sequence[Chunk]) -> bool:
        """Whether the table is the snapshot of `chunks`, which are all there are. Raises UnsupportedChange,
        ApplyError.
        """
        last = chunks[-1]
        found = self._table.find(None).marker
        is_last = found == part_marker(last.seq, its_rows=True) and last.lsn == self._snapshot.snapshot_lsn
        return is_last and self._has_columns()

    def _has_columns(self) -> bool:
        return self._table.column_names() == [name for name, _ in self._columns]

    def bring(self, chunks: Sequence[Chunk], *, lake: LakeTable, changed: bool) -> int:
        """Applies those of `chunks`, the first ones of the snapshot, that the table does not have. `lake` is the
        table that it is built for. Without `changed` no row of the source changed since the first chunk. Returns how
        many rows the chunks have that it applied.

        Raises NotDirect when that cannot be, UnsupportedChange when the chunks do not give the table,
        ManifestCorrupt, ApplyError, StoreError.
        """
        place = self._table.find(None)
        if place.marker is None and place.version >= 0:
            raise UnsupportedChange("its folder contains another Delta table")
        if place.marker is not None and not self._has_columns():
            raise NotDirect("it was begun with other columns")
        if place.marker is None:
            self.forget_keys()
            self._build.clear(is_table=lake.recorded().version >= 0)
        done = place.marker or 0
        as_of = max((chunk.lsn for chunk in chunks if part_marker(chunk.seq, its_rows=False) <= done), default=0)
        undone = [chunk for chunk in chunks if part_marker(chunk.seq, its_rows=True) > done]
        try:
            for lsn, some in groupby(undone, key=lambda chunk: chunk.lsn):
                self._apply(_Part(lsn, list(some)), first_lsn=chunks[0].lsn, as_of=as_of, changed=changed)
                as_of = lsn
        except (ServiceError, NotDirect):
            # The next attempt finds the keys anew, whatever became of those in the scratch.
            self.forget_keys()
            raise
        return sum(segment.rows for chunk in undone for segment in chunk.segments)

    def forget_keys(self) -> None:
        """Removes what was kept from part to part, of this snapshot or an earlier one."""
        found: TouchedSpan | None = self._build.touched.pop(self._build.folder.name, None)
        self._distribution.remove(found.objects if found is not None else ())

    def _apply(self, part: _Part, *, first_lsn: int, as_of: int, changed: bool) -> None:
        """`as_of` is the moment up to which changes have been applied, 0 for a table that is to be made."""
        marker = part_marker(part.chunks[-1].seq, its_rows=True)
        touched: tuple[str, ...] | None = ()
        if changed and part.lsn > first_lsn:
            if part.lsn > as_of:
                self._bring_changes(part, first_lsn=first_lsn, as_of=as_of)
            touched = self._touched(first_lsn=first_lsn, until_lsn=part.lsn)
        if touched is None and part.segments:
            # Too many keys for the memory of a task: each row is looked for.
            self._merge(part.segments, marker, after_lsn=0, until_lsn=part.lsn)
        else:
            self._distribution.snapshot(
                part.segments,
                self._schema,
                self._columns,
                lsn=part.lsn,
                marker=marker,
                further=as_of > 0,
                touched=touched or (),
            )

    def _bring_changes(self, part: _Part, *, first_lsn: int, as_of: int) -> None:
        changes = self._distribution.changes(after_lsn=max(first_lsn, as_of), until_lsn=part.lsn)
        if any(segment.ops.get(envelope.OP_TRUNCATE) for segment in changes):
            raise UnsupportedChange("it was truncated between two chunks")
        if changes:
            self._merge(changes, part_marker(part.chunks[0].seq, its_rows=False), after_lsn=as_of, until_lsn=part.lsn)

    def _touched(self, *, first_lsn: int, until_lsn: int) -> tuple[str, ...] | None:
        """The keys of rows that changed after the first moment, None when they are too many."""
        found: TouchedSpan | None = self._build.touched.get(self._build.folder.name)
        if found is None or found.app_id != self._table.app_id:
            self.forget_keys()
            found = TouchedSpan(self._table.app_id, first_lsn)
        if found.through_lsn < until_lsn:
            changes = self._distribution.changes(after_lsn=found.through_lsn, until_lsn=until_lsn)
            found = self._distribution.touched(changes, found, until_lsn=until_lsn)
            self._build.touched[self._build.folder.name] = found
        return found.objects if found.memory <= self._distribution.task_memory else None

    def _merge(self, segments: Sequence[Segment], marker: int, *, after_lsn: int, until_lsn: int) -> None:
        with self._distribution.window(
            segments, self._schema.carried, after_lsn=after_lsn, until_lsn=until_lsn
        ) as window:
            self._table.commit_newest(marker, window)

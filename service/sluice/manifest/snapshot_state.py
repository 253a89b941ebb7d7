"""The snapshot of a table's present generation, entry by entry. Pure.

Invariant: an entry is added only if it may follow: no block twice, nothing of another moment that
cannot be joined (`contract.chunks`), and no end before everything is there.
"""

import json
from dataclasses import dataclass, replace

from sluice.contract.chunks import BlockRange, is_complete, not_joinable, united
from sluice.contract.entries import Segment, Snapshot
from sluice.contract.schema import TableSchema
from sluice.lsn import show


@dataclass(frozen=True, slots=True)
class SnapshotState:
    """The snapshot of a table's present generation, as far as it was read.

    `snapshot_lsn` is the position of the newest chunk, `first_lsn` that of the oldest: when it is
    final, its rows and the changes up to `snapshot_lsn` together are the table as of `snapshot_lsn`
    (see `contract.chunks`). `done` are the blocks that were read of `relations`, united.
    `relfilenode` and `fingerprint` are the facts under which the first chunk was read. `broken` says
    why no chunk of a later moment can be added, empty while one can; `unsent_lsn` is the first position
    behind `first_lsn` of a change without all its values, 0 when there is none.
    """

    snapshot_lsn: int
    schema_version: int
    segments: int
    rows: int
    final: bool = False
    first_lsn: int = 0
    entries: int = 0
    relations: tuple[str, ...] = ()
    done: tuple[BlockRange, ...] = ()
    relfilenode: int = 0
    fingerprint: str = ""
    broken: str = ""
    unsent_lsn: int = 0

    @property
    def complete(self) -> bool:
        """Whether every block was read, though the snapshot need not be final."""
        return bool(self.relations) and is_complete(self.relations, self.done)

    def not_joined(self, lsn: int) -> str:
        """Why the chunks, and others up to `lsn`, are not the table as of one moment; empty when they
        are, or can be.
        """
        if lsn == self.first_lsn:
            return ""
        if self.unsent_lsn and self.unsent_lsn <= lsn:
            return "a row may have moved between chunks that were read at different moments without all its values"
        return self.broken

    def plus(self, chunk: Snapshot, *, through_lsn: int) -> "SnapshotState":
        """With another entry, in a manifest that is complete through `through_lsn`. Raises ValueError for
        one that may not follow: of a later moment that cannot be joined, with a block that was read, or
        an end that is none.
        """
        if self.final or self.schema_version != chunk.schema_version or chunk.snapshot_lsn < self.snapshot_lsn:
            raise ValueError("it is finished, in another schema version or of a later moment")
        if self.entries and chunk.relations:
            raise ValueError("it names again what it reads")
        if not {one.relation for one in chunk.ranges} <= set(self.relations):
            raise ValueError("it has blocks of a relation that it does not read")
        broken = self.broken or ("" if self.relations else "it is not cut")
        if broken and chunk.snapshot_lsn != self.first_lsn:
            raise ValueError(f"its chunks are of several moments, which cannot be joined: {broken}")
        after = replace(
            self,
            snapshot_lsn=chunk.snapshot_lsn,
            segments=self.segments + len(chunk.segments),
            rows=self.rows + sum(segment.rows for segment in chunk.segments),
            done=united((*self.done, *chunk.ranges)),
            final=chunk.final,
            entries=self.entries + 1,
        )
        if after.final:
            after._check_end(through_lsn)
        return after

    def _check_end(self, through_lsn: int) -> None:
        if self.relations and not self.complete:
            raise ValueError("it ends, and blocks were not read")
        if self.first_lsn != self.snapshot_lsn and through_lsn < self.snapshot_lsn:
            raise ValueError(f"it ends before the changes up to its last chunk, {show(self.snapshot_lsn)}, are there")
        if not_joined := self.not_joined(self.snapshot_lsn):
            raise ValueError(f"its chunks cannot be joined: {not_joined}")

    def interrupted(self, reason: str) -> "SnapshotState":
        """For `reason` only chunks of the same moment can be added, unless it is final."""
        return self if self.final else replace(self, broken=self.broken or reason)

    def with_unsent(self, segment: Segment) -> "SnapshotState":
        """With changes that came without all their values."""
        if self.final or self.unsent_lsn or segment.last_lsn <= self.first_lsn:
            return self
        return replace(self, unsent_lsn=max(segment.first_lsn, self.first_lsn + 1))


def published_kinds(fingerprint: str) -> str:
    """A letter for each kind of change that the publication sent (i u d t) when the catalog was looked at
    for `fingerprint`; empty when it never was.
    """
    return str(json.loads(fingerprint).get("publishes", "")) if fingerprint else ""


def begun(first: Snapshot, *, schema: TableSchema, origin: str, unsent_lsn: int) -> SnapshotState:
    """Before the first entry. `unsent_lsn` is the newest position so far of a change
    without all its values.
    """
    publishes = published_kinds(first.fingerprint) if first.relations else ""
    return SnapshotState(
        first.snapshot_lsn,
        first.schema_version,
        0,
        0,
        first_lsn=first.snapshot_lsn,
        relations=first.relations,
        relfilenode=first.relfilenode,
        fingerprint=first.fingerprint,
        broken=not_joinable(schema, publishes=publishes, origin=origin),
        unsent_lsn=first.snapshot_lsn + 1 if unsent_lsn > first.snapshot_lsn else 0,
    )

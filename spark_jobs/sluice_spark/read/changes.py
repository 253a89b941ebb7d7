"""The changes of one window, as often as they are asked for and never all at once unless they fit.

Owns the choice between memory and disk: by what the decoded rows weigh, not by what the manifest
says of the files. Must not interpret changes beyond what cutting them needs.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract import envelope
from sluice.contract.entries import Segment
from sluice.contract.schema import TableSchema
from sluice.errors import UnsupportedChange
from sluice.store.base import ObjectStore
from sluice_spark.fold.partition import Cutter, Groups, Links, cutter_for, weight
from sluice_spark.fold.spill import Versioned
from sluice_spark.read.segments import read_rows

_LINK_COST = 100
"""Bytes that one link takes while the groups are found."""


@dataclass(slots=True)
class Count:
    """What passed by: how many changes, of which kinds (by the codes of the envelope), and the
    newest commit time among them.
    """

    rows: int = 0
    commit_time_us: int = 0
    ops: Counter[str] = field(default_factory=Counter)

    def over(self, changes: Iterable[Versioned]) -> Iterator[Versioned]:
        for rows, version in changes:
            self.rows += len(rows)
            self.commit_time_us = max(self.commit_time_us, pc.max(rows[envelope.TS]).cast(pa.int64()).as_py() or 0)
            for kind in pc.value_counts(rows[envelope.OP]).to_pylist():
                self.ops[kind["values"]] += kind["counts"]
            yield rows, version


def versions_in(changes: Iterable[Versioned]) -> list[TableSchema]:
    """The schema versions of `changes`, ascending."""
    found = {version.version: version for _, version in changes}
    return [found[number] for number in sorted(found)]


@dataclass(frozen=True, slots=True)
class WindowChanges:
    """Changes of `segments` that exist and ended after `after_lsn`, with the schema version each
    table of them has.
    """

    store: ObjectStore
    segments: Sequence[Segment]
    schemas: Mapping[int, TableSchema]
    after_lsn: int

    def __iter__(self) -> Iterator[Versioned]:
        for segment in self.segments:
            for rows in read_rows(self.store, segment, after_lsn=self.after_lsn):
                yield rows, self.schemas[segment.schema_version]

    def within(self, limit: int) -> list[Versioned] | None:
        """All of them, or None when they weigh more than `limit`."""
        if sum(segment.bytes for segment in self.segments) > limit:
            return None
        taken: list[Versioned] = []
        size = 0
        for rows, version in self:
            size += weight(rows, version)
            if size > limit:
                return None
            taken.append((rows, version))
        return taken

    def versions(self) -> list[TableSchema]:
        """The schema versions of which there is a change, ascending: a version that came with a
        rolled-back change does not count.
        """
        numbers = sorted({segment.schema_version for segment in self.segments})
        return [
            self.schemas[number]
            for number in numbers
            if any(segment.schema_version == number and self._has_rows(segment) for segment in self.segments)
        ]

    @property
    def only_inserts(self) -> bool:
        """Whether every change is an inserted row."""
        return all(
            not count for segment in self.segments for op, count in segment.ops.items() if op != envelope.OP_INSERT
        ) and not any(sum(segment.unchanged.values()) for segment in self.segments)

    def cutter(self, versions: Sequence[TableSchema], *, limit: int) -> Cutter:
        """How to cut the window, keys that must stay together found by a pass over the key columns.
        Raises UnsupportedChange when those are too many.
        """
        plain = cutter_for(versions)
        return cutter_for(versions, self._groups(plain, limit=limit)) if versions[-1].key_columns else plain

    def _groups(self, cutter: Cutter, *, limit: int) -> Groups:
        links = Links()
        names = [column.name for column in cutter.columns]
        for segment in self.segments:
            if not segment.key_changes or not sum(segment.unchanged.values()):
                continue
            wanted = [*names, envelope.OP, envelope.OLD, envelope.UNCHANGED, envelope.SPECIAL, envelope.OLD_SPECIAL]
            for rows in read_rows(self.store, segment, after_lsn=self.after_lsn, names=wanted):
                links.add(*cutter.moves(rows))
            if links.count * _LINK_COST > limit:
                raise UnsupportedChange(
                    f"one entry moves more than {links.count} rows to other keys without sending all their values",
                    hint="raise apply.max_memory, or copy the table again",
                )
        return links.groups()

    def _has_rows(self, segment: Segment) -> bool:
        if segment.body is None and segment.first_lsn > self.after_lsn:
            return segment.rows > 0
        return next(read_rows(self.store, segment, after_lsn=self.after_lsn, names=()), None) is not None

"""Rows of a snapshot that was taken at one moment, as the lake table will have them.

Owns that no row of a segment is passed on whose bytes are not those that the manifest describes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sluice.contract import envelope
from sluice.contract.entries import Segment
from sluice.contract.schema import TableSchema
from sluice.store.base import ObjectStore
from sluice_spark.read.changes import read_rows
from sluice_spark.read.projection import Projection


def snapshot_tables(store: ObjectStore, segments: Iterable[Segment], version: TableSchema) -> Iterator[pa.Table]:
    """The rows of `segments`, which have the schema version `version`, with the columns that the lake carries.
    Raises ManifestCorrupt, StoreError.
    """
    carried = Projection(version, version.carried)
    for segment in segments:
        yield from map(carried.of, read_rows(store, segment))


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """The rows of `segments` in `store`, which have the schema version `version`, of a snapshot taken at `lsn`."""

    store: ObjectStore
    segments: Sequence[Segment]
    version: TableSchema
    lsn: int

    def within(self, limit: int) -> pa.Table | None:
        """All of them, or None when they take more than `limit` bytes. Raises ManifestCorrupt, StoreError."""
        if sum(segment.bytes for segment in self.segments) > limit:
            return None
        tables: list[pa.Table] = []
        size = 0
        for rows in snapshot_tables(self.store, self.segments, self.version):
            size += rows.nbytes
            if size > limit:
                return None
            tables.append(self._stamped(rows))
        return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})

    def _stamped(self, rows: pa.Table) -> pa.Table:
        place = rows.column_names.index(envelope.LSN)
        return rows.set_column(place, envelope.LSN, pa.repeat(pa.scalar(self.lsn, pa.int64()), len(rows)))

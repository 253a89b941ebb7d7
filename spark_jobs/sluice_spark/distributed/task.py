"""What every task of a window is given: where its bytes lie, which they are, and what they become.

Pickled to the executors, so it holds values only. The stores' options are secrets: they are kept out of
every repr, and no path of the driver's machine is among them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sluice.contract.entries import Segment
from sluice.contract.schema import TableSchema
from sluice_spark.fold.spill import Versioned
from sluice_spark.kinds.kind import Kind
from sluice_spark.lake.direct.data_files import FileWriter, Written
from sluice_spark.lake.direct.table_folder import TableFolder
from sluice_spark.lake.layout import TableLayout
from sluice_spark.read.changes import NEWEST, WindowChanges
from sluice_spark.read.projection import Projection
from sluice_spark.spool import StorePrefix

_LEAST_BIN, _MOST_BIN = 1024 * 1024, 32 * 1024 * 1024
_BINS_A_SLOT = 4


UNKNOWN = TableLayout((), {})
"""Before the table was looked at."""


@dataclass(frozen=True, slots=True)
class WindowTask:
    """A window of one table: `bins` are its segments, a task's share each, of which changes up to
    `after_lsn` are in the lake already, and those after `until_lsn` do not belong to it. They become rows of
    `schema` in a table of `layout`, which is of `kind`.

    A task holds about `limit` bytes of decoded changes. What it hands to a later job lies below
    `scratch` in the spool.
    """

    spool: StorePrefix
    lake: StorePrefix
    table_folder: str
    scratch: str
    bins: tuple[tuple[Segment, ...], ...]
    after_lsn: int
    schemas: Mapping[int, TableSchema]
    schema: TableSchema
    limit: int
    kind: Kind
    removals_sent: bool
    metadata: bool
    origins: Mapping[int, tuple[str, int]]
    until_lsn: int = NEWEST
    layout: TableLayout = UNKNOWN

    @property
    def folder(self) -> TableFolder:
        """The lake table's files."""
        return TableFolder(self.lake.open(), self.table_folder)

    @property
    def columns(self) -> list[str]:
        """The lake table's, by name."""
        return [name for name, _ in self.kind.columns(self.schema, metadata=self.metadata)]

    def written(self, tables: Iterable[pa.Table]) -> Written:
        """New data files of `tables`, which have the lake's columns among others."""
        keys = frozenset(self.layout.field(column.name).name for column in self.schema.key_columns)
        writer, written = FileWriter(self.folder, self.layout, keys), Written()
        for table in tables:
            writer.write(table, written)
        return written

    def changes(self, number: int) -> WindowChanges:
        """The changes of bin `number`."""
        return WindowChanges(
            self.spool.open(), self.bins[number], self.schemas, self.after_lsn, self.schema, self.until_lsn
        )

    def version(self, number: int) -> TableSchema:
        """What the changes of a schema version look like in `changes`."""
        return Projection(self.schemas[number], self.schema).schema

    def united(self, parts: Sequence[Versioned]) -> pa.Table:
        """`parts` as changes of the newest schema version."""
        return self.kind.united(parts, self.schema, self.origins)


def in_bins(segments: Sequence[Segment], *, slots: int, most: int = _MOST_BIN) -> tuple[tuple[Segment, ...], ...]:
    """`segments` in shares for one task each: small ones together in up to `most` bytes, and as many
    shares as keep all slots busy.
    """
    size = sum(segment.bytes for segment in segments) // (slots * _BINS_A_SLOT)
    size = min(max(size, _LEAST_BIN), most)
    bins: list[list[Segment]] = []
    bytes_left = 0
    for segment in segments:
        if not bins or segment.bytes > bytes_left:
            bins.append([])
            bytes_left = size
        bins[-1].append(segment)
        bytes_left -= segment.bytes
    return tuple(map(tuple, bins))

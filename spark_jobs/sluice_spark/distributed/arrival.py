"""A snapshot that comes to a lake table which keeps its rows."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from sluice.contract import envelope
from sluice.contract.entries import Segment
from sluice.contract.schema import TableSchema
from sluice.store.base import ObjectStore
from sluice_spark.kinds.kind import Kind, Moment
from sluice_spark.lake.failures import translated_errors
from sluice_spark.lake.resync import kept, own_rows
from sluice_spark.lake.table import LakeTable
from sluice_spark.read.changes import read_rows


@dataclass(frozen=True, slots=True)
class Arrival:
    """A snapshot taken at `lsn`, of which `segments` of `store` are some, for a table of `kind` with `columns` (name,
    Spark type). `schemas` are all versions of the source table, of which `schema` is the snapshot's.
    """

    store: ObjectStore
    kind: Kind
    schema: TableSchema
    schemas: Mapping[int, TableSchema]
    columns: Sequence[tuple[str, str]]
    lsn: int
    segments: Sequence[Segment]

    def beside_kept(self, lake: LakeTable, rows: DataFrame) -> DataFrame:
        """What `lake` holds when `rows`, all of the snapshot, have come. Raises UnsupportedChange, ManifestCorrupt,
        StoreError.
        """
        kind = self.kind
        if not kind.keeps_rows or lake.place.version < 0:
            return rows
        with translated_errors():
            own = own_rows(lake)
            if kind.sign not in lake.session.sql(f"SELECT * FROM {own}").columns:
                return rows
            versions = [version.carried for version in self.schemas.values()]
            old = kept(lake, own, versions, self.schema, tuple(self.columns))
            return kind.resynced(old, rows, self.schema, self.columns, Moment(self.lsn, self._time_us()))

    def _time_us(self) -> int:
        """When it was read: about now, where it has no row that says it."""
        for segment in self.segments:
            for rows in read_rows(self.store, segment, names=()):
                time_us: int = rows[envelope.TS][0].cast(pa.int64()).as_py()
                return time_us
        return time.time_ns() // 1000

"""Rows of a snapshot's segments, as a DataFrame whose tasks fetch and check them.

Owns that no row of a segment reaches the lake whose bytes are not those that the manifest describes: a
task that finds others fails, and with it the commit. The rows go to Spark's own writer, which makes
the table.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from sluice import faults
from sluice.contract.entries import Segment
from sluice.contract.schema import TableSchema
from sluice_spark.distributed.stages import Piece, Stages, as_declared, stamped
from sluice_spark.distributed.touched_keys import Untouched
from sluice_spark.kinds.kind import Kind
from sluice_spark.lake.rows_to_commit import struct
from sluice_spark.read.changes import read_rows, snapshot_tables
from sluice_spark.spool import StorePrefix

_NO_COLUMNS = pa.schema([])
BIN_BYTES = 64 * 1024 * 1024
"""Of segments for one task, which writes a data file."""


@dataclass(frozen=True, slots=True)
class SnapshotTask:
    """`bins` of segments in `spool` in the schema version `version`, whose rows get the columns `schema` of a table of
    `kind`. Those are left out whose keys are in the objects `touched` of the spool.
    """

    spool: StorePrefix
    bins: tuple[tuple[Segment, ...], ...]
    version: TableSchema
    kind: Kind
    touched: tuple[str, ...] = ()
    schema: pa.Schema = _NO_COLUMNS


def snapshot_frame(stages: Stages, task: SnapshotTask, columns: Sequence[tuple[str, str]], *, lsn: int) -> DataFrame:
    """The rows of a snapshot taken at `lsn` with the columns (name, Spark type)."""
    schema = struct(columns)
    if task.bins:
        task = replace(task, schema=to_arrow_schema(schema, timezone="UTC"))
        frame = stages.first_rows(_rows, task, tasks=len(task.bins), schema=schema)
    else:
        frame = stages.session.createDataFrame([], schema)
    return stamped(frame, columns, lsn=lsn)


def _rows(task: SnapshotTask, numbers: Iterator[int]) -> Iterator[pa.RecordBatch]:
    untouched = Untouched(task.spool, task.touched)
    for number in numbers:
        for rows in snapshot_tables(task.spool.open(), task.bins[number], task.version):
            arrived = task.kind.arrived(untouched.of(rows, task.version.carried))
            yield from as_declared(arrived, task.schema)
        faults.point("apply.distributed.snapshot")


def check(task: SnapshotTask, numbers: Iterable[int]) -> Iterator[Piece]:
    """Nothing. Raises what is wrong with a segment."""
    for number in numbers:
        for segment in task.bins[number]:
            for _ in read_rows(task.spool.open(), segment, names=()):
                pass
    yield from ()

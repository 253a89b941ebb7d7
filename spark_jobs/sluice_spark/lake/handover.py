"""Rows on their way to Spark: small windows as a relation inside Spark's plan, large ones as
Parquet files that Spark reads in parallel, snapshots straight from the spool.

Owns that both ways give Spark the same values and types: the schema is stated, never inferred.
Files for large windows lie below `apply/scratch/` of the pipeline's spool. They are deleted after
the window, those of a killed process at the next start.
"""

import io
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.types import StructType

from sluice.contract import envelope
from sluice.store.base import ObjectStore
from sluice_spark.lake.sql import spark_ddl

SCRATCH = "apply/scratch/"
LOCAL_ROWS = 50_000
LOCAL_BYTES = 16 * 1024 * 1024
"""Spark moves a local relation of more than 48 MB out of the plan; ours must stay well below."""
PART_BYTES = 64 * 1024 * 1024


class Handover:
    """Hands rows to one private session. `path` is where Spark sees the pipeline's prefix of
    `store`.
    """

    def __init__(self, session: SparkSession, store: ObjectStore, *, path: str) -> None:
        self._session = session
        self._store = store
        self._path = path

    @contextmanager
    def pieces(self) -> Iterator["Pieces"]:
        """For a table that comes piece by piece. Files are deleted when the block ends."""
        pieces = Pieces(self._session, self._store, self._path)
        try:
            yield pieces
        finally:
            for key in pieces.keys:
                self._store.delete(key)

    def snapshot(self, keys: Sequence[str], *, columns: Sequence[tuple[str, str]], lsn: int) -> DataFrame:
        """The rows of the segments `keys` of a snapshot taken at `lsn`, which Spark reads itself."""
        schema = struct(columns)
        frame = (
            self._session.read.schema(schema).parquet(*(f"{self._path}/{key}" for key in keys))
            if keys
            else self._session.createDataFrame([], schema)
        )
        stamped = any(name == envelope.LSN for name, _ in columns)
        return frame.withColumn(envelope.LSN, sql.lit(lsn).cast("bigint")) if stamped else frame


class Pieces:
    """A table on its way to Spark. One small piece alone stays in memory, everything else is in
    files, which are durable when `add` returns.
    """

    def __init__(self, session: SparkSession, store: ObjectStore, path: str) -> None:
        self._session = session
        self._store = store
        self._path = path
        self._small: pa.Table | None = None
        self.keys: list[str] = []
        self.rows = 0

    def add(self, table: pa.Table) -> None:
        """Takes `table`, whose columns are at least those that `frame` will be asked for."""
        if not len(table):
            return
        if not self.rows and len(table) <= LOCAL_ROWS and table.nbytes <= LOCAL_BYTES:
            self._small = table
        else:
            if self._small is not None:
                self._write(self._small)
                self._small = None
            self._write(table)
        self.rows += len(table)

    def frame(self, columns: Sequence[tuple[str, str]]) -> DataFrame:
        """Everything added, as a DataFrame with the columns (name, Spark type)."""
        schema = struct(columns)
        if self._small is not None:
            # In one partition, for a few rows make one file.
            return self._session.createDataFrame(
                cast("Any", self._small.select([name for name, _ in columns])), schema=schema
            ).coalesce(1)
        if not self.keys:
            return self._session.createDataFrame([], schema)
        return self._session.read.schema(schema).parquet(*(f"{self._path}/{key}" for key in self.keys))

    def _write(self, table: pa.Table) -> None:
        for part in _parts(table):
            self.keys.append(f"{SCRATCH}{uuid.uuid4().hex}.parquet")
            self._store.put(self.keys[-1], part)


def forget_scratch(store: ObjectStore) -> None:
    """Deletes the files that a killed applier left. Only for the owner of the pipeline: a process
    that still reads them has been replaced.
    """
    for key in list(store.list(SCRATCH)):
        store.delete(key)


def struct(columns: Sequence[tuple[str, str]]) -> StructType:
    """A schema for Spark from (name, Spark type) pairs."""
    return cast("StructType", StructType.fromDDL(spark_ddl(columns)))


def _parts(table: pa.Table) -> Iterator[bytes]:
    count = max(2, -(-table.nbytes // PART_BYTES))
    size = max(1, -(-len(table) // count))
    for start in range(0, len(table), size):
        buffer = io.BytesIO()
        pq.write_table(
            table.slice(start, size), buffer, compression="lz4", use_dictionary=False, write_statistics=False
        )
        yield buffer.getvalue()

"""Rows on their way to the lake: in memory as long as they fit, else as Parquet files. Spark gets few
rows as a relation inside its plan, many as files that it reads in parallel.

Owns that both ways give the same values and types: the schema is stated, never inferred. Files of
windows lie below `apply/scratch/` of the pipeline's spool. They are deleted after the window, those
of a killed process at the next start.
"""

import io
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sluice.store.base import ObjectStore
from sluice_spark.lake.direct.key_search import Found
from sluice_spark.lake.sql import spark_ddl

SCRATCH = "apply/scratch/"
LOCAL_ROWS = 50_000
LOCAL_BYTES = 16 * 1024 * 1024
"""Spark moves a local relation of more than 48 MB out of the plan; ours must stay well below."""
PART_BYTES = 64 * 1024 * 1024


class SparkHandover:
    """Hands rows to one private session. `path` is where Spark sees the pipeline's prefix of
    `store`, `memory` the bytes of a window that stay in memory.
    """

    def __init__(self, session: SparkSession, store: ObjectStore, *, path: str, memory: int) -> None:
        self._session = session
        self._store = store
        self._path = path
        self._memory = memory

    @contextmanager
    def pieces(self) -> Iterator["Pieces"]:
        """For a table that comes piece by piece. Files are deleted when the block ends."""
        pieces = Pieces(self._session, self._store, path=self._path, memory=self._memory)
        try:
            yield pieces
        finally:
            for key in pieces.keys:
                self._store.delete(key)


class HeldRows:
    """A window's rows, piece by piece, in memory. `found` is where keys of theirs are, if that was
    looked for already.
    """

    def __init__(self) -> None:
        self._held: list[pa.Table] = []
        self.rows = 0
        self.found: Found | None = None

    def add(self, table: pa.Table) -> None:
        """Takes `table`, whose columns are at least those that the lake will be given."""
        if len(table):
            self._held.append(table)
            self.rows += len(table)

    def take(self, other: "HeldRows") -> None:
        """Takes what `other` holds."""
        for table in other.tables():
            self.add(table)
        self.found = other.found

    def tables(self) -> Iterator[pa.Table]:
        """Everything added, one table at a time. May be asked for again."""
        yield from self._held


class Pieces(HeldRows):
    """The same; what does not fit in memory is in files, which are durable when `add` returns."""

    def __init__(self, session: SparkSession, store: ObjectStore, *, path: str, memory: int) -> None:
        super().__init__()
        self._session = session
        self._store = store
        self._path = path
        self._memory = memory
        self.keys: list[str] = []

    def add(self, table: pa.Table) -> None:
        """Takes `table`, whose columns are at least those that `frame` will be asked for."""
        super().add(table)
        if self._held and (self.keys or sum(held.nbytes for held in self._held) > self._memory):
            self._to_files()

    def tables(self) -> Iterator[pa.Table]:
        """See HeldRows."""
        for key in self.keys:
            yield pq.read_table(pa.BufferReader(self._store.get(key)))
        yield from super().tables()

    def frame(self, columns: Sequence[tuple[str, str]]) -> DataFrame:
        """Everything added, as a DataFrame with the columns (name, Spark type)."""
        schema = struct(columns)
        if not self.rows:
            return self._session.createDataFrame([], schema)
        if not self.keys and self.rows <= LOCAL_ROWS and sum(held.nbytes for held in self._held) <= LOCAL_BYTES:
            rows = pa.concat_tables([held.select([name for name, _ in columns]) for held in self._held])
            # In one partition, for a few rows make one file.
            return self._session.createDataFrame(cast("Any", rows), schema=schema).coalesce(1)
        self._to_files()
        return self._session.read.schema(schema).parquet(*(f"{self._path}/{key}" for key in self.keys))

    def _to_files(self) -> None:
        while self._held:
            self._write(self._held[0])
            del self._held[0]

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

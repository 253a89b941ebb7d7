"""From Arrow to Spark: small windows as a relation inside the plan, large ones as Parquet that Spark reads in parallel.

Owns that both ways give Spark the same values and types: the schema is stated, never inferred. Files for large windows live below `apply/scratch/` of the
pipeline's spool and go away with the window.
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

from service.store.base import ObjectStore
from spark_jobs.merge import spark_ddl

SCRATCH = "apply/scratch/"
LOCAL_ROWS = 50_000
LOCAL_BYTES = 16 * 1024 * 1024
"""Spark moves a local relation of more than 48 MB out of the plan; ours must stay well below."""
PART_BYTES = 64 * 1024 * 1024


class Handover:
    """Gives tables to one private session. `scratch_path` is where Spark sees the pipeline's prefix of `store`."""

    def __init__(self, session: SparkSession, store: ObjectStore, *, scratch_path: str) -> None:
        self._session = session
        self._store = store
        self._path = scratch_path

    @contextmanager
    def frame(self, table: pa.Table, columns: Sequence[tuple[str, str]], *, local_rows: int = LOCAL_ROWS) -> Iterator[DataFrame]:
        """`table` as a DataFrame with the columns (name, Spark type), valid inside the block."""
        schema = struct(columns)
        table = table.select([name for name, _ in columns])
        if len(table) <= local_rows and table.nbytes <= LOCAL_BYTES:
            yield self._session.createDataFrame(cast("Any", table), schema=schema)
            return
        keys: list[str] = []
        try:
            for part in _parts(table):
                keys.append(f"{SCRATCH}{uuid.uuid4().hex}.parquet")
                self._store.put(keys[-1], part)
            yield self._session.read.schema(schema).parquet(*(f"{self._path}/{key}" for key in keys))
        finally:
            for key in keys:
                self._store.delete(key)


def struct(columns: Sequence[tuple[str, str]]) -> StructType:
    """A schema for Spark from (name, Spark type) pairs."""
    return cast("StructType", StructType.fromDDL(spark_ddl(columns)))


def _parts(table: pa.Table) -> Iterator[bytes]:
    count = max(2, -(-table.nbytes // PART_BYTES))
    size = max(1, -(-len(table) // count))
    for start in range(0, len(table), size):
        buffer = io.BytesIO()
        pq.write_table(table.slice(start, size), buffer, compression="lz4", use_dictionary=False, write_statistics=False)
        yield buffer.getvalue()

"""Rows on their way to the lake: in memory as long as they fit, else as Parquet files. Spark gets few
rows as a relation inside its plan, many as files that it reads in parallel.

Owns that both ways give the same values and types: the schema is stated, never inferred. Files of
windows lie below `apply/scratch/` of the pipeline's spool. They are deleted after the window, those
of a killed process at the next start.
"""

import io
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sluice.store.base import ObjectStore
from sluice_spark.fold.fold import DELETED, KEY, MATCH
from sluice_spark.fold.row_identity import Numbers
from sluice_spark.lake.direct.key_search import Found
from sluice_spark.lake.failures import two_rows_of_one_key
from sluice_spark.lake.merge import found_text
from sluice_spark.lake.plan import CommitPlan, MergePlan
from sluice_spark.lake.sql import spark_ddl

SCRATCH = "apply/scratch/"
LOCAL_ROWS = 50_000
LOCAL_BYTES = 16 * 1024 * 1024
"""Spark moves a local relation of more than 48 MB out of the plan; ours must stay well below."""
PART_BYTES = 64 * 1024 * 1024
_VIEW, _NUMBER = "sluice_looked_for", "_sluice_number"


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
            for held in (pieces, *pieces.others):
                for key in held.keys:
                    self._store.delete(key)


class HeldRows:
    """A window's rows, piece by piece, in memory. `found` is where keys of theirs are, if that was
    looked for already. With `as_added`, to be set before the first one, `tables` gives back the tables that were added,
    and not parts of them.
    """

    def __init__(self) -> None:
        self._held: list[pa.Table] = []
        self.rows = 0
        self.found: Found | None = None
        self.as_added = False

    def add(self, table: pa.Table) -> None:
        """Takes `table`, whose columns are at least those that the lake will be given."""
        if len(table):
            self._held.append(table)
            self.rows += len(table)

    def take(self, other: "HeldRows") -> None:
        """Takes what `other` holds."""
        self.as_added = other.as_added
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
        self.others: list[Pieces] = []

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

    def made_of(self, tables: Iterable[pa.Table]) -> "Pieces":
        """Others, with `tables`, that are forgotten with these."""
        other = Pieces(self._session, self._store, path=self._path, memory=self._memory)
        self.others.append(other)
        for table in tables:
            other.add(table)
        return other

    def settled(self, plan: CommitPlan, table: str) -> "Pieces":
        """The rows for the statement of `plan`, which has a settlement, on the version of the table that is `table` in
        SQL: what was found there goes, and what the settlement makes of it comes. Rows pass as they were added. Raises
        UnsupportedChange; Spark's errors as they are.
        """
        return self.made_of(self._settled(plan, table))

    def _settled(self, plan: CommitPlan, table: str) -> Iterator[pa.Table]:
        merge = plan.action
        assert isinstance(merge, MergePlan)
        assert merge.settlement is not None
        names = [name for name, _ in plan.columns]
        for rows in self.tables():
            looks = np.flatnonzero(rows[MATCH].to_numpy())
            old, found = self._found(plan, merge, table, rows.take(pa.array(looks)))
            numbers = looks[found]
            if len(np.unique(numbers)) != len(numbers):
                raise two_rows_of_one_key(merge.schema.qualified_name)
            yield _flagged(merge.settlement.settled(rows, old, numbers), names, gone=False)
            yield _flagged(rows.take(pa.array(numbers)), names, gone=True)

    def _found(self, plan: CommitPlan, merge: MergePlan, table: str, looking: pa.Table) -> tuple[pa.Table, Numbers]:
        """The rows of the lake that `looking` looks for, and by which of its rows each was found."""
        keys = [(name, kind) for name, kind in plan.columns if name.startswith(KEY) or name == MATCH]
        numbered = looking.append_column(_NUMBER, pa.array(np.arange(len(looking))))
        self.made_of([numbered]).frame([*keys, (_NUMBER, "bigint")]).createOrReplaceTempView(_VIEW)
        try:
            rows = self._session.sql(found_text(merge, target=table, source=_VIEW, number=_NUMBER)).toArrow()
        finally:
            self._session.catalog.dropTempView(_VIEW)
        return rows.drop_columns([_NUMBER]), rows[_NUMBER].to_numpy()

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
        count = 1 if self.as_added else max(2, -(-table.nbytes // PART_BYTES))
        for part in _parts(table, count=count):
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


def _flagged(rows: pa.Table, names: list[str], *, gone: bool) -> pa.Table:
    """With the columns `names` of a statement: `gone` rows look for the one that goes, others come."""
    for name in (DELETED, MATCH):
        if name in rows.column_names:
            rows = rows.drop_columns([name])
        rows = rows.append_column(name, pa.repeat(pa.scalar(gone), len(rows)))
    return rows.select(names)


def _parts(table: pa.Table, *, count: int) -> Iterator[bytes]:
    size = max(1, -(-len(table) // count))
    for start in range(0, len(table), size):
        buffer = io.BytesIO()
        pq.write_table(
            table.slice(start, size), buffer, compression="lz4", use_dictionary=False, write_statistics=False
        )
        yield buffer.getvalue()

"""Where the keys of a window are in the lake, and what becomes of the rows there.

Positions come from one join of the keys with the key columns of the live files, through Delta's own
reader: it leaves out rows that vectors remove. The join is shuffled, never broadcast, so that no key
passes the driver; a Bloom filter keeps rows that cannot match out of the shuffle. Then each data file's
positions come together in one task, which writes its vector and reads the values that rows keep.
(Delta protocol: Deletion Vectors.)
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from sluice import faults
from sluice.errors import ApplyError, UnsupportedChange
from sluice_spark.distributed.fold_stage import GONE, PORTION, ROW, WANTS, key_columns
from sluice_spark.distributed.stages import RESULT, Piece
from sluice_spark.distributed.task import WindowTask
from sluice_spark.fold.row_identity import Claims, Numbers
from sluice_spark.lake.commit_way import NotDirect
from sluice_spark.lake.direct.followed_rows import OldRows, ids_of
from sluice_spark.lake.direct.kept_values import old_rows
from sluice_spark.lake.direct.vectors import Positions, VectorFile, read_vector, removed_rows
from sluice_spark.lake.layout import ROW_ID
from sluice_spark.lake.merge import key_conditions
from sluice_spark.lake.plan import MergePlan
from sluice_spark.lake.rows_to_commit import struct
from sluice_spark.lake.sql import quote

HITS, VALUES = "hits", "values"
FILE, POSITION = "_sluice_file", "_sluice_position"
_VIEW = "sluice_keys"
_VALUE_BYTES = 8 * 1024 * 1024
JOIN_SETTINGS = {
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.optimizer.runtime.bloomFilter.enabled": "true",
    "spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold": "0",
    "spark.sql.optimizer.runtime.bloomFilter.creationSideThreshold": "1TB",
}


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A live data file: its path and size as in the log, all its rows, its vector if it has one, and the id of its
    first row where the table tracks them.
    """

    path: str
    size: int
    rows: int
    vector: Mapping[str, Any] | None
    first_id: int = 0


@dataclass(frozen=True, slots=True)
class MarkTask:
    """`files` are the live files by the last part of their path, `tasks` says which task of the next
    stage finishes a portion, `kept` are the fields of a data file of which rows keep values.
    """

    window: WindowTask
    files: Mapping[str, KnownFile]
    tasks: Mapping[int, int]
    kept: pa.Schema


@dataclass(frozen=True, slots=True)
class MarkedFile:
    """A data file with fewer rows. `vector` is None when none is left; `gone` rows are deleted, the
    others of `matched` replaced.
    """

    path: str
    vector: dict[str, Any] | None
    matched: int
    gone: int


@dataclass(frozen=True, slots=True)
class Marked:
    """What one task marked, and the file of its vectors (empty: none). `replaced` are the actions that name the rows
    that went, see `Edit`.
    """

    files: tuple[MarkedFile, ...]
    vector_path: str
    replaced: tuple[Mapping[str, Any], ...] = ()

    @property
    def paths(self) -> set[str]:
        """The files that it wrote."""
        return {self.vector_path, *(str(one["path"]) for one in self.replaced)} - {""}


@dataclass(slots=True)
class _Hits:
    positions: list[Positions] = field(default_factory=list)
    portions: list[Numbers] = field(default_factory=list)
    rows: list[Numbers] = field(default_factory=list)
    wants: list[Claims] = field(default_factory=list)
    gone: list[Claims] = field(default_factory=list)


def positions_of(
    session: SparkSession, table: str, version: int, *, plan: MergePlan, keys: Sequence[str], tasks: int
) -> DataFrame:
    """One row for each row of the lake whose key is in the files `keys`, rows of one data file in one
    partition. `table` is the table in SQL.
    """
    frame = session.read.schema(struct(key_columns(plan.schema))).parquet(*keys)
    frame.createOrReplaceTempView(_VIEW)
    try:
        found = session.sql(_text(plan, f"{table} VERSION AS OF {version}"))
    finally:
        session.catalog.dropTempView(_VIEW)
    return found.repartition(tasks, FILE)


def _text(plan: MergePlan, target: str) -> str:
    chosen = ", ".join(f"s.{quote(name)}" for name in (PORTION, ROW, GONE, WANTS))
    # Without a condition on them Spark makes no Bloom filter of the keys.
    # `t._metadata` would be a field of a column that is called t.
    rows = f"SELECT *, `_metadata`.`file_path` AS {FILE}, `_metadata`.`row_index` AS {POSITION} FROM {target}"
    return (
        f"SELECT t.{FILE}, t.{POSITION}, {chosen} FROM ({rows}) AS t JOIN {_VIEW} AS s "
        f"ON {' AND '.join(key_conditions(plan))} WHERE s.{quote(ROW)} >= 0"
    )


def mark(task: MarkTask, batches: Iterator[pa.RecordBatch]) -> Iterator[Piece]:
    """Writes vectors, and the rows that go where readers see changes; hits and values for the next stage, and an
    account for the driver.
    """
    vectors = VectorFile()
    old = OldRows(task.window.folder, task.window.layout, [])  # what a task leaves behind nobody deletes but VACUUM
    marked: list[MarkedFile] = []
    rows_of: dict[int, list[Numbers]] = defaultdict(list)
    for name, hits in _by_file(batches).items():
        file = task.files.get(name)
        if file is None:
            raise ApplyError("a data file of the lake table is not among those of the version that was read")
        portions, rows = np.concatenate(hits.portions), np.concatenate(hits.rows)
        for portion in np.unique(portions).tolist():
            rows_of[portion].append(rows[portions == portion])
        marked.append(_marked(file, hits, task.window, vectors))
        with _said():
            if task.window.layout.feeds:
                old.take(file.path, file.size, np.concatenate(hits.positions), np.concatenate(hits.gone))
            yield from _values(file, hits, task)
    if vectors:
        task.window.folder.put(vectors.path, vectors.content)
    faults.point("apply.distributed.marked")
    for portion, found in rows_of.items():
        yield Piece.of(HITS, (portion, np.concatenate(found)), part=task.tasks[portion])
    if marked:
        yield Piece.of(RESULT, Marked(tuple(marked), vectors.path if vectors else "", tuple(old.actions())))


@contextmanager
def _said() -> Iterator[None]:
    try:
        yield
    except NotDirect as reason:
        raise ApplyError(str(reason), hint="set `way` of this table to `merge`") from reason


def _by_file(batches: Iterator[pa.RecordBatch]) -> dict[str, _Hits]:
    found: dict[str, _Hits] = defaultdict(_Hits)
    for batch in batches:
        names = pc.dictionary_encode(batch.column(FILE))
        codes = names.indices.to_numpy()
        columns = [batch.column(name).to_numpy(zero_copy_only=False) for name in (POSITION, PORTION, ROW, WANTS, GONE)]
        for code, name in enumerate(names.dictionary.to_pylist()):
            positions, portions, rows, wants, gone = (column[codes == code] for column in columns)
            hits = found[name.rsplit("/", 1)[-1]]
            hits.positions.append(positions)
            hits.portions.append(portions)
            hits.rows.append(rows)
            hits.wants.append(wants)
            hits.gone.append(gone)
    return found


def _marked(file: KnownFile, hits: _Hits, window: WindowTask, vectors: VectorFile) -> MarkedFile:
    positions = np.concatenate(hits.positions)
    new = np.unique(positions)
    if len(new) != len(positions):
        raise UnsupportedChange("a window has two net changes of one key")
    before = read_vector(file.vector, window.folder.read) if file.vector else np.empty(0, dtype=np.int64)
    if np.isin(new, before).any():
        raise ApplyError("Delta's reader gave rows that the table does not have")
    removed = removed_rows(before, new, rows=file.rows)
    descriptor = vectors.add(removed) if len(removed) < file.rows else None
    return MarkedFile(file.path, descriptor, len(new), int(np.concatenate(hits.gone).sum()))


def _values(file: KnownFile, hits: _Hits, task: MarkTask) -> Iterator[Piece]:
    """The kept values and ids of the rows that want any, row group by row group."""
    wants = np.concatenate(hits.wants)
    if not wants.any():
        return
    positions, portions, rows = (np.concatenate(part)[wants] for part in (hits.positions, hits.portions, hits.rows))
    order = np.argsort(positions)
    positions, portions, rows = positions[order], portions[order], rows[order]
    tracking = task.window.layout.tracking
    names = task.kept.names + ([tracking.ids] if tracking is not None else [])
    start = 0
    for length, read in task.window.folder.row_groups(file.path, file.size, names):
        low, high = np.searchsorted(positions, [start, start + length]).tolist()
        if low < high:
            stored, places = read(), positions[low:high] - start
            values = pa.table({PORTION: portions[low:high], ROW: rows[low:high]})
            if tracking is not None:
                ids = ids_of(stored, tracking.ids, places, default=file.first_id + positions[low:high])
                values = values.append_column(ROW_ID, pa.array(ids))
            for one in task.kept:
                (kept,) = old_rows(stored, pa.array(places), pa.schema([one])).columns
                values = values.append_column(one, kept)
            yield from _by_portion(values, task)
        start += length


def _by_portion(values: pa.Table, task: MarkTask) -> Iterator[Piece]:
    numbers = values[PORTION].to_numpy()
    for number in np.unique(numbers).tolist():
        mine = values.filter(pa.array(numbers == number))
        size = max(1, len(mine) * _VALUE_BYTES // max(mine.nbytes, _VALUE_BYTES))
        for start in range(0, len(mine), size):
            yield Piece.of_table(VALUES, mine.slice(start, size), part=task.tasks[number])

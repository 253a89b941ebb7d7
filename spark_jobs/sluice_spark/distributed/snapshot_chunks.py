"""A snapshot whose chunks were read at different moments, and the changes from between them: the rows of
the table as of the last moment, as a DataFrame whose tasks fetch, check and fold.

Owns the rule of `sluice.contract.chunks` on this side. The rows of a chunk stand as inserts behind
every commit that they have, so that of each key the last event decides; what a change takes for
granted need not be there. Nothing of an older lake table remains. Runs in executors' Python, but
for `joined` and `of_the_snapshot`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import to_arrow_schema

from sluice import faults
from sluice.contract import envelope
from sluice.contract.entries import Changes, Segment, Snapshot
from sluice.errors import UnsupportedChange
from sluice.manifest.reader import read_entries
from sluice.manifest.state import TableState
from sluice.store.base import ObjectStore
from sluice_spark.distributed.fold_stage import FoldTask, portions_of
from sluice_spark.distributed.partition_stage import pieces_of
from sluice_spark.distributed.stages import Piece, Stages, as_declared
from sluice_spark.distributed.task import WindowTask
from sluice_spark.distributed.window import LEVEL, parts_for
from sluice_spark.fold.fold import fold
from sluice_spark.fold.partition import Cutter, cutter_for
from sluice_spark.lake.rows_to_commit import struct
from sluice_spark.modes.mirror import refuse_unplaced
from sluice_spark.read.changes import read_rows
from sluice_spark.read.projection import Projection

BEHIND = 1 << 62
"""Added to the ordinals of a chunk's rows: they come behind a commit that ended at their own position."""
_CHUNK = 1 << 36
"""More than a segment has rows."""


@dataclass(frozen=True, slots=True)
class JoinTask:
    """`window` has the segments of the chunks and those of the changes. `chunks` gives each of the
    former its number; changes count up to `until_lsn`.
    """

    window: WindowTask
    cutter: Cutter
    chunks: dict[str, int]
    until_lsn: int
    schema: pa.Schema


def task_of(
    window: WindowTask,
    chunks: Sequence[Segment],
    schema: pa.Schema,
    *,
    slots: int,
    until_lsn: int,
) -> JoinTask:
    """How the segments of `window`, of which `chunks` are those of a snapshot, become a table with the
    columns `schema` as of `until_lsn`.
    """
    cutter = replace(cutter_for([window.schema]), level=LEVEL, parts=parts_for(window, slots=slots))
    places = {segment.key: place for place, segment in enumerate(chunks)}
    return JoinTask(window, cutter, places, until_lsn, schema)


def arrow_schema(columns: Sequence[tuple[str, str]]) -> pa.Schema:
    """The columns (name, Spark type)."""
    return to_arrow_schema(struct(columns), timezone="UTC")


def changes_between(store: ObjectStore, state: TableState) -> list[Segment]:
    """The segments with changes from between the chunks of the table's snapshot, from the manifest."""
    snapshot = state.snapshot
    assert snapshot is not None
    found: list[Segment] = []
    for entry, _ in read_entries(store, after_seq=state.generation_seq):
        body = entry.body
        if isinstance(body, Changes):
            found += [segment for segment in body.segments if segment.table_id == state.table_id]
        elif isinstance(body, Snapshot) and body.table_id == state.table_id and body.final:
            break
    first, last = snapshot.first_lsn, snapshot.snapshot_lsn
    return [segment for segment in found if segment.last_lsn > first and segment.first_lsn <= last]


def joined(stages: Stages, task: JoinTask, columns: Sequence[tuple[str, str]]) -> DataFrame:
    """The table's rows with the columns (name, Spark type)."""
    pieces = stages.first(cut_joined, task, tasks=len(task.window.bins))
    frame = stages.then_rows(pieces, folded_rows, task, tasks=task.cutter.parts, schema=struct(columns))
    stamped = any(name == envelope.LSN for name, _ in columns)
    return frame.withColumn(envelope.LSN, sql.lit(task.until_lsn).cast("bigint")) if stamped else frame


def cut_joined(task: JoinTask, numbers: Iterator[int]) -> Iterator[Piece]:
    """Pieces of chunks and changes for the parts of the cutter."""
    window = task.window
    for number in numbers:
        for segment in window.bins[number]:
            version = window.schemas[segment.schema_version]
            if segment.schema_version > window.schema.version:
                raise UnsupportedChange(
                    f"{version.qualified_name}: its columns changed before the last chunk of its snapshot was read"
                )
            projection = Projection(version, window.schema)
            place = task.chunks.get(segment.key)
            after = window.after_lsn if place is None else 0
            for rows in map(projection.of, read_rows(window.spool.open(), segment, after_lsn=after)):
                chosen = (
                    rows.filter(pc.less_equal(rows[envelope.LSN], task.until_lsn))
                    if place is None
                    else _behind(rows, place)
                )
                if len(chosen):
                    yield from pieces_of(chosen, projection.schema, task.cutter)


def _behind(rows: pa.Table, place: int) -> pa.Table:
    ordinals = BEHIND + place * _CHUNK + np.argsort(np.argsort(rows[envelope.ORDINAL].to_numpy(), kind="stable"))
    index = rows.column_names.index(envelope.ORDINAL)
    return rows.set_column(index, envelope.ORDINAL, pa.array(ordinals, pa.int64()))


def folded_rows(task: JoinTask, pieces: Iterator[Piece]) -> Iterator[pa.RecordBatch]:
    """The rows of the part whose pieces these are."""
    window = task.window
    for portion in portions_of(pieces, FoldTask(window, task.cutter)):
        rows = window.united(portion)
        folded = fold(rows, window.schema, keyed=True, removals_sent=False, from_nothing=True).rows
        refuse_unplaced(folded, window.schema)
        # In a changelog these rows say that they were inserted.
        constants = {
            envelope.OP: pa.repeat(envelope.OP_INSERT, len(folded)),
            envelope.ORDINAL: pa.array(range(len(folded))),
        }
        yield from as_declared(folded, task.schema, constants)
        faults.point("apply.distributed.joined")


def check_joined(task: JoinTask, pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Nothing. Raises what is wrong with a segment or a change."""
    for _ in folded_rows(task, pieces):
        pass
    yield from ()

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
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from sluice import faults
from sluice.contract import envelope
from sluice.contract.entries import Changes, Segment
from sluice.errors import UnsupportedChange
from sluice.manifest.reader import read_entries
from sluice.manifest.values import TableState
from sluice.store.base import ObjectStore
from sluice_spark.distributed.fold_stage import FoldTask, portions_of
from sluice_spark.distributed.partition_stage import pieces_of
from sluice_spark.distributed.stages import Piece, Stages, as_declared, stamped
from sluice_spark.distributed.task import WindowTask
from sluice_spark.distributed.window import LEVEL, parts_for
from sluice_spark.fold.fold import fold
from sluice_spark.fold.partition import Cutter, cutter_for
from sluice_spark.kinds.kind import refuse_unplaced
from sluice_spark.lake.rows_to_commit import struct
from sluice_spark.read.changes import read_rows
from sluice_spark.read.projection import Projection

BEHIND = 1 << 61
"""Added to the ordinals of a chunk's rows: they come behind a commit that ended at their own position, also when they
are doubled (`spaced`).
"""
_CHUNK = 1 << 36
"""More than a segment has rows."""


@dataclass(frozen=True, slots=True)
class JoinTask:
    """`window` has the segments of the chunks and those of the changes. `chunks` gives each of the
    former its number.
    """

    window: WindowTask
    cutter: Cutter
    chunks: dict[str, int]
    schema: pa.Schema


def task_of(
    window: WindowTask,
    chunks: Sequence[Segment],
    schema: pa.Schema,
    *,
    slots: int,
) -> JoinTask:
    """How the segments of `window`, of which `chunks` are those of a snapshot, become a table with the
    columns `schema`.
    """
    cutter = replace(cutter_for([window.schema]), level=LEVEL, parts=parts_for(window, slots=slots))
    places = {segment.key: place for place, segment in enumerate(chunks)}
    return JoinTask(window, cutter, places, schema)


def arrow_schema(columns: Sequence[tuple[str, str]]) -> pa.Schema:
    """The columns (name, Spark type)."""
    return to_arrow_schema(struct(columns), timezone="UTC")


def changes_between(store: ObjectStore, state: TableState, *, after_lsn: int, until_lsn: int) -> list[Segment]:
    """The segments with changes of the table that ended after `after_lsn` and not after `until_lsn`, from the
    manifest, which is complete through there. Raises UnsupportedChange when its columns changed meanwhile.
    """
    snapshot = state.snapshot
    assert snapshot is not None
    found: list[Segment] = []
    for entry, _ in read_entries(store, after_seq=state.generation_seq):
        if entry.from_lsn >= until_lsn:
            break
        if isinstance(entry.body, Changes):
            found += [segment for segment in entry.body.segments if segment.table_id == state.table_id]
    found = [segment for segment in found if segment.last_lsn > after_lsn and segment.first_lsn <= until_lsn]
    if any(segment.schema_version > snapshot.schema_version for segment in found):
        name = f"{state.schema_name}.{state.table_name}"
        raise UnsupportedChange(f"{name}: its columns changed before the last chunk of its snapshot was read")
    return found


def joined(stages: Stages, task: JoinTask, columns: Sequence[tuple[str, str]]) -> DataFrame:
    """The table's rows with the columns (name, Spark type)."""
    pieces = stages.first(cut_joined, task, tasks=len(task.window.bins))
    frame = stages.then_rows(pieces, folded_rows, task, tasks=task.cutter.parts, schema=struct(columns))
    return stamped(frame, columns, lsn=task.window.until_lsn)


def cut_joined(task: JoinTask, numbers: Iterator[int]) -> Iterator[Piece]:
    """Pieces of chunks and changes for the parts of the cutter."""
    window = task.window
    for number in numbers:
        for segment in window.bins[number]:
            projection = Projection(window.schemas[segment.schema_version], window.schema)
            place = task.chunks.get(segment.key)
            after = window.after_lsn if place is None else 0
            found = read_rows(window.spool.open(), segment, after_lsn=after, until_lsn=window.until_lsn)
            for rows in map(projection.of, found):
                chosen = rows if place is None else _behind(rows, place)
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
        carried = window.kind.carried
        folded = fold(rows, window.schema, keyed=True, removals_sent=False, from_nothing=True, carried=carried).rows
        refuse_unplaced(folded, window.schema)
        folded = window.kind.arrived(folded)
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

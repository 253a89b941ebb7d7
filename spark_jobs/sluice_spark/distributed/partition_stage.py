"""First stage on the executors: segments are fetched, compared with the manifest, and cut by key.

Runs in executors' Python. Owns that a row of the window goes to exactly one part (a TRUNCATE to all),
and that its share of the account says how many pieces went out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from sluice import faults
from sluice.contract import envelope
from sluice.contract.schema import TableSchema
from sluice_spark.distributed.stages import COUNT, RESULT, Piece
from sluice_spark.distributed.task import WindowTask
from sluice_spark.fold.partition import Cutter, spaced
from sluice_spark.fold.spill import Versioned, coalesced
from sluice_spark.read.changes import Count

ROWS = "rows"
_VERSION = b"sluice.version"
_OF_THE_LIMIT = 4
"""A table of this share of the limit is cut at a time."""


@dataclass(frozen=True, slots=True)
class CutTask:
    """How a window is cut."""

    window: WindowTask
    cutter: Cutter


@dataclass(frozen=True, slots=True)
class BinCount:
    """What bin `number` held, and how many pieces came of it."""

    number: int
    count: Count
    pieces: int


def cut(task: CutTask, numbers: Iterator[int]) -> Iterator[Piece]:
    """Pieces of changes for the parts of the cutter, and an account of each bin."""
    limit = task.window.limit // _OF_THE_LIMIT
    for number in numbers:
        count, sent = Count(), 0
        for rows, version in coalesced(count.over(task.window.changes(number)), limit=limit):
            for piece in pieces_of(rows, version, task.cutter):
                sent += 1
                yield piece
        faults.point("apply.distributed.cut")
        yield Piece.of(COUNT, BinCount(number, count, sent))


def pieces_of(rows: pa.Table, version: TableSchema, cutter: Cutter) -> Iterator[Piece]:
    """The changes for each part of the cutter."""
    rows = spaced(rows).replace_schema_metadata({_VERSION: str(version.version)})
    is_truncate = pc.equal(rows[envelope.OP], envelope.OP_TRUNCATE)
    if pc.any(is_truncate).as_py():
        truncates = rows.filter(is_truncate)
        for part in range(cutter.parts):
            yield Piece.of_table(ROWS, truncates, part=part)
        rows = rows.filter(pc.invert(is_truncate))
    for part, changes in cutter.cut(rows):
        yield Piece.of_table(ROWS, changes, part=part)


def versioned(piece: Piece, window: WindowTask) -> Versioned:
    """The changes of a piece and their schema version."""
    rows = piece.table
    return rows.replace_schema_metadata(None), window.version(int(rows.schema.metadata[_VERSION]))


def links(task: CutTask, numbers: Iterator[int]) -> Iterator[Piece]:
    """Hashes of keys that must stay together."""
    for number in numbers:
        changes = task.window.changes(number)
        for segment in changes.segments:
            for old, new in changes.moves(segment, task.cutter):
                if len(old):
                    yield Piece.of(RESULT, (old, new))


def versions(window: WindowTask, numbers: Iterator[int]) -> Iterator[Piece]:
    """The schema versions of which there is a change."""
    for number in numbers:
        yield Piece.of(RESULT, {version.version for version in window.changes(number).versions()})

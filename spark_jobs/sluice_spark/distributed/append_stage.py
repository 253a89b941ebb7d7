"""The only stage of a window whose rows are all new: segments become data files.

Runs in executors' Python. Owns that no more than about `limit` bytes of changes are held at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sluice import faults
from sluice_spark.distributed.stages import RESULT, Piece
from sluice_spark.distributed.task import WindowTask
from sluice_spark.fold.spill import coalesced
from sluice_spark.lake.direct.data_files import Written
from sluice_spark.read.changes import Count

_OF_THE_LIMIT = 2


@dataclass(frozen=True, slots=True)
class Appended:
    """What bin `number` held, and the files that it became."""

    number: int
    count: Count
    written: Written


def append(window: WindowTask, numbers: Iterator[int]) -> Iterator[Piece]:
    """An account of each bin."""
    for number in numbers:
        count, written = Count(), Written()
        for item in coalesced(count.over(window.changes(number)), limit=window.limit // _OF_THE_LIMIT):
            rows = window.kind.added(window.united([item]), window.schema)
            written.plus(window.written([rows]))
        faults.point("apply.distributed.appended")
        yield Piece.of(RESULT, Appended(number, count, written))

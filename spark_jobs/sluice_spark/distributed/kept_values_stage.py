"""Last stage on the executors: rows of one portion that wait for the row that they replace become data files.

Runs in executors' Python. Owns that a key has one row in the lake, that a value which was not sent is the
lake's, and that a row keeps its id: as many rows are written as wait. The values pass in pieces, so that a task holds
the waiting rows and the rows of one data file, however large kept values are.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sluice import faults
from sluice_spark.distributed.fold_stage import PORTION, ROW, Portion, keeping, waiting_rows
from sluice_spark.distributed.key_search_stage import HITS, VALUES
from sluice_spark.distributed.stages import RESULT, Piece, require
from sluice_spark.distributed.task import WindowTask
from sluice_spark.fold.row_identity import Numbers
from sluice_spark.lake.direct.data_files import Written
from sluice_spark.lake.direct.followed_rows import inserted, kinds_of_new
from sluice_spark.lake.direct.kept_values import logical, with_kept_values
from sluice_spark.lake.failures import no_row_to_keep_from, two_rows_of_one_key
from sluice_spark.lake.layout import CHANGE, ROW_ID

_FILE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FinishTask:
    """`portions` by the number of the task that finishes them."""

    window: WindowTask
    portions: Mapping[int, Portion]


@dataclass(frozen=True, slots=True)
class Finished:
    """A portion of which `matched` keys were in the lake."""

    number: int
    matched: int
    written: Written


def finish(task: FinishTask, pieces: Iterator[Piece]) -> Iterator[Piece]:
    """The account of one portion, which was announced; accounts of the stage before pass."""
    passed: list[Piece] = []
    rows: list[Numbers] = []
    filling: _Filling | _Settling | None = None
    portion: Portion | None = None
    for piece in pieces:
        if piece.kind == RESULT:
            passed.append(piece)
            continue
        portion = task.portions[piece.part]
        if filling is None and portion.waiting:
            filling = _filling(task.window, portion)
        if piece.kind == HITS:
            rows.append(piece.value[1])
        elif piece.kind == VALUES and filling is not None:
            filling.take(piece.table)
    yield from passed
    if portion is None:
        return
    matched = np.concatenate([np.empty(0, dtype=np.int64), *rows])
    if len(np.unique(matched)) != len(matched):
        raise two_rows_of_one_key(task.window.schema.qualified_name)
    written = filling.done() if filling else Written()
    faults.point("apply.distributed.finished")
    yield Piece.of(RESULT, Finished(portion.number, len(matched), written))


def announce(count: int, numbers: Iterator[int]) -> Iterator[Piece]:
    """Something for each of `count` tasks that finish a portion: rows may wait there that replace none."""
    for _ in numbers:
        for part in range(count):
            yield Piece.of(PORTION, None, part=part)


def settle_rest(task: FinishTask, numbers: Iterator[int]) -> Iterator[Piece]:
    """Accounts of portions that are settled and in which no row looks for one of the lake."""
    for number in numbers:
        portion = task.portions[number]
        yield Piece.of(RESULT, Finished(portion.number, 0, _Settling(task.window, portion).done()))


def _filling(window: WindowTask, portion: Portion) -> "_Filling | _Settling":
    assert portion.plan is not None
    return _Filling(window, portion) if portion.plan.settlement is None else _Settling(window, portion)


class _Settling:
    """Net changes, and the rows of the lake that they found: all of one portion."""

    def __init__(self, window: WindowTask, portion: Portion) -> None:
        assert portion.plan is not None
        assert portion.plan.settlement is not None
        self._window = window
        self._settlement = portion.plan.settlement
        self._rows = waiting_rows(window, portion).drop_columns([ROW])
        self._old: list[pa.Table] = [window.layout.arrow.empty_table()]
        self._found: list[Numbers] = [np.empty(0, dtype=np.int64)]

    def take(self, values: pa.Table) -> None:
        self._found.append(values[ROW].to_numpy())
        self._old.append(values.select(self._window.layout.arrow.names))

    def done(self) -> Written:
        """Everything is written. Raises UnsupportedChange."""
        old = logical(pa.concat_tables(self._old), self._window.layout)
        rows = self._settlement.settled(self._rows, old, np.concatenate(self._found))
        return self._window.written([inserted(rows, self._window.layout)])


class _Filling:
    """Waiting rows and what they wait for."""

    def __init__(self, window: WindowTask, portion: Portion) -> None:
        assert portion.plan is not None
        self._window = window
        self._plan = portion.plan
        self._waiting = waiting_rows(window, portion)
        self._numbers: Numbers = self._waiting[ROW].to_numpy()
        self._filled = np.zeros(len(self._numbers), dtype=bool)
        self._held: list[pa.Table] = []
        self._written = Written()

    def take(self, values: pa.Table) -> None:
        places = np.searchsorted(self._numbers, values[ROW].to_numpy())
        self._filled[places] = True
        rows = self._waiting.take(pa.array(places))
        if self._plan.kept:
            each = np.arange(len(rows))
            old: Any = (values.select, each, each)
            rows = with_kept_values(rows, [old], self._plan, self._window.layout)
        if self._window.layout.feeds:
            rows = rows.append_column(CHANGE, kinds_of_new(np.ones(len(rows), dtype=bool)))
        if ROW_ID in values.column_names:
            rows = rows.append_column(ROW_ID, values[ROW_ID])
        self._held.append(rows)
        if sum(table.nbytes for table in self._held) > _FILE_BYTES:
            self._write()

    def done(self) -> Written:
        """Everything is written. Raises UnsupportedChange when a row still waits for a value."""
        self._write()
        if (keeping(self._waiting, self._plan) & ~self._filled).any():
            raise no_row_to_keep_from()
        if not self._filled.all():
            self._held.append(inserted(self._waiting.filter(pa.array(~self._filled)), self._window.layout))
            self._write()
        return self._written

    def _write(self) -> None:
        if self._held:
            self._written.plus(self._window.written([pa.concat_tables(self._held)]))
            self._held = []


def require_values(portions: Iterable[Portion], finished: Iterable[Finished]) -> None:
    """Every waiting row of `portions` was written, or settled. Raises UnsupportedChange when one has no row in the
    lake to keep its value from.
    """
    written = {one.number: one.written.rows for one in finished}
    for portion in portions:
        if is_settled(portion):
            require(holds=portion.number in written, what="a portion was not settled")
        elif portion.waiting_count != written.get(portion.number, 0):
            raise no_row_to_keep_from()


def is_settled(portion: Portion) -> bool:
    """Whether its rows wait for what its settlement makes of them."""
    return portion.plan is not None and portion.plan.settlement is not None

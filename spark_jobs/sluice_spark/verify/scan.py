"""What every task does with its part of a lake table: hash its rows, and add them up by range.

Pickled to the executors, so it holds values only. Owns that a row is counted once: in the sums, or
among the rows that are handed back because changes to them are still in the spool.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.contract import envelope
from sluice.contract.schema import TableSchema
from sluice_spark.distributed.stages import RESULT, Piece
from sluice_spark.read.changes import ARROW_MAP
from sluice_spark.verify.canonical import Canonical
from sluice_spark.verify.hashing import Hashes

_HASHES = 1 << 64

Listed = tuple[int, int, tuple[str | None, ...]]


@dataclass(frozen=True, slots=True)
class ScanTask:
    """The rows come with the columns `names`. Those whose key's hash is in `changed` (sorted) are
    handed back as they are. Of the others the sums are asked for, or with `ranges` the rows in these.
    """

    schema: TableSchema
    names: tuple[str, ...]
    seed: int
    bits: int
    as_hex: bool
    changed: Hashes
    ranges: tuple[int, ...] = ()

    def hashes(self, rows: pa.Table) -> tuple[Hashes, Hashes]:
        """Of the key and of the whole row, for each of `rows`; of a table without key the row is the
        key.
        """
        whole = Canonical(self.schema.columns, seed=self.seed, as_hex=self.as_hex).hashes(rows)
        return (self.keys.hashes(rows) if self.schema.key_columns else whole), whole

    def near(self, rows: pa.Table) -> pa.Table:
        """Those of `rows` that matter, found by their keys alone: hashing all columns is what costs."""
        if not self.ranges or not self.schema.key_columns:
            return rows
        keys = self.keys.hashes(rows)
        numbers = (keys & np.uint64((1 << self.bits) - 1)).astype(np.int64)
        wanted = np.isin(numbers, np.array(self.ranges, np.int64)) | np.isin(keys, self.changed)
        return rows.filter(pa.array(wanted))

    @property
    def keys(self) -> Canonical:
        """The form of a key."""
        return Canonical(self.schema.key_columns, seed=self.seed, as_hex=self.as_hex, keys=True)

    def found(self, rows: pa.Table, keys: Hashes, whole: Hashes) -> "Sums | list[Listed]":
        """What is asked for, of these rows."""
        numbers = (keys & np.uint64((1 << self.bits) - 1)).astype(np.int64)
        if not self.ranges:
            sums = Sums(self.bits)
            sums.add(numbers, whole)
            return sums
        chosen = np.flatnonzero(np.isin(numbers, np.array(self.ranges, np.int64)))
        texts = self.keys.texts(rows.take(pa.array(chosen)))
        signed, rest = keys.view(np.int64)[chosen].tolist(), whole.view(np.int64)[chosen].tolist()
        return [
            (key, row, tuple(column[place] for column in texts))
            for place, (key, row) in enumerate(zip(signed, rest, strict=True))
        ]


class Sums:
    """Rows and sums of hashes by range, modulo 2**64."""

    def __init__(self, bits: int) -> None:
        self._size = 1 << bits
        self._rows = np.zeros(self._size, np.int64)
        self._totals = np.zeros(self._size, np.uint64)

    def add(
        self, numbers: npt.NDArray[np.int64], hashes: Hashes, *, times: npt.NDArray[np.int64] | None = None
    ) -> None:
        """Rows in the ranges `numbers`, each counted `times` (once)."""
        count = np.ones(len(numbers), np.int64) if times is None else times
        with np.errstate(over="ignore"):
            np.add.at(self._rows, numbers, count)
            np.add.at(self._totals, numbers, hashes * count.astype(np.uint64))

    def plus(self, other: "Sums") -> None:
        """Adds what another has."""
        with np.errstate(over="ignore"):
            self._rows += other._rows
            self._totals += other._totals

    def listed(self) -> tuple[tuple[int, int, int], ...]:
        """(range, rows, sum) of those that are not empty."""
        places = np.flatnonzero((self._rows != 0) | (self._totals != 0))
        return tuple((int(place), int(self._rows[place]), int(self._totals[place])) for place in places)


def typed(rows: pa.Table) -> pa.Table:
    """`rows` with their marked values as in segments. Spark asks for the size of a batch after each row, and for
    a map that costs more than everything else: they come as text.
    """
    if envelope.SPECIAL not in rows.column_names:
        return rows
    texts = rows[envelope.SPECIAL]
    marks = (
        pa.nulls(len(rows), ARROW_MAP)
        if texts.null_count == len(rows)
        else pa.array(
            [None if text is None else list(json.loads(text).items()) for text in texts.to_pylist()], ARROW_MAP
        )
    )
    return rows.set_column(rows.column_names.index(envelope.SPECIAL), envelope.SPECIAL, marks)


def scan(task: ScanTask, batches: Iterable[pa.RecordBatch]) -> Iterator[Piece]:
    """The work of one task: ("sums", Sums), ("rows", list) and ("changed", table) as results."""
    sums = Sums(task.bits)
    for batch in batches:
        rows = task.near(typed(pa.Table.from_batches([batch]).rename_columns(list(task.names))))
        keys, whole = task.hashes(rows)
        if len(task.changed):
            held = np.isin(keys, task.changed)
            if held.any():
                yield Piece.of(RESULT, ("changed", rows.filter(pa.array(held))))
                left = np.flatnonzero(~held)
                rows, keys, whole = rows.take(pa.array(left)), keys[left], whole[left]
        found = task.found(rows, keys, whole)
        if isinstance(found, Sums):
            sums.plus(found)
        else:
            yield Piece.of(RESULT, ("rows", found))
    if not task.ranges:
        yield Piece.of(RESULT, ("sums", sums))

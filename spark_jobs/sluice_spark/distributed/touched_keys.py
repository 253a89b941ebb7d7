"""The keys of all rows that changed since the first moment of a snapshot.

A chunk of a later moment has rows of such keys as well, and the table that is built has them already, as of the
same moment: the changes brought them. All other rows of the chunk are new. So they can be appended, without
looking for a key in what was built before. Keys are compared exactly; hashes only choose what is compared. They lie in
the scratch of the spool, and no key passes the driver. Runs in executors' Python, but for `TouchedSpan`.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.contract import envelope
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice_spark.distributed.stages import RESULT, Piece
from sluice_spark.distributed.task import WindowTask
from sluice_spark.fold.partition import hash_rows, identifying
from sluice_spark.fold.row_identity import Claims, number_rows, whole
from sluice_spark.spool import StorePrefix


@dataclass(frozen=True, slots=True)
class TouchedSpan:
    """Keys touched after the first moment of the snapshot that becomes the table of `app_id`, and up to
    `through_lsn`: objects of the spool, and the bytes that they take in memory.
    """

    app_id: str
    through_lsn: int
    objects: tuple[str, ...] = ()
    memory: int = 0

    def plus(self, found: Sequence["Touched"], *, through_lsn: int) -> "TouchedSpan":
        """With those of the time up to `through_lsn`."""
        objects = tuple(one.object for one in found if one.object)
        memory = self.memory + sum(one.memory for one in found)
        return TouchedSpan(self.app_id, through_lsn, self.objects + objects, memory)


@dataclass(frozen=True, slots=True)
class Touched:
    """What one task found: an object of the spool (empty: nothing) that takes `memory` bytes."""

    object: str = ""
    memory: int = 0


def touched(window: WindowTask, numbers: Iterator[int]) -> Iterator[Piece]:
    """The keys that the changes of each bin act on or make, as an object below the window's scratch."""
    columns = window.schema.key_columns
    for number in numbers:
        parts: list[pa.Table] = []
        for rows, _ in window.changes(number):
            parts.append(_table(_present(rows, columns)))
            if envelope.OLD in rows.column_names:
                parts.append(_table(_former(rows, columns)))
        found = Touched()
        if parts:
            keys = _distinct(pa.concat_tables(parts))
            sink = io.BytesIO()
            pq.write_table(keys, sink, compression="lz4", use_dictionary=False, write_statistics=False)
            found = Touched(f"{window.scratch}{number}.parquet", keys.nbytes + 8 * len(keys))
            window.spool.open().put(found.object, sink.getvalue())
        yield Piece.of(RESULT, found)


@dataclass(frozen=True, slots=True)
class Untouched:
    """Leaves out rows whose keys are among those in `objects` of `spool`."""

    spool: StorePrefix
    objects: tuple[str, ...]

    def of(self, rows: pa.Table, schema: TableSchema) -> pa.Table:
        """The others of `rows`, which have the columns of `schema`."""
        if not self.objects or not len(rows):
            return rows
        among = _loaded(self).among(_present(rows, schema.key_columns), len(rows))
        return rows.filter(pa.array(~among)) if among.any() else rows


class TouchedKeys:
    """Keys in memory: `keys` spells one in a row."""

    def __init__(self, keys: pa.Table) -> None:
        hashes = hash_rows([whole(column) for column in keys.columns], len(keys))
        order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[order]
        self._keys = keys.take(pa.array(order))

    def among(self, arrays: Sequence[pa.Array], length: int) -> Claims:
        """Which of the `length` keys that `arrays` spell are among these."""
        hashes = hash_rows(arrays, length)
        first = np.searchsorted(self._hashes, hashes, side="left")
        last = np.searchsorted(self._hashes, hashes, side="right")
        found = np.zeros(length, dtype=bool)
        candidates = np.flatnonzero(last > first)
        if not len(candidates):
            return found
        places = np.unique(np.concatenate([np.arange(first[one], last[one]) for one in candidates]))
        mine = _table([array.take(pa.array(candidates)) for array in arrays])
        both = pa.concat_tables([mine, self._keys.take(pa.array(places))])
        numbers = number_rows([whole(column) for column in both.columns], len(both))
        found[candidates] = np.isin(numbers[: len(candidates)], numbers[len(candidates) :])
        return found


@lru_cache(maxsize=2)
def _loaded(untouched: Untouched) -> TouchedKeys:
    store = untouched.spool.open()
    parts = [pq.read_table(pa.BufferReader(store.get(key))) for key in untouched.objects]
    return TouchedKeys(_distinct(pa.concat_tables(parts)))


def _present(rows: pa.Table, columns: Sequence[ColumnSchema]) -> list[pa.Array]:
    return identifying(columns, lambda name: whole(rows[name]), rows[envelope.SPECIAL], len(rows))


def _former(rows: pa.Table, columns: Sequence[ColumnSchema]) -> list[pa.Array]:
    rows = rows.filter(pc.is_valid(rows[envelope.OLD]))
    old = whole(rows[envelope.OLD])
    return identifying(columns, lambda name: pc.struct_field(old, [name]), rows[envelope.OLD_SPECIAL], len(rows))


def _table(arrays: Sequence[pa.Array]) -> pa.Table:
    return pa.Table.from_arrays(list(arrays), names=[str(place) for place in range(len(arrays))])


def _distinct(keys: pa.Table) -> pa.Table:
    numbers = number_rows([whole(column) for column in keys.columns], len(keys))
    _, first = np.unique(numbers, return_index=True)
    return keys.take(pa.array(first)).combine_chunks()

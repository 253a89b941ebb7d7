"""Cuts a window into parts that are folded separately: rows that may become one row of the lake are
in one part.

Owns: a change goes to the part of the key that it acts on, a key change between two parts becomes a
removal in one and an arrival in the other, and keys between which a row moved without sending all
its values are linked and share a part, because the missing value is to be found at the old key. A
table without a key is cut by whole rows, before and after. A TRUNCATE goes to every part. Rows are
equal here exactly when they are equal in the fold. Pure.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract import envelope
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.errors import ManifestCorrupt
from sluice_spark.fold.row_identity import Claims, Numbers, comparable, special_rows, special_texts, whole

Hashes = npt.NDArray[np.uint64]

PARTS = 64
_MARKED_COST = 500
_MOVED_COST = 500
"""Bytes that one marked value, and one change that moves a row, cost in the fold beside their own:
both are followed as Python objects.
"""


def weight(rows: pa.Table, schema: TableSchema) -> int:
    """What folding `rows` takes, in bytes of one copy of them."""
    marks: int = sum(len(rows) - rows[name].null_count for name in (envelope.SPECIAL, envelope.OLD_SPECIAL))
    return int(rows.nbytes) + _MARKED_COST * marks + _MOVED_COST * _moved_rows(rows, schema)


def _moved_rows(rows: pa.Table, schema: TableSchema) -> int:
    names = [column.name for column in schema.key_columns if column.identity]
    if envelope.OLD not in rows.column_names or not names or rows[envelope.OLD].null_count == len(rows):
        return 0
    moved = np.zeros(len(rows), dtype=bool)
    old = whole(rows[envelope.OLD])
    for name in names:
        now, before = (comparable(values, bits=False) for values in (whole(rows[name]), pc.struct_field(old, [name])))
        moved |= pc.not_equal(now, before).fill_null(False).to_numpy(zero_copy_only=False)  # noqa: FBT003
    return int(np.count_nonzero(moved))


@dataclass(slots=True)
class Links:
    """Keys that must share a part, as pairs of hashes."""

    old: list[Hashes] = field(default_factory=list)
    new: list[Hashes] = field(default_factory=list)
    count: int = 0

    def add(self, old: Hashes, new: Hashes) -> None:
        self.old.append(old)
        self.new.append(new)
        self.count += len(old)

    def groups(self) -> "Groups":
        """The hash that stands for each linked one: the same for all that are connected."""
        if not self.count:
            return Groups()
        old, new = np.concatenate(self.old), np.concatenate(self.new)
        members, places = np.unique(np.concatenate([old, new]), return_inverse=True)
        return Groups(members, members[_roots(places[: len(old)], places[len(old) :], len(members))])


@dataclass(frozen=True, slots=True)
class Groups:
    """Sorted hashes and what stands for each."""

    members: Hashes = field(default_factory=lambda: np.array([], dtype=np.uint64))
    leaders: Hashes = field(default_factory=lambda: np.array([], dtype=np.uint64))

    def of(self, hashes: Hashes) -> Hashes:
        if not len(self.members):
            return hashes
        places = np.minimum(np.searchsorted(self.members, hashes), len(self.members) - 1)
        return np.where(self.members[places] == hashes, self.leaders[places], hashes)


def _roots(left: Numbers, right: Numbers, count: int) -> Numbers:
    """The smallest number in each one's connected component: labels
    propagate along edges and shortcuts until nothing changes.
    """
    parent = np.arange(count, dtype=np.int64)
    while True:
        above = parent[parent]
        low = np.minimum(above[left], above[right])
        updated = above.copy()
        for end in (left, right):
            np.minimum.at(updated, parent[end], low)
            np.minimum.at(updated, end, low)
        if np.array_equal(updated, parent):
            return parent
        parent = updated


@dataclass(frozen=True, slots=True)
class Cutter:
    """Assigns changes to parts. `columns` names what identifies rows: the key, or with `bits` what
    all versions of a table without a key have in common.

    With `each_transaction` what a row was at the end of each transaction counts, not its last state alone.

    `level` makes other parts of the same rows, for a part that is still too large. `parts` is their
    number.
    """

    columns: tuple[ColumnSchema, ...]
    bits: bool = False
    groups: Groups = field(default_factory=Groups)
    level: int = 0
    parts: int = PARTS
    each_transaction: bool = False

    def moves(self, rows: pa.Table) -> tuple[Hashes, Hashes]:
        """Old and new hash of each update that moves a row to another key and lacks a value."""
        acts_on, now, update = self._hashes(rows)
        chosen = update & (acts_on != now) & _unsent(rows)
        return acts_on[chosen], now[chosen]

    def cut(self, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """`rows`, `spaced` and none of them a TRUNCATE, as (part, changes)."""
        acts_on, now, update = self._hashes(rows)
        here, there = self._part(acts_on), self._part(now)
        parted = update & (here != there)
        if not parted.any():
            yield from self._by_part(rows, here)
            return
        if bool(np.any(parted & _unsent(rows))):
            raise ManifestCorrupt(
                "a row moved to another key without all its values in a segment of which the manifest says otherwise"
            )
        stayed, moved = rows.filter(pa.array(~parted)), rows.filter(pa.array(parted))
        together = pa.concat_tables([stayed, *removed_and_arrived(moved)])
        parts = np.concatenate([here[~parted], here[parted], there[parted]])
        # Changes of one row stay side by side.
        order = np.lexsort((together[envelope.ORDINAL].to_numpy(), together[envelope.LSN].to_numpy()))
        yield from self._by_part(together.take(pa.array(order)), parts[order])

    def moved_apart(self, rows: pa.Table) -> pa.Table:
        """`rows` with every update that moves a row to another key, and sends all its values, as a
        removal and an arrival. In no order.
        """
        acts_on, now, update = self._hashes(rows)
        moves = update & (acts_on != now) & ~_unsent(rows)
        return (
            pa.concat_tables([rows.filter(pa.array(~moves)), *removed_and_arrived(rows.filter(pa.array(moves)))])
            if moves.any()
            else rows
        )

    def _by_part(self, rows: pa.Table, parts: Numbers) -> Iterator[tuple[int, pa.Table]]:
        order = np.argsort(parts, kind="stable")
        bounds = np.searchsorted(parts[order], np.arange(self.parts + 1)).tolist()
        ordered = rows.take(pa.array(order))
        for part in range(self.parts):
            if bounds[part] < bounds[part + 1]:
                yield part, ordered.slice(bounds[part], bounds[part + 1] - bounds[part])

    def _part(self, hashes: Hashes) -> Numbers:
        return (_mix(self.groups.of(hashes) + np.uint64(self.level)) % np.uint64(self.parts)).astype(np.int64)

    def _hashes(self, rows: pa.Table) -> tuple[Hashes, Hashes, Claims]:
        """Of each change what it acts on and what it makes, and whether it is an update with an old
        row.
        """
        operation = rows[envelope.OP]
        now = self._hash(lambda name: whole(rows[name]), rows[envelope.SPECIAL], len(rows))
        if envelope.OLD not in rows.column_names:
            return now, now, np.zeros(len(rows), dtype=bool)
        old = whole(rows[envelope.OLD])
        has_old = old.is_valid().to_numpy(zero_copy_only=False) & ~pc.equal(operation, envelope.OP_INSERT).to_numpy()
        if not has_old.any() or any(old.type.get_field_index(column.name) < 0 for column in self.columns):
            return now, now, np.zeros(len(rows), dtype=bool)
        before = self._hash(lambda name: pc.struct_field(old, [name]), rows[envelope.OLD_SPECIAL], len(rows))
        return np.where(has_old, before, now), now, has_old & pc.equal(operation, envelope.OP_UPDATE).to_numpy()

    def _hash(self, values: Callable[[str], pa.Array], special: pa.ChunkedArray, length: int) -> Hashes:
        return hash_rows(identifying(self.columns, values, special, length), length, bits=self.bits)


def cutter_for(versions: Sequence[TableSchema], groups: Groups | None = None) -> Cutter:
    """How a window with rows of these versions is cut."""
    newest = versions[-1]
    if newest.key_columns:
        return Cutter(newest.key_columns, groups=groups or Groups())
    common = tuple(
        column for column in newest.columns if all(version.column(column.name) is not None for version in versions)
    )
    return Cutter(common, bits=True)


def identifying(
    columns: Sequence[ColumnSchema], values: Callable[[str], pa.Array], special: pa.ChunkedArray, length: int
) -> list[pa.Array]:
    """What identifies `length` rows by `columns`: their values, and the texts of those that are marked in
    `special`.
    """
    marked = special_rows(special)
    arrays = []
    for column in columns:
        arrays.append(values(column.name))
        if column.lake.special:
            arrays.append(special_texts(marked, column.name, length))
    return arrays


def hash_rows(columns: Sequence[pa.Array], length: int, *, bits: bool = False) -> Hashes:
    """One number for each row that `columns` spell; rows that are equal for `number_rows`
    have the same one.
    """
    hashes = np.zeros(length, dtype=np.uint64)
    for column in columns:
        hashes = _mix(hashes + _hash(comparable(column, bits=bits)))
    return hashes


def _hash(column: pa.Array) -> Hashes:
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_floating(kind):
        column = pc.cast(column, pa.float64())
        values = column.fill_null(0.0).to_numpy(zero_copy_only=False)
        hashes = np.where(np.isnan(values), np.nan, values).view(np.uint64)
    elif pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        numbers = (
            column.view(pa.int64() if kind.bit_width == 64 else pa.int32()) if pa.types.is_temporal(kind) else column
        )
        hashes = pc.cast(numbers, pa.int64()).fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64)
    else:
        hashes = _hash_bytes(
            column if pa.types.is_string(kind) or pa.types.is_binary(kind) else pc.cast(column, pa.string())
        )
    return np.where(column.is_valid().to_numpy(zero_copy_only=False), hashes, np.uint64(0x5851F42D4C957F2D))


def _hash_bytes(column: pa.Array) -> Hashes:
    column = pc.cast(column, pa.large_binary()).fill_null(b"")
    _, offsets_buffer, data = column.buffers()
    offsets = (
        np.frombuffer(offsets_buffer, dtype=np.int64, count=len(column) + 1, offset=8 * column.offset).tolist()
        if len(column)
        else [0]
    )
    view = memoryview(data) if data is not None else memoryview(b"")
    return np.fromiter(
        (zlib.crc32(view[start:end]) for start, end in pairwise(offsets)), dtype=np.uint64, count=len(column)
    )


def _mix(numbers: Hashes) -> Hashes:
    # The finalizer of splitmix64.
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def _unsent(rows: pa.Table) -> Claims:
    any_unsent = pc.greater(pc.list_value_length(whole(rows[envelope.UNCHANGED])), 0)
    claims: Claims = any_unsent.fill_null(fill_value=False).to_numpy(zero_copy_only=False)
    return claims


def spaced(rows: pa.Table) -> pa.Table:
    """`rows` with doubled positions: the two changes that one is cut into keep their
    order.
    """
    return _placed(rows, pc.multiply_checked(rows[envelope.ORDINAL], 2))


def _placed(rows: pa.Table, positions: pa.ChunkedArray) -> pa.Table:
    return rows.set_column(rows.column_names.index(envelope.ORDINAL), envelope.ORDINAL, positions)


def removed_and_arrived(moved: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Updates, `spaced`, as removals of their old rows and arrivals of their new ones."""
    removed = _as(moved, envelope.OP_DELETE, without=(envelope.UNCHANGED, envelope.SPECIAL))
    arrived = _placed(moved, pc.add(moved[envelope.ORDINAL], 1))
    return removed, _as(arrived, envelope.OP_INSERT, without=(envelope.OLD, envelope.OLD_SPECIAL))


def _as(rows: pa.Table, operation: str, *, without: tuple[str, ...]) -> pa.Table:
    values = {envelope.OP: pa.array([operation] * len(rows), rows.schema.field(envelope.OP).type)}
    values |= {name: pa.nulls(len(rows), rows.schema.field(name).type) for name in without}
    for name, array in values.items():
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), array)
    return rows

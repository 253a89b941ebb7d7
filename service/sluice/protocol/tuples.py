"""Row messages to columns: TupleData of many Insert, Update and Delete messages walked together.

A tuple's fields have no index: where a field begins is known only after the one before it. That
chain is long for one row and short for many rows, so the walk takes one vector step per *column*
over all rows at once and never touches a value. One unaligned 8-byte read per field brings its kind
and its length (measured: half the time of two reads, a third of four single bytes for the length).

Invariant: a RowColumns holds only fields that lie wholly inside their own message, and every
message was used up exactly. Anything else is a DecodeError, nothing is guessed. No text is decoded
here and no type is known. (PostgreSQL: Logical Replication Message Formats, TupleData.)
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice.errors import DecodeError
from sluice.protocol.constants import (
    BINARY,
    DELETE,
    INSERT,
    NEW_TUPLE,
    NULL,
    OLD_KEY,
    OLD_TUPLE,
    TEXT,
    UNCHANGED,
    UPDATE,
    XLOGDATA_HEADER_BYTES,
)
from sluice.protocol.frames import Bytes, FrameTable, Offsets, frame_name
from sluice.protocol.limits import MAX_COLUMNS

_HAS_VALUE = np.zeros(256, np.bool_)
_HAS_VALUE[[TEXT, BINARY]] = True
_IS_KIND = np.zeros(256, np.bool_)
_IS_KIND[[NULL, UNCHANGED, TEXT, BINARY]] = True
_MARKER_FITS = np.zeros((256, 256), np.bool_)
"""Whether a message of this tag may begin with a tuple marked so."""
_MARKER_FITS[INSERT, NEW_TUPLE] = True
_MARKER_FITS[UPDATE, [NEW_TUPLE, OLD_KEY, OLD_TUPLE]] = True
_MARKER_FITS[DELETE, [OLD_KEY, OLD_TUPLE]] = True

_BLOCK_ROWS = 8192
"""Rows walked together: the block's bytes and arrays then stay in the processor's second-level
cache from one column to the next.
"""

_FIELD_HEADER_BYTES = 5
"""The kind byte and the length of a field with a value."""

_COUNT_BYTES = 2
"""The number of fields, before the first one."""


@dataclass(frozen=True, slots=True, eq=False)
class FieldVector:
    """One column's fields: `kind` is n (NULL), u (unchanged, not sent), t (text) or b (binary); a
    value is `buffer[start : start + length]`.

    Of a field without a value the length is 0 and `start` is some position inside the buffer.
    """

    kind: Bytes
    start: Offsets
    length: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class RowColumns:
    """Rows as columns, in the order received.

    `op` is I, U or D. `old_kind` is 0 for a row without an old tuple, K for one with the identity
    columns (its other fields are n: not sent, not NULL), O for one with every column. `new` has one
    vector per column, with kind n in every Delete. `old` also has one vector per column, with
    kind n in the rows that have no old tuple; it is None when no row has one.
    """

    table: FrameTable
    op: Bytes
    old_kind: Bytes
    new: tuple[FieldVector, ...]
    old: tuple[FieldVector, ...] | None

    def __len__(self) -> int:
        return len(self.op)


def walk_rows(table: FrameTable, rows: Offsets, column_count: int, *, in_stream: bool) -> RowColumns:
    """The fields of the row messages `rows` (indices into `table`), all of one relation version
    with `column_count` columns.

    `in_stream` says whether the messages came between Stream Start and Stream Stop and so carry a
    transaction id. Raises DecodeError, and nothing else, for a message that is not exactly such a
    row.
    """
    if not 0 <= column_count <= MAX_COLUMNS:
        raise DecodeError(f"{column_count} columns are more than a tuple can have ({MAX_COLUMNS})")
    walk = _Walk(table, rows, column_count)
    marker = walk.open_messages(in_stream=in_stream)
    is_delete = walk.op == DELETE
    has_old = marker != NEW_TUPLE
    old = walk.tuples(has_old) if bool(has_old.any()) else None
    walk.expect_new_marker(has_old & ~is_delete)
    new = walk.tuples(~is_delete)
    walk.close_messages()
    return RowColumns(table=table, op=walk.op, old_kind=np.where(has_old, marker, np.uint8(0)), new=new, old=old)


def _no_fields(row_count: int, *, table: FrameTable) -> FieldVector:
    """A column whose fields are all n."""
    return FieldVector(
        np.full(row_count, NULL, np.uint8), np.full(row_count, table.nulls_at, np.int64), np.zeros(row_count, np.int32)
    )


class _Walk:
    """The position inside each message, moved forward tuple by tuple. Lives for one call."""

    def __init__(self, table: FrameTable, rows: Offsets, column_count: int) -> None:
        self._table = table
        self._rows = rows
        self._column_count = column_count
        self._end = table.end[rows]
        self._position = table.start[rows] + (XLOGDATA_HEADER_BYTES + 1)
        self.op = table.tag[rows]

    def open_messages(self, *, in_stream: bool) -> Bytes:
        """Steps over transaction id, relation OID and the first marker, which fits its message and
        is returned.
        """
        self._position += 8 if in_stream else 4
        self._require(self._position < self._end, "ends inside its header")
        marker = self._table.buffer[self._position]
        self._require(_MARKER_FITS[self.op, marker], "is not a row message, or marks its first tuple wrongly")
        self._position += 1
        return marker

    def expect_new_marker(self, active: npt.NDArray[np.bool_]) -> None:
        """Steps over the N between the old and the new tuple of the `active` rows."""
        if not bool(active.any()):
            return
        self._require(~active | (self._position < self._end), "ends behind its old tuple")
        self._require(
            ~active | (self._table.buffer[self._position] == NEW_TUPLE), "has no new tuple behind its old one"
        )
        self._position += active

    def close_messages(self) -> None:
        self._require(self._position == self._end, "goes on behind its last field")

    def tuples(self, active: npt.NDArray[np.bool_]) -> tuple[FieldVector, ...]:
        """One tuple of each `active` row, and nulls for the others, whose position stays."""
        if not bool(active.any()):
            return (_no_fields(len(self._rows), table=self._table),) * self._column_count
        self._open_tuples(active)
        row_count, everyone = len(self._rows), bool(active.all())
        position, end = self._position, self._end
        if not everyone:
            nulls_at = self._table.nulls_at
            position = np.where(active, position, nulls_at)
            end = np.where(active, end, nulls_at + MAX_COLUMNS)
        kind = np.empty((self._column_count, row_count), np.uint8)
        start = np.empty((self._column_count, row_count), np.int64)
        length = np.empty((self._column_count, row_count), np.int32)
        for first in range(0, row_count, _BLOCK_ROWS):
            block = slice(first, first + _BLOCK_ROWS)
            self._walk_block(
                position[block], end[block], (kind[:, block], start[:, block], length[:, block]), first=first
            )
        if not everyone:
            np.copyto(self._position, position, where=active)
        return tuple(FieldVector(kind[column], start[column], length[column]) for column in range(self._column_count))

    def _open_tuples(self, active: npt.NDArray[np.bool_]) -> None:
        # Every field takes at least its kind byte: checked before anything is allocated, so memory
        # is bounded by the bytes received.
        self._require(
            ~active | (self._position + (_COUNT_BYTES + self._column_count) <= self._end),
            "is too short for its columns",
        )
        buffer, position = self._table.buffer, self._position
        high, low = divmod(self._column_count, 256)
        self._require(
            ~active | ((buffer[position] == high) & (buffer[position + 1] == low)),
            f"does not have the relation's {self._column_count} columns",
        )
        self._position += _COUNT_BYTES * active

    def _walk_block(
        self, position: Offsets, end: Offsets, out: tuple[Bytes, Offsets, npt.NDArray[np.int32]], *, first: int
    ) -> None:
        """Fills `out` for one block of rows and moves `position` in place behind their last field."""
        raw = self._table.raw
        # Eight bytes as one number, at each byte of the buffer: the lowest is the kind, the next
        # four are the length.
        words = np.ndarray((len(raw) - 7,), "<u8", raw, strides=(1,))
        for column in range(self._column_count):
            kind, start, length = out[0][column], out[1][column], out[2][column]
            word = words[position]
            kind[:] = word.astype(np.uint8)
            # As unsigned, a negative length is at least 2 GiB and so past the end of any buffer:
            # one comparison refuses both.
            size = (word >> np.uint64(8)).astype(np.uint32).byteswap()
            np.add(position, _FIELD_HEADER_BYTES, out=start)
            if bool((kind == TEXT).all()) or bool((kind == BINARY).all()):
                np.add(start, size, out=position)
            else:
                has_value = _HAS_VALUE[kind]
                self._require(_IS_KIND[kind], f"has an unknown kind of field in column {column + 1}", first=first)
                size *= has_value
                position += 1 + (_FIELD_HEADER_BYTES - 1) * has_value + size.astype(np.int64)
            self._require(position <= end, f"ends inside column {column + 1}", first=first)
            length[:] = size.view(np.int32)

    def _require(self, holds: npt.NDArray[np.bool_], otherwise: str, *, first: int = 0) -> None:
        if not bool(holds.all()):
            index = int(self._rows[first + int(holds.argmin())])
            raise DecodeError(f"{frame_name(self._table, index)} {otherwise}")

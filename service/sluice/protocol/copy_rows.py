"""Rows of a COPY to columns: COPY ... (FORMAT binary), of text fields and of binary ones.

The copy selects a column as it is, where its type's binary form is read exactly and at less cost, and
else through its type's output function, so that a field holds the very text that the stream would
send. The format gives each field its length, which spares unescaping and lets the rows be walked column
by column like TupleData.

Invariant: as in `tuples`: only fields wholly inside their own row, every row used up exactly, a
DecodeError for anything else. A copy is whole only once the trailer was seen: a connection that
breaks off cannot pass for the end of the table. (PostgreSQL: COPY, Binary Format; Message Flow,
COPY Operations: one CopyData message per row, header with the first, trailer by itself.)
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sluice.errors import DecodeError
from sluice.protocol.buffers import Raw
from sluice.protocol.constants import BINARY, INSERT, NULL, TEXT
from sluice.protocol.frames import FrameTable, Offsets, big_endian_words, join_bytes, nulls_at
from sluice.protocol.limits import MAX_COLUMNS
from sluice.protocol.tuples import FieldVector, RowColumns

_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_FIXED_HEADER_BYTES = len(_SIGNATURE) + 8
"""The signature, the flags, the length of the header extension."""
_CRITICAL_FLAGS = 0xFFFF_0000
"""A reader must refuse flags it does not know among these; the lower ones it must ignore."""
_TRAILER = b"\xff\xff"
"""A field count of -1."""
_NULL_LENGTH = np.uint32(0xFFFF_FFFF)
_COUNT_BYTES = 2
_LENGTH_BYTES = 4


@dataclass(slots=True)
class CopyPayloads:
    """CopyData payloads in the order received: `sizes` has the length of each, `chunks` their bytes, in pieces
    that hold one or many of them.
    """

    chunks: list[bytes | memoryview] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)


class CopyRows:
    """The rows of one copy of a relation with `column_count` columns, batch by batch.

    Knows only whether header and trailer were seen. After a DecodeError it is as it was before the
    call.
    """

    def __init__(self, column_count: int, binary: Collection[int] = ()) -> None:
        """`binary` are the columns, from 0, that come in the binary form of their types; the others are
        text.
        """
        if not 0 <= column_count <= MAX_COLUMNS:
            raise DecodeError(f"{column_count} columns are more than a tuple can have ({MAX_COLUMNS})")
        self._column_count = column_count
        self._kinds = [np.uint8(BINARY if column in binary else TEXT) for column in range(column_count)]
        self._begun = False
        self._complete = False

    def feed(
        self, chunks: Sequence[bytes | memoryview], *, sizes: Sequence[int] | None = None, emptied: bool = False
    ) -> RowColumns:
        """The rows in `chunks`, CopyData payloads in the order received: op I throughout, kind t,
        b or n, no old tuples. With `sizes` a chunk may hold many payloads (see CopyPayloads).

        With `emptied` the caller releases the large chunks that are memoryviews: what they showed
        is gone afterwards, and its memory with it. Raises DecodeError, and nothing else, for a
        missing or unknown header, a malformed row, anything behind the trailer, and past the size
        caps.
        """
        raw, buffer, start, end = join_bytes(chunks, sizes=sizes, emptied=emptied)
        if self._complete and len(start):
            raise DecodeError("the copy goes on behind its trailer")
        if not self._begun and len(start):
            start[0] += _header_bytes(raw, available=int(end[0]))
            if start[0] == end[0]:
                start, end = start[1:], end[1:]
        complete = self._complete or bool(
            len(start) and end[-1] - start[-1] == len(_TRAILER) and raw[int(start[-1]) : int(end[-1])] == _TRAILER
        )
        if complete and len(start):
            start, end = start[:-1], end[:-1]
        nothing = np.zeros(len(start), np.uint8)
        table = FrameTable(raw, buffer, start, end, outer=nothing, tag=nothing, nulls_at=nulls_at(raw))
        rows = _walk(table, self._kinds)
        self._begun = self._begun or bool(chunks)
        self._complete = complete
        return rows

    def close(self) -> None:
        """Raises DecodeError unless the trailer was seen: the copy is then not whole, whatever the
        connection said.
        """
        if not self._complete:
            raise DecodeError("the copy ended without its trailer")


def encode_copy(rows: Sequence[Sequence[str | None]]) -> list[bytes | memoryview]:
    """The CopyData payloads of a whole copy of `rows`, for rows that no server sends."""
    payloads: list[bytes | memoryview] = []
    for row in rows:
        fields = [b"\xff\xff\xff\xff" if text is None else _field(text.encode()) for text in row]
        payloads.append(len(row).to_bytes(_COUNT_BYTES, "big") + b"".join(fields))
    return [_SIGNATURE + bytes(8), *payloads, _TRAILER]


def _field(value: bytes) -> bytes:
    return len(value).to_bytes(_LENGTH_BYTES, "big") + value


def _walk(table: FrameTable, kinds: Sequence[np.uint8]) -> RowColumns:
    column_count = len(kinds)
    row_count = len(table)
    # Every field takes at least its length: checked before anything is allocated, so memory is
    # bounded by the bytes received.
    _require(table.start + (_COUNT_BYTES + _LENGTH_BYTES * column_count) <= table.end, "is too short for its columns")
    high, low = divmod(column_count, 256)
    _require(
        (table.buffer[table.start] == high) & (table.buffer[table.start + 1] == low),
        f"does not have {column_count} columns",
    )
    position = table.start + _COUNT_BYTES
    fields = []
    for column, kind in enumerate(kinds):
        vector, position = _walk_column(table, position, kind)
        _require(position <= table.end, f"ends inside column {column + 1}")
        fields.append(vector)
    _require(position == table.end, "goes on behind its last column")
    op, old_kind = np.full(row_count, INSERT, np.uint8), np.zeros(row_count, np.uint8)
    return RowColumns(table=table, op=op, old_kind=old_kind, new=tuple(fields), old=None)


def _header_bytes(raw: Raw, *, available: int) -> int:
    """How long the header is that begins the copy, all of it within the `available` bytes of the first chunk."""
    header = raw[: min(available, _FIXED_HEADER_BYTES)]
    if len(header) < _FIXED_HEADER_BYTES or not header.startswith(_SIGNATURE):
        raise DecodeError("the copy does not begin with the signature of COPY's binary format")
    flags = int.from_bytes(header[-8:-4], "big")
    if flags & _CRITICAL_FLAGS:
        raise DecodeError(f"the copy's header has unknown critical flags 0x{flags:08x}")
    length = _FIXED_HEADER_BYTES + int.from_bytes(header[-4:], "big")
    if length > available:
        raise DecodeError("the copy's header extension goes on behind its message")
    return length


def _walk_column(table: FrameTable, position: Offsets, sent: np.uint8) -> tuple[FieldVector, Offsets]:
    """One field of each row, and where the next begins. Positions are inside the buffer; whether
    the field ends inside its row is not checked.
    """
    size = big_endian_words(table.raw)[position].astype(np.uint32)
    is_null = size == _NULL_LENGTH
    kind = np.where(is_null, np.uint8(NULL), sent)
    # Other negative lengths are, as unsigned numbers, at least 2 GiB and so past the end of any row.
    size[is_null] = 0
    start = position + _LENGTH_BYTES
    return FieldVector(kind, start, size.view(np.int32)), start + size


def _require(holds: npt.NDArray[np.bool_], otherwise: str) -> None:
    if not bool(holds.all()):
        raise DecodeError(f"row {int(holds.argmin()) + 1} of a batch of {len(holds)} copied rows {otherwise}")

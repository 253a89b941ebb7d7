"""Many CopyData payloads as one buffer that numpy can walk.

Invariant: every frame in a FrameTable is long enough for its own header, so the header of any frame
may be read without another check, and the buffer goes on behind the last frame far enough that a
fixed-size read at any position up to the end of a frame stays inside it. Whether such a read was
*meant* to be inside its frame is the reader's to check. Nothing here looks at a row's values or
keeps anything between calls. (PostgreSQL: Streaming Replication Protocol, XLogData and Primary
keepalive message.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sluice.errors import DecodeError
from sluice.lsn import show
from sluice.protocol.buffers import LARGE_BYTES, Raw, moved
from sluice.protocol.constants import KEEPALIVE_BYTES, PRIMARY_KEEPALIVE, ROW_TAGS, XLOGDATA, XLOGDATA_HEADER_BYTES
from sluice.protocol.limits import MAX_COLUMNS, MAX_FRAME_BYTES

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]

_OVERREAD_BYTES = 32
"""A reader may take up to 16 bytes at a position up to 8 bytes past the end of the last frame or of
the synthetic tuple.
"""
TAIL = bytes(_OVERREAD_BYTES) + b"n" * MAX_COLUMNS + bytes(_OVERREAD_BYTES)

MAX_JOINED_BYTES = 0x7FFF_FFFF - len(TAIL)
"""Offsets into the buffer become Arrow string views, whose offsets are signed 32-bit."""

_IS_ROW = np.zeros(256, np.bool_)
_IS_ROW[list(ROW_TAGS)] = True


@dataclass(frozen=True, slots=True, eq=False)
class FrameTable:
    """CopyData payloads, joined: `raw[start[i]:end[i]]` is frame i. Treat the arrays as read-only.

    `outer` is `w` or `k`; `tag` is the pgoutput tag of a `w` frame and 0 for a `k`. Behind the
    frames comes a tail with a synthetic tuple of MAX_COLUMNS null fields at `nulls_at`: a walk
    points the rows at it that have no tuple of their own.
    """

    raw: Raw
    buffer: Bytes
    start: Offsets
    end: Offsets
    outer: Bytes
    tag: Bytes
    nulls_at: int

    def __len__(self) -> int:
        return len(self.start)


def join(frames: Sequence[bytes | memoryview], *, emptied: bool = False) -> FrameTable:
    """One table of `frames`, which are CopyData payloads as libpq gives them, in the order received.

    With `emptied` the caller releases the large ones that are memoryviews: what they showed is gone
    afterwards, and its memory with it.

    Raises DecodeError for a frame that is empty, shorter than its header, of unknown kind or too
    large, and for more than MAX_JOINED_BYTES in all.
    """
    return _table(*join_bytes(frames, emptied=emptied))


def rejoin(content: bytes | memoryview, end: Offsets) -> FrameTable:
    """One table of frames that were in one before and now lie in `content` one behind the other;
    `end` is where each ends. Raises DecodeError like `join`.
    """
    raw = b"".join((content, TAIL))
    start = np.zeros_like(end)
    start[1:] = end[:-1]
    return _table(raw, np.frombuffer(raw, np.uint8), start, end)


def _table(raw: Raw, buffer: Bytes, start: Offsets, end: Offsets) -> FrameTable:
    if not len(start):
        return FrameTable(
            raw, buffer, start, end, outer=np.zeros(0, np.uint8), tag=np.zeros(0, np.uint8), nulls_at=nulls_at(raw)
        )
    length = end - start
    if int(length.min()) < 1:
        raise DecodeError(f"frame {int(length.argmin())} of {len(length)} is empty")
    outer = buffer[start]
    data = outer == XLOGDATA
    short = length < np.where(data, XLOGDATA_HEADER_BYTES + 1, KEEPALIVE_BYTES)
    unknown = ~data & (outer != PRIMARY_KEEPALIVE)
    if bool(unknown.any()):
        index = int(unknown.argmax())
        raise DecodeError(
            f"frame {index} of {len(length)} begins with byte 0x{int(outer[index]):02x}, which is "
            "neither XLogData nor a keepalive"
        )
    if bool(short.any()):
        index = int(short.argmax())
        raise DecodeError(f"frame {index} of {len(length)} ends inside its header, after {int(length[index])} bytes")
    # A keepalive has 18 bytes, so position 25 of one lies in whatever follows it: inside the
    # buffer, and masked here.
    tag = np.where(data, buffer[start + XLOGDATA_HEADER_BYTES], np.uint8(0))
    return FrameTable(raw, buffer, start, end, outer=outer, tag=tag, nulls_at=nulls_at(raw))


def join_bytes(
    chunks: Sequence[bytes | memoryview], *, sizes: Sequence[int] | None = None, emptied: bool = False
) -> tuple[Raw, Bytes, Offsets, Offsets]:
    """`chunks` and the tail as one buffer, with the bounds of each chunk, or of what lies in them by its
    `sizes`; `emptied` as for `join`. Raises DecodeError past the size caps, before anything is copied.
    """
    length = np.fromiter(
        map(len, chunks) if sizes is None else sizes, np.int64, len(chunks if sizes is None else sizes)
    )
    end = np.cumsum(length)
    total = int(end[-1]) if len(end) else 0
    if sizes is not None and total != sum(map(len, chunks)):
        raise AssertionError(f"{sum(map(len, chunks))} bytes were joined as {total}")
    if len(length) and int(length.max()) > MAX_FRAME_BYTES:
        raise DecodeError(
            f"a message of {int(length.max())} bytes is larger than PostgreSQL can build ({MAX_FRAME_BYTES})"
        )
    if total > MAX_JOINED_BYTES:
        raise DecodeError(f"{total} bytes are too many for one batch ({MAX_JOINED_BYTES})", hint="lower the batch size")
    large = len(length) > 0 and int(length.max()) >= LARGE_BYTES
    raw: Raw = moved([*chunks, TAIL], emptied=emptied) if large else b"".join([*chunks, TAIL])
    return raw, np.frombuffer(raw, np.uint8), end - length, end


def control_positions(table: FrameTable) -> Offsets:
    """Indices of the frames that are not Insert, Update or Delete, ascending. Unknown tags are
    among them: `decode_control` refuses those.
    """
    return np.flatnonzero(~_IS_ROW[table.tag])


def relation_oids(table: FrameTable, rows: Offsets, *, in_stream: bool) -> Words:
    """The relation OID of each row message. Raises DecodeError for a frame that ends before it."""
    return _word_at(table, rows, after_tag=4 if in_stream else 0)


def stream_xids(table: FrameTable, rows: Offsets) -> Words:
    """The (sub)transaction id of each row message of a stream block. Raises DecodeError for a frame
    that ends before it, and for id 0.
    """
    xids = _word_at(table, rows, after_tag=0)
    if not bool(xids.all()):
        raise DecodeError(f"{frame_name(table, int(rows[xids.argmin()]))} in a stream has no transaction id")
    return xids


def frame_name(table: FrameTable, index: int) -> str:
    """What and where frame `index` is, for errors: its kind and its LSN, nothing that it carries."""
    tag = int(table.tag[index])
    shown = "keepalive" if int(table.outer[index]) == PRIMARY_KEEPALIVE else f"message {chr(tag)!r}"
    at = int(table.start[index]) + 1
    return f"{shown} at LSN {show(int.from_bytes(table.raw[at : at + 8], 'big'))}"


def big_endian_words(raw: Raw) -> Words:
    """Every four bytes of `raw` as an unsigned big-endian number, one element at each byte. No copy
    is made: index it, do not compute with it.
    """
    return np.ndarray((len(raw) - 3,), ">u4", raw, strides=(1,))


def nulls_at(raw: Raw) -> int:
    """Where the synthetic tuple begins in a buffer of `join_bytes`."""
    return len(raw) - _OVERREAD_BYTES - MAX_COLUMNS


def _word_at(table: FrameTable, rows: Offsets, *, after_tag: int) -> Words:
    position = table.start[rows] + (XLOGDATA_HEADER_BYTES + 1 + after_tag)
    short = position + 4 > table.end[rows]
    if bool(short.any()):
        raise DecodeError(f"{frame_name(table, int(rows[short.argmax()]))} ends inside its header")
    return big_endian_words(table.raw)[position].astype(np.uint32)

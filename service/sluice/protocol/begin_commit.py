"""Begin and Commit as columns: the two messages that come once per transaction, decoded for a whole
batch in a few vector steps.

Small transactions arrive at tens of thousands a second; an object for each would cost more than
their rows. (PostgreSQL: Logical Replication Message Formats, Begin and Commit.)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.errors import DecodeError
from sluice.lsn import INVALID, MAX_STORED
from sluice.protocol.constants import LAST_TIME_US, NO_FLAGS, POSTGRES_EPOCH_US, XLOGDATA_HEADER_BYTES
from sluice.protocol.frames import FrameTable

_BEGIN_LENGTH = XLOGDATA_HEADER_BYTES + 1 + 8 + 8 + 4
_COMMIT_LENGTH = XLOGDATA_HEADER_BYTES + 1 + 1 + 8 + 8 + 8


@dataclass(frozen=True, slots=True, eq=False)
class Begins:
    """Parallel lists of Python integers, in wire order."""

    final_lsn: list[int]
    commit_time_us: list[int]
    xid: list[int]

    def each(self) -> Iterator[tuple[int, int]]:
        """(final_lsn, xid) of one message after the other."""
        return zip(self.final_lsn, self.xid, strict=True)


@dataclass(frozen=True, slots=True, eq=False)
class CommitEnds:
    """Parallel lists of Python integers, in wire order."""

    commit_lsn: list[int]
    end_lsn: list[int]
    commit_time_us: list[int]

    def each(self) -> Iterator[tuple[int, int, int]]:
        """(commit_lsn, end_lsn, commit_time_us) of one message after the other."""
        return zip(self.commit_lsn, self.end_lsn, self.commit_time_us, strict=True)


def begins(table: FrameTable, positions: NDArray[np.int64]) -> Begins:
    """Decodes the Begin messages at `positions`. Raises DecodeError for whatever `decode_control`
    would refuse in one of them.
    """
    at = _bodies(table, positions, _BEGIN_LENGTH, "Begin")
    xids = _integers(table, at + 16, ">u4")
    if (xids == 0).any():
        raise DecodeError("a Begin message has transaction id 0")
    return Begins(_lsns(table, at, "Begin"), _times(table, at + 8, "Begin"), xids.tolist())


def commit_ends(table: FrameTable, positions: NDArray[np.int64]) -> CommitEnds:
    """Decodes the Commit messages at `positions`. Raises DecodeError for whatever `decode_control`
    would refuse in one of them.
    """
    at = _bodies(table, positions, _COMMIT_LENGTH, "Commit")
    if (table.buffer[at] != NO_FLAGS).any():
        raise DecodeError("a Commit message has flags that this protocol does not know")
    return CommitEnds(_lsns(table, at + 1, "Commit"), _lsns(table, at + 9, "Commit"), _times(table, at + 17, "Commit"))


def _lsns(table: FrameTable, at: NDArray[np.int64], name: str) -> list[int]:
    values = _integers(table, at, ">u8")
    if ((values == INVALID) | (values > MAX_STORED)).any():
        raise DecodeError(f"a {name} message has an LSN that no position can have")
    return list(values.tolist())


def _times(table: FrameTable, at: NDArray[np.int64], name: str) -> list[int]:
    values = _integers(table, at, ">i8")
    if (values > LAST_TIME_US).any():
        raise DecodeError(f"a {name} message has a commit time past the year 292277")
    return list((values.astype(np.int64) + POSTGRES_EPOCH_US).tolist())


def _bodies(table: FrameTable, positions: NDArray[np.int64], length: int, name: str) -> NDArray[np.int64]:
    starts = table.start[positions]
    if (table.end[positions] - starts != length).any():
        raise DecodeError(f"a {name} message is not {length - XLOGDATA_HEADER_BYTES} bytes long")
    return starts + (XLOGDATA_HEADER_BYTES + 1)


def _integers(table: FrameTable, at: NDArray[np.int64], form: str) -> NDArray[Any]:
    width = np.dtype(form).itemsize
    gathered = np.ascontiguousarray(table.buffer[at[:, None] + np.arange(width)])
    return gathered.view(form).ravel()

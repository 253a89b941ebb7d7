"""Begin and Commit as columns: the two messages that come once per transaction, decoded for a whole batch in a few vector steps.

Small transactions arrive at tens of thousands a second; an object for each would cost more than their rows.
(PostgreSQL: Logical Replication Message Formats, Begin and Commit.)
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.errors import DecodeError
from service.protocol.frames import FrameTable
from service.protocol.messages import POSTGRES_EPOCH_US

_HEADER = 25
"""The outer frame: `w`, three 64-bit numbers."""
_BEGIN_LENGTH = _HEADER + 1 + 8 + 8 + 4
_COMMIT_LENGTH = _HEADER + 1 + 1 + 8 + 8 + 8


@dataclass(frozen=True, slots=True, eq=False)
class Begins:
    """Parallel lists of Python integers, in wire order."""

    final_lsn: list[int]
    commit_time_us: list[int]
    xid: list[int]


@dataclass(frozen=True, slots=True, eq=False)
class CommitEnds:
    """Parallel lists of Python integers, in wire order."""

    commit_lsn: list[int]
    end_lsn: list[int]
    commit_time_us: list[int]


def begins(table: FrameTable, positions: NDArray[np.int64]) -> Begins:
    """Decodes the Begin messages at `positions`. Raises DecodeError if one has another length."""
    at = _bodies(table, positions, _BEGIN_LENGTH, "Begin")
    time_us = _integers(table, at + 8, ">i8").astype(np.int64) + POSTGRES_EPOCH_US
    return Begins(_integers(table, at, ">u8").tolist(), time_us.tolist(), _integers(table, at + 16, ">u4").tolist())


def commit_ends(table: FrameTable, positions: NDArray[np.int64]) -> CommitEnds:
    """Decodes the Commit messages at `positions`. Raises DecodeError if one has another length or unknown flags."""
    at = _bodies(table, positions, _COMMIT_LENGTH, "Commit")
    if table.buffer[at].any():
        raise DecodeError("a Commit message has flags that this protocol does not know")
    time_us = _integers(table, at + 17, ">i8").astype(np.int64) + POSTGRES_EPOCH_US
    return CommitEnds(_integers(table, at + 1, ">u8").tolist(), _integers(table, at + 9, ">u8").tolist(), time_us.tolist())


def _bodies(table: FrameTable, positions: NDArray[np.int64], length: int, name: str) -> NDArray[np.int64]:
    starts = table.start[positions]
    if (table.end[positions] - starts != length).any():
        raise DecodeError(f"a {name} message is not {length - _HEADER} bytes long")
    return starts + (_HEADER + 1)


def _integers(table: FrameTable, at: NDArray[np.int64], form: str) -> NDArray[np.generic]:
    width = np.dtype(form).itemsize
    gathered = np.ascontiguousarray(table.buffer[at[:, None] + np.arange(width)])
    return gathered.view(form).ravel()

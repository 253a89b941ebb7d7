"""Begin and Commit by the column are what they are one by one."""

import struct
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import DecodeError
from sluice.protocol.begin_commit import begins, commit_ends
from sluice.protocol.decoder import decode_control
from sluice.protocol.frames import FrameTable, Offsets, join
from sluice.protocol.messages import Begin, Commit
from tests.support.wire import frame

LSN = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 1]))
TIME = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([-(2**63), 2**63 - 1, 2**63 - 1 - 946_684_800_000_000, 2**63 - 946_684_800_000_000]),
)


def _assert_read_as_one_by_one(frames: list[bytes], read: Callable[[FrameTable, Offsets], Iterable[object]]) -> None:
    table, positions = join(frames), np.arange(len(frames), dtype=np.int64)
    try:
        expected = [decode_control(table, index, in_stream=False) for index in range(len(table))]
    except DecodeError:
        with pytest.raises(DecodeError):
            read(table, positions)
        return
    assert list(read(table, positions)) == expected


def _begins(table: FrameTable, positions: Offsets) -> Iterable[Begin]:
    found = begins(table, positions)
    return map(Begin, found.final_lsn, found.commit_time_us, found.xid)


def _commits(table: FrameTable, positions: Offsets) -> Iterable[Commit]:
    found = commit_ends(table, positions)
    return map(Commit, found.commit_lsn, found.end_lsn, found.commit_time_us)


@given(st.lists(st.tuples(LSN, TIME, st.integers(0, 2**32 - 1)), max_size=4))
def test_begins_are_what_decode_control_says_or_refused_as_it_does(parts: list[tuple[int, int, int]]) -> None:
    _assert_read_as_one_by_one([frame(b"B" + struct.pack(">QqI", *part)) for part in parts], _begins)


@given(st.lists(st.tuples(st.sampled_from([0, 0, 0, 1]), LSN, LSN, TIME), max_size=4))
def test_commits_are_what_decode_control_says_or_refused_as_it_does(parts: list[tuple[int, int, int, int]]) -> None:
    _assert_read_as_one_by_one([frame(b"C" + struct.pack(">BQQq", *part)) for part in parts], _commits)


@pytest.mark.parametrize("payload", [b"B" + bytes(19), b"B" + bytes(21), b"C" + bytes(24), b"C" + bytes(26)])
def test_another_length_is_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        (begins if payload[:1] == b"B" else commit_ends)(join([frame(payload)]), np.array([0]))

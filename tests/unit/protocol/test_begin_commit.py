"""Begin and Commit by the column are what they are one by one."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.errors import DecodeError
from sluice.protocol.begin_commit import begins, commit_ends
from sluice.protocol.decoder import decode_control
from sluice.protocol.frames import join
from sluice.protocol.messages import Begin, Commit
from tests.support.wire import frame

LSN = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 1]))
TIME = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([-(2**63), 2**63 - 1, 2**63 - 1 - 946_684_800_000_000, 2**63 - 946_684_800_000_000]),
)


def _one_by_one(frames: list[bytes]) -> list[Begin | Commit] | None:
    table = join(frames)
    try:
        return [decode_control(table, index, in_stream=False) for index in range(len(table))]  # type: ignore[misc]
    except DecodeError:
        return None


@given(st.lists(st.tuples(LSN, TIME, st.integers(0, 2**32 - 1)), max_size=4))
def test_begins_are_what_decode_control_says_and_refused_when_it_refuses(parts: list[tuple[int, int, int]]) -> None:
    frames = [frame(b"B" + struct.pack(">QqI", *part)) for part in parts]
    expected = _one_by_one(frames)
    positions = np.arange(len(frames), dtype=np.int64)
    if expected is None:
        with pytest.raises(DecodeError):
            begins(join(frames), positions)
        return
    found = begins(join(frames), positions)
    assert [Begin(*values) for values in zip(found.final_lsn, found.commit_time_us, found.xid, strict=True)] == expected


@given(st.lists(st.tuples(st.sampled_from([0, 0, 0, 1]), LSN, LSN, TIME), max_size=4))
def test_commits_are_what_decode_control_says_and_refused_when_it_refuses(
    parts: list[tuple[int, int, int, int]],
) -> None:
    frames = [frame(b"C" + struct.pack(">BQQq", *part)) for part in parts]
    expected = _one_by_one(frames)
    positions = np.arange(len(frames), dtype=np.int64)
    if expected is None:
        with pytest.raises(DecodeError):
            commit_ends(join(frames), positions)
        return
    found = commit_ends(join(frames), positions)
    assert [
        Commit(*values) for values in zip(found.commit_lsn, found.end_lsn, found.commit_time_us, strict=True)
    ] == expected


@pytest.mark.parametrize("payload", [b"B" + bytes(19), b"B" + bytes(21), b"C" + bytes(24), b"C" + bytes(26)])
def test_another_length_is_refused(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        (begins if payload[:1] == b"B" else commit_ends)(join([frame(payload)]), np.array([0]))

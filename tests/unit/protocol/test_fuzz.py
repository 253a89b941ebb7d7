"""Any bytes give a value or a DecodeError, and need memory in proportion to them."""

import contextlib
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sluice.errors import DecodeError
from sluice.protocol.copy_rows import CopyRows
from sluice.protocol.decoder import decode_control
from sluice.protocol.frames import control_positions, join
from sluice.protocol.tuples import walk_rows
from tests.fuzz.targets import TARGETS, connections, read_frames, session
from tests.support import pgoutput_bytes as wire
from tests.support.extent import FULL
from tests.support.recordings import STREAMS, recorded


@settings(max_examples=300 if FULL else 150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.binary(max_size=60), max_size=4), st.booleans(), st.integers(-1, 4))
@example([b""], False, 1)
@example([b"w" + bytes(24)], False, 1)
def test_any_bytes_give_a_value_or_a_decode_error(frames: list[bytes], in_stream: bool, column_count: int) -> None:
    read_frames(frames, in_stream=in_stream, column_count=column_count)
    with contextlib.suppress(DecodeError):
        CopyRows(max(0, column_count)).feed([wire.COPY_HEADER, *frames])


LIES = {
    "relation of 65535 columns": wire.relation(1, "s", "t", [])[:-2] + b"\xff\xff",
    "truncate of 2**31-1 relations": b"T" + wire.i32(2**31 - 1) + b"\0" + bytes(400),
    "message of 2**31-1 bytes": wire.message(1, "p", b"x" * 400).replace(b"\0\0\x01\x90", b"\x7f\xff\xff\xff"),
    "row of 65535 columns": b"I" + wire.u32(1) + b"N\xff\xff" + b"n" * 400,
    "value of 2**31-1 bytes": b"I" + wire.u32(1) + b"N\0\1t\x7f\xff\xff\xff" + bytes(400),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_length_from_the_wire_allocates_nothing(lie: str) -> None:
    table = join([wire.xlogdata(LIES[lie])])
    is_row = not len(control_positions(table))
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            walk_rows(table, np.arange(1), 1, in_stream=False) if is_row else decode_control(table, 0, in_stream=False)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_narrow_rows_for_a_wide_relation_allocate_nothing_in_its_width() -> None:
    table = join([wire.xlogdata(wire.insert(1, [b"1"]))] * 2000)
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="too short"):
            walk_rows(table, np.arange(2000), 1600, in_stream=False)
        assert tracemalloc.get_traced_memory()[1] < 400_000
    finally:
        tracemalloc.stop()


CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus"
SAVED = sorted(path for path in CORPUS.glob("*/*") if path.is_file())


@pytest.mark.parametrize("path", SAVED, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_the_saved_corpus_raises_nothing_that_is_not_declared(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


def test_every_fuzz_target_has_a_saved_corpus() -> None:
    assert {path.parent.name for path in SAVED} == set(TARGETS)


@settings(max_examples=300 if FULL else 120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(SAVED), st.data())
def test_changed_corpus_inputs_raise_nothing_that_is_not_declared(path: Path, data: st.DataObject) -> None:
    changed = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(changed) - 1))
        match data.draw(st.integers(0, 2)):
            case 0:
                changed[at] = data.draw(st.sampled_from(b"\0\1\x7f\x80\xff") | st.integers(0, 255))
            case 1:
                del changed[at : at + data.draw(st.integers(1, 40))]
            case _:
                changed[at:at] = changed[: data.draw(st.integers(1, 60))]
        if not changed:
            return
    TARGETS[path.parent.name](bytes(changed))


@settings(max_examples=150 if FULL else 60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(STREAMS), st.data())
def test_frames_dropped_repeated_and_moved_end_a_connection_or_change_nothing_it_must_not(
    path: Path, data: st.DataObject
) -> None:
    frames = list(recorded(path))
    for _ in range(data.draw(st.integers(1, 4))):
        at, to = data.draw(st.integers(0, len(frames) - 1)), data.draw(st.integers(0, len(frames) - 1))
        frame = frames[at]
        if data.draw(st.booleans()):
            del frames[at]
        frames.insert(min(to, len(frames)), frame)
    connections(frames, batch=data.draw(st.integers(1, 8)), per_connection=data.draw(st.integers(1, 60)))


TOP = 2**63 - 1
RELATION = wire.relation(5, "s", "t", [(1, "id", 23, -1), (0, "note", 25, -1)])
ROW = wire.insert(5, [b"1", None])
BEGIN, COMMIT = wire.begin(200, 0, 7), wire.commit(200, 240, 0)
# What a message must not be by itself is enumerated in test_decoder, test_tuples and test_begin_commit, and in which
# state it must not come in test_transitions.
HOSTILE: dict[str, list[bytes]] = {
    "an unknown tag": [BEGIN, b"?"],
    "a row of no columns": [BEGIN, RELATION, wire.insert(5, [])],
    "a row of a relation that was not announced": [BEGIN, ROW],
    "a truncate of a relation that was not announced": [BEGIN, wire.truncate([9])],
    "commit without begin": [COMMIT],
    "commit of another transaction": [BEGIN, wire.commit(199, 240, 0)],
    "commit that ends before it begins": [BEGIN, wire.commit(200, 200, 0)],
    "a keepalive past every position": [wire.keepalive(TOP + 1)],
    "positions that go back": [BEGIN, RELATION, ROW, COMMIT, wire.begin(150, 0, 8), wire.commit(150, 160, 0)],
    "a first block twice": [wire.stream_start(7), wire.stream_stop(), wire.stream_start(7)],
    "a later block that is the first": [wire.stream_start(7, first=0)],
    "the commit of an unknown stream": [wire.stream_commit(9, 200, 240, 0)],
    "a row in a stream without a transaction": [
        wire.stream_start(7),
        wire.relation(5, "s", "t", [(1, "id", 23, -1)], xid=7),
        wire.insert(5, [b"1"], xid=0),
    ],
    "a relation in a stream without its transaction": [wire.stream_start(7), RELATION],
    "an origin behind the first row": [BEGIN, RELATION, ROW, wire.origin(1, "late")],
    "two origins": [BEGIN, wire.origin(1, "a"), wire.origin(1, "b")],
}
HARMLESS: dict[str, list[bytes]] = {
    "the abort of an unknown stream": [wire.stream_abort(99, 99), wire.stream_abort(99, 98, at=(0, 0))],
    "the rollback of an unknown prepared transaction": [wire.rollback_prepared(200, 240, 0, 0, 7, "gid")],
    "a relation without columns": [BEGIN, wire.relation(5, "s", "t", []), wire.insert(5, []), wire.commit(200, 240, 0)],
    "another shape inside a stream": [
        wire.stream_start(7),
        wire.relation(5, "s", "t", [(1, "id", 23, -1)], xid=7),
        wire.insert(5, [b"1"], xid=7),
        wire.relation(5, "s", "t", [], xid=8),
        wire.insert(5, [], xid=8),
        wire.stream_stop(),
        wire.stream_commit(7, 200, 240, 0),
    ],
    "the highest positions and the first time": [
        wire.begin(TOP - 1, -(2**63), 7),
        RELATION,
        ROW,
        wire.commit(TOP - 1, TOP, -(2**63)),
    ],
}
BEFORE = [wire.begin(100, 0, 6), RELATION, ROW, wire.commit(100, 140, 0)]
AFTER = [wire.begin(300, 0, 9), RELATION, ROW, wire.commit(300, 340, 0)]


def framed(messages: list[bytes]) -> list[bytes]:
    return [message if message[:1] == b"k" else wire.xlogdata(message) for message in messages]


@pytest.mark.parametrize("one_by_one", [False, True], ids=["in one batch", "frame by frame"])
@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_streams_end_the_connection_and_nothing_of_them_is_acknowledged(case: str, one_by_one: bool) -> None:
    hostile = framed([*HOSTILE[case], *AFTER])
    batches = [framed(BEFORE), *([[frame] for frame in hostile] if one_by_one else [hostile])]
    acknowledged, taken = session(batches, start_lsn=0)
    # What ended in a batch before the one with the error may be acknowledged, nothing that came
    # with it or after it.
    assert acknowledged == (240 if (case, one_by_one) == ("positions that go back", True) else 140)
    assert taken < len(batches) or not one_by_one


@pytest.mark.parametrize("case", HARMLESS)
def test_unusual_streams_are_no_errors(case: str) -> None:
    acknowledged, taken = session([framed(BEFORE), framed(HARMLESS[case]), [wire.keepalive(TOP)]], start_lsn=0)
    assert (acknowledged, taken) == (TOP, 3)


def test_an_empty_frame_ends_the_connection() -> None:
    assert session([framed(BEFORE), [b""], framed(AFTER)], start_lsn=0) == (140, 2)


REPEATED: dict[str, list[bytes]] = {
    "rows": [ROW],
    "relations": [RELATION, wire.relation(5, "s", "t", [(1, "id", 23, -1)])],
    "truncates": [wire.truncate([5, 5, 5])],
    "messages": [wire.message(150, "p", b"x", flags=1)],
    "types": [wire.type_name(7, "s", "t")],
}


@pytest.mark.parametrize("case", REPEATED)
def test_memory_grows_with_the_bytes_and_no_faster(case: str) -> None:
    def peak(count: int) -> int:
        frames = framed([BEGIN, RELATION, *REPEATED[case] * count, COMMIT])
        tracemalloc.start()
        try:
            assert session([frames], start_lsn=0)[0] == 240
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(10)
    small, large = peak(500), peak(5000)
    # Ten times the bytes: ten times the memory where it grows with them, a hundred times where it grows with
    # their square. What the threads hold at once varies between runs, so the bound is between the two.
    assert large < 30 * small
    assert large < 5000 * 4000

"""Whatever the bytes, decoding them gives a value or a DecodeError, changes no input, and needs memory in proportion to them."""

import contextlib
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from service.errors import DecodeError
from service.protocol.copyrows import CopyRows
from service.protocol.decoder import decode_control
from service.protocol.frames import FrameTable, control_positions, join, relation_oids, stream_xids
from service.protocol.tuples import walk_rows
from tests.support import pgoutput_bytes as wire
from tests.unit.test_protocol_golden import STREAMS, recorded

OLDEST_AND_NEWEST = [path for path in STREAMS if path.parent.name in ("pg14", "pg18")]
"""Between them they have every message; those of the majors between differ in numbers only."""
SEEDS = [frame for path in STREAMS for frame in recorded(path)]


def decode_everything(frames: list[bytes], *, in_stream: bool, column_count: int) -> None:
    """Every public function over `frames`. A DecodeError of one does not keep the next from its turn; anything else escapes."""
    try:
        table = join(frames)
    except DecodeError:
        return
    for index in control_positions(table).tolist():
        with contextlib.suppress(DecodeError):
            decode_control(table, index, in_stream=in_stream)
    every = np.arange(len(table))
    rows = np.setdiff1d(every, control_positions(table))
    for chosen in (rows, every):
        with contextlib.suppress(DecodeError):
            walk_rows(table, chosen, column_count, in_stream=in_stream)
        with contextlib.suppress(DecodeError):
            relation_oids(table, chosen, in_stream=in_stream)
        with contextlib.suppress(DecodeError):
            stream_xids(table, chosen)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.binary(max_size=60), max_size=4), st.booleans(), st.integers(-1, 4))
@example([b""], False, 1)
@example([b"w" + bytes(24)], False, 1)
def test_arbitrary_bytes_give_a_value_or_a_decode_error(frames: list[bytes], in_stream: bool, column_count: int) -> None:
    decode_everything(frames, in_stream=in_stream, column_count=column_count)
    with contextlib.suppress(DecodeError):
        CopyRows(max(0, column_count)).feed([wire.COPY_HEADER, *frames])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(max_size=60), st.sampled_from(b"BCORYIUDTMSEcAbPKrpZ"), st.booleans(), st.integers(0, 4))
def test_arbitrary_bytes_behind_a_tag_give_a_value_or_a_decode_error(body: bytes, tag: int, in_stream: bool, column_count: int) -> None:
    decode_everything([wire.xlogdata(bytes([tag]) + body)], in_stream=in_stream, column_count=column_count)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(SEEDS), min_size=1, max_size=4), st.data())
def test_mutated_recordings_give_a_value_or_a_decode_error(frames: list[bytes], data: st.DataObject) -> None:
    chosen = data.draw(st.integers(0, len(frames) - 1))
    changed = bytearray(frames[chosen])
    for _ in range(data.draw(st.integers(1, 4))):
        # Near the front, where tags, counts and lengths are; 0xff and the like break lengths.
        at = data.draw(st.integers(0, min(len(changed), 90) - 1))
        changed[at] = data.draw(st.sampled_from(b"\0\1\x7f\x80\xff") | st.integers(0, 255))
    frames = [*frames[:chosen], bytes(changed), *frames[chosen + 1 :]]
    decode_everything(frames, in_stream=data.draw(st.booleans()), column_count=data.draw(st.sampled_from([0, 1, 2, 5])))


@pytest.mark.parametrize("path", OLDEST_AND_NEWEST, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_truncation_of_a_recording_gives_a_value_or_a_decode_error(path: Path) -> None:
    for frame in sorted(set(recorded(path)), key=len):
        cuts = [frame[:length] for length in range(min(len(frame), 220))]
        for cut in cuts:
            decode_everything([cut], in_stream=len(cut) % 2 == 0, column_count=2)
        # Also where the frame behind it would be misread as its end.
        for cut in cuts[26::7]:
            decode_everything([cut, frame], in_stream=False, column_count=2)


LIES = {
    "relation of 65535 columns": wire.relation(1, "s", "t", [])[:-2] + b"\xff\xff",
    "truncate of 2**31-1 relations": b"T" + wire.i32(2**31 - 1) + b"\0" + bytes(400),
    "message of 2**31-1 bytes": wire.message(1, "p", b"x" * 400).replace(b"\0\0\x01\x90", b"\x7f\xff\xff\xff"),
    "row of 65535 columns": b"I" + wire.u32(1) + b"N\xff\xff" + b"n" * 400,
    "value of 2**31-1 bytes": b"I" + wire.u32(1) + b"N\0\1t\x7f\xff\xff\xff" + bytes(400),
}


def read_control(table: FrameTable) -> None:
    decode_control(table, 0, in_stream=False)


def read_row(table: FrameTable) -> None:
    walk_rows(table, np.arange(1), 1, in_stream=False)


@pytest.mark.parametrize("lie", LIES)
def test_a_length_from_the_wire_allocates_nothing(lie: str) -> None:
    table = join([wire.xlogdata(LIES[lie])])
    read = read_control if len(control_positions(table)) else read_row
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            read(table)
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

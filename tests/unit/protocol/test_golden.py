"""Streams recorded from real servers decode to what the reference decoder makes of them
(tests/golden/record.py), and hold every message there is.
"""

from pathlib import Path

import pytest

from sluice.protocol.copy_rows import CopyRows
from sluice.protocol.frames import join
from tests.support.recordings import GOLDEN, STREAMS, decoded, recorded, rows_of
from tests.support.reference_decoder import readable

VERSIONS = sorted(GOLDEN.glob("pg*"))
MAJORS = (14, 15, 16, 17, 18, 19)
TWO_PHASE_SINCE, PARALLEL_SINCE = 15, 16


def since(major: int) -> list[Path]:
    return [version for version in VERSIONS if int(version.name.removeprefix("pg")) >= major]


def streams_of(version: Path, *names: str) -> list[str]:
    """Those of the `names` that this major can send."""
    return [name for name in names if (version / f"{name}.bin").exists()]


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_recorded_stream_decodes_to_what_it_says(path: Path) -> None:
    assert decoded(join(recorded(path))) == list(readable(recorded(path)))


def test_every_major_is_recorded_in_every_protocol_that_it_speaks() -> None:
    assert [version.name for version in VERSIONS] == [f"pg{major}" for major in MAJORS]
    spoken = {version.name: {path.stem for path in version.glob("protocol*.bin")} for version in VERSIONS}
    plain, two_phase = (
        {"protocol1", "protocol1_binary", "protocol2_streaming"},
        {"protocol3_two_phase", "protocol3_streaming_two_phase"},
    )
    assert spoken["pg14"] == plain
    assert spoken["pg15"] == plain | two_phase
    for version in since(PARALLEL_SINCE):
        assert spoken[version.name] == plain | two_phase | {"protocol4_parallel", "protocol4_two_phase"}


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_the_recordings_hold_every_kind_of_message(version: Path) -> None:
    kinds = {
        path.stem: {chr(frame[25]) if frame[:1] == b"w" else "k" for frame in recorded(path)}
        for path in version.glob("protocol*.bin")
    }
    assert kinds["protocol1"] == set("kBCORYIUDTM")
    for stream in streams_of(version, "protocol2_streaming", "protocol4_parallel"):
        assert set("SEcAORYIUDTM") <= kinds[stream]
    for stream in streams_of(version, "protocol3_two_phase"):
        assert set("bPKr") <= kinds[stream]
    for stream in streams_of(version, "protocol3_streaming_two_phase", "protocol4_two_phase"):
        assert set("SEpKr") <= kinds[stream]


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_an_abort_has_its_long_form_with_parallel_streaming_only(version: Path) -> None:
    lengths = {"protocol2_streaming": 9, "protocol4_parallel": 25}
    for stream in streams_of(version, *lengths):
        aborts = [frame[25:] for frame in recorded(version / f"{stream}.bin") if frame[25:26] == b"A"]
        assert [len(abort) for abort in aborts] == [lengths[stream]] * 2


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_a_recorded_stream_says_what_was_done_at_the_server(version: Path) -> None:
    stream = decoded(join(recorded(version / "protocol1.bin")))
    rows = [(row["message"], row["old_kind"], row["old"], row["new"]) for row in stream if row["message"] in "IUD"]
    nulls, item = [["n"]] * 4, [["t", "1"], ["t", "tëa"], ["t", "ok"], ["t", "1.50"], ["t", "x" * 2500]]
    assert rows[:8] == [
        ("I", "", None, item),
        ("I", "", None, [["t", "2"], ["t", ""], ["n"], ["t", "NaN"], ["n"]]),
        ("U", "", None, [["t", "1"], ["n"], ["t", "ok"], ["t", "1.50"], ["u"]]),
        ("U", "K", [["t", "1"], *nulls], [["t", "3"], ["n"], ["t", "ok"], ["t", "1.50"], ["u"]]),
        ("D", "K", [["t", "2"], *nulls], None),
        ("I", "", None, [["t", "1"], ["t", "one"]]),
        ("U", "O", [["t", "1"], ["t", "one"]], [["t", "1"], ["n"]]),
        ("D", "O", [["t", "1"], ["n"]], None),
    ]
    origin = stream.index({"message": "Origin", "lsn": 0xABCD, "name": "upstream"})
    assert stream[origin - 1]["commit_time_us"] == 1_767_323_045_678_901
    assert [
        (row["prefix"], row["content"], row["transactional"]) for row in stream if row["message"] == "LogicalMessage"
    ] == [
        ("inside", "00ff0a", True),
        ("outside", b"text".hex(), False),
    ]


@pytest.mark.parametrize("version", since(TWO_PHASE_SINCE), ids=lambda path: path.name)
def test_a_recorded_two_phase_stream_says_which_transaction_ended_how(version: Path) -> None:
    for stream in streams_of(version, "protocol3_two_phase", "protocol3_streaming_two_phase", "protocol4_two_phase"):
        ends = [
            (row["message"], row["gid"])
            for row in decoded(join(recorded(version / f"{stream}.bin")))
            if "gid" in row and row["message"] != "BeginPrepare"
        ]
        first = "Prepare" if stream == "protocol3_two_phase" else "StreamPrepare"
        gone = [(first, "gid dropped"), ("RollbackPrepared", "gid dropped")]
        assert ends == [(first, "gid/kept"), ("CommitPrepared", "gid/kept"), (first, ""), ("CommitPrepared", ""), *gone]


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_a_recorded_snapshot_gives_its_rows(version: Path) -> None:
    for name, expected in (("copy_rows", [[b"1", "tëa".encode()], [None, b""], [b"-3", None]]), ("copy_empty", [])):
        reader = CopyRows(2)
        assert rows_of(reader.feed(recorded(version / f"{name}.bin"))) == expected
        reader.close()

"""Recorded streams decode to what the reference decoder made of them, and hold every message there is."""

import json
from pathlib import Path

import pytest

from sluice.protocol.copy_rows import CopyRows
from sluice.protocol.frames import join
from tests.support.recordings import GOLDEN, STREAMS, decoded, recorded, rows_of

VERSIONS = sorted(GOLDEN.glob("pg*"))
MAJORS = (14, 15, 16, 17, 18, 19)


def streams_of(version: Path, *names: str) -> list[str]:
    """Those of the `names` that this major can send."""
    return [name for name in names if (version / f"{name}.bin").exists()]


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_recorded_stream_decodes_to_what_it_says(path: Path) -> None:
    assert decoded(join(recorded(path))) == json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))


def test_every_major_is_recorded_in_every_protocol_that_it_speaks() -> None:
    assert [version.name for version in VERSIONS] == [f"pg{major}" for major in MAJORS]
    spoken = {version.name: {path.stem for path in version.glob("protocol*.bin")} for version in VERSIONS}
    spoken_since = {
        14: {"protocol1", "protocol1_binary", "protocol2_streaming"},
        15: {"protocol3_two_phase", "protocol3_streaming_two_phase"},
        16: {"protocol4_parallel", "protocol4_two_phase"},
    }
    for major in MAJORS:
        assert spoken[f"pg{major}"] == {
            name for since in spoken_since if since <= major for name in spoken_since[since]
        }


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
def test_a_recorded_snapshot_gives_its_rows(version: Path) -> None:
    for name, expected in (("copy_rows", [[b"1", "tëa".encode()], [None, b""], [b"-3", None]]), ("copy_empty", [])):
        reader = CopyRows(2)
        assert rows_of(reader.feed(recorded(version / f"{name}.bin"))) == expected
        reader.close()

"""What a later version writes in a format of its own, the last release refuses by name, and changes nothing."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.contract import keys
from sluice.contract.applied import AppliedLog, Complete
from sluice.contract.control import RESYNC, Request
from sluice.contract.horizon import Horizon
from sluice.errors import FormatTooNew
from sluice.manifest import checkpoint
from sluice.manifest.reader import load_state
from sluice.store.opening import open_store
from tests.chaos.world import NAME, World
from tests.upgrade.releases import Release

LATER = 99
NOW = "2026-01-01T00:00:00+00:00"
INGEST, REPORT, PRUNE = ("run", "--until-caught-up"), ("tables",), ("spool", "gc")


@pytest.fixture
def spool(shared: World, old: Release) -> Path:
    """Of a pipeline that the last release has run; every kind of object that carries a version is in it."""
    old.must(shared.pipeline, *INGEST)
    store = open_store(shared.pipeline.spool_uri, prefix=f"{NAME}/", options={})
    state = load_state(store)
    checkpoint.write(store, state)
    store.create(keys.horizon(state.seq), Horizon(state.seq, state.previous_sha256, NOW).encode())
    store.create(keys.apply_log(1), AppliedLog(1, "a", NOW).encode())
    store.create(keys.apply_complete(1), Complete(1, 1, 1, NOW, {}).encode())
    return shared.pipeline.own_spool


def test_the_last_release_refuses_every_newer_format_by_name_and_changes_nothing(
    shared: World, old: Release, spool: Path
) -> None:
    refused = {
        "manifest": (INGEST, REPORT, PRUNE),
        "manifest/checkpoint": (INGEST, REPORT, PRUNE),
        "gc": (PRUNE,),
        "apply/log": (REPORT, PRUNE),
        "apply/complete": (PRUNE,),
    }
    for folder, commands in refused.items():
        newest = max((spool / folder).glob("*.json"))
        with _of_a_later_version(newest):
            before = _contents(spool)
            for command in commands:
                ended = old.run(shared.pipeline, *command)
                said = (
                    f"{folder}, {' '.join(command)}: {ended.returncode}\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
                )
                assert ended.returncode == FormatTooNew.exit_code, said
                assert f"has format version {LATER}; this Sluice reads up to version" in ended.stderr, said
            assert _contents(spool) == before, folder


def test_the_last_release_refuses_a_request_of_a_newer_format_and_runs_on(
    shared: World, old: Release, spool: Path
) -> None:
    key = keys.control_request("later")
    (spool / key).parent.mkdir(exist_ok=True)
    (spool / key).write_bytes(Request(RESYNC, "public", "w_int", NOW).encode())
    with _of_a_later_version(spool / key, back=False):
        old.must(shared.pipeline, *INGEST)
    assert not (spool / key).exists()
    refusal = json.loads((spool / keys.refused_request(key)).read_bytes())
    assert f"has format version {LATER}" in refusal["reason"]
    shared.check()
    assert {table.generation for table in shared.spool.tables.values()} == {1}


@contextmanager
def _of_a_later_version(path: Path, *, back: bool = True) -> Iterator[None]:
    """The object says within the block that a later version wrote it; afterwards it is as it was, if `back`."""
    content = path.read_bytes()
    value = json.loads(content)
    assert value["format_version"] < LATER
    path.write_bytes(json.dumps({**value, "format_version": LATER}).encode())
    yield
    if back:
        path.write_bytes(content)


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

"""Windows that fail, before their commit and after it: the table waits alone, nothing is applied
twice, and old generations never come after new ones.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sluice import faults
from sluice.contract import keys
from sluice.errors import ApplyError, StoreUnavailable
from sluice.store.base import ObjectStore
from sluice_spark.lake import disk_sync
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline, running
from tests.spark.model import SCHEMA
from tests.spark.test_store_away import AwayStore
from tests.support.extent import slow
from tests.support.pipeline import wait_until

OTHER = replace(SCHEMA, table_id="16386", table_name="other")


def _row(key: int, v: int = 0) -> dict[str, object]:
    return {"id": key, "v": v, "big": "B", "at": None}


class FailsAfterCommit(AwayStore):
    """Its first removal of a scratch file fails, which is asked for right after the commit; `then`
    is called before.
    """

    def __init__(self, inner: ObjectStore, then: Callable[[], object]) -> None:
        super().__init__(inner)
        self._then: Callable[[], object] | None = then

    def delete(self, key: str) -> None:
        if key.startswith("apply/scratch/") and self._then is not None:
            then, self._then = self._then, None
            then()
            raise StoreUnavailable("the store does not answer")
        super().delete(key)


def test_a_window_that_failed_after_its_commit_landed_is_taken_for_applied(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.begin(SCHEMA, _row(1))
    pipeline.apply()
    monkeypatch.setattr("sluice_spark.lake.rows_to_commit.LOCAL_BYTES", 0)
    pipeline.manifest.transaction([Change("i", _row(2))], SCHEMA)
    # The next attempt finds more to do than the first one did.
    pipeline.store = FailsAfterCommit(
        pipeline.store, lambda: pipeline.manifest.transaction([Change("i", _row(3))], SCHEMA)
    )
    with running(pipeline, way="merge") as work:
        wait_until(lambda: bool(work.ended) or len(pipeline.rows()) > 2, what="both rows are applied")
    assert work.ended == []
    assert sorted(pipeline.rows(), key=str) == [_row(1), _row(2), _row(3)]
    assert pipeline.reported()["16385"].state == "live"


def test_a_window_of_an_old_generation_never_lands_after_the_snapshot_of_a_new_one(
    pipeline: Pipeline, request: pytest.FixtureRequest
) -> None:
    pipeline.begin(SCHEMA, _row(1))
    pipeline.begin(OTHER)
    pipeline.apply()
    gate = pipeline.folder / "gate"
    faults.arm(f"apply.commit.before=hold:{gate}@2")
    request.addfinalizer(lambda: faults.arm(""))
    with running(pipeline, workers=2) as work:
        # The first window of a process runs alone.
        first = pipeline.manifest.transaction([Change("i", _row(4))], OTHER)
        wait_until(lambda: pipeline.reported()["16386"].committed_seq >= first, what="a first window")
        pipeline.manifest.transaction([Change("i", _row(2))], SCHEMA)
        wait_until(
            lambda: faults.passages("apply.commit.before") == 2,
            what="the old generation's window is about to be committed",
        )
        pipeline.manifest.table(SCHEMA, state="stale", reason="rewritten", new=False)
        pipeline.begin(SCHEMA, _row(9), generation=2)
        seq = pipeline.manifest.transaction([Change("i", _row(5))], OTHER)
        # One worker is blocked: whatever could be begun before the other table's window has ended
        # before it does.
        wait_until(
            lambda: bool(work.ended) or pipeline.reported()["16386"].committed_seq >= seq,
            what="the other table's window",
        )
        gate.touch()
        wait_until(
            lambda: bool(work.ended) or pipeline.reported()["16385"].state == "live", what="the new generation is live"
        )
    assert (work.ended, pipeline.rows()) == ([], [_row(9)])


@slow
def test_I14_a_missing_segment_quarantines_its_table_by_name_and_no_other_until_it_is_back(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, _row(1))
    pipeline.begin(OTHER)
    pipeline.manifest.transaction([Change("i", _row(2))], SCHEMA)
    key = list(pipeline.store.list(keys.segment_folder("16385")))[-1]
    data = pipeline.store.get(key)
    pipeline.store.delete(key)
    with running(pipeline) as work:
        wait_until(
            lambda: (
                pipeline.reported().get("16385") is not None and pipeline.reported()["16385"].state == "quarantined"
            ),
            what="it is quarantined",
        )
        assert key in pipeline.reported()["16385"].reason
        seq = pipeline.manifest.transaction([Change("i", _row(7))], OTHER)
        wait_until(lambda: pipeline.reported()["16386"].committed_seq >= seq, what="the other table goes on")
        wait_until(lambda: pipeline.complete().seq >= seq, what="the others are at a boundary")
        assert pipeline.complete().left_out == {"public.items": "quarantined"}
        pipeline.store.put(key, data)
        wait_until(lambda: pipeline.reported()["16385"].state == "live", what="it is tried again")
    assert work.ended == []
    assert sorted(pipeline.rows(), key=str) == [_row(1), _row(2)]


def test_I13_a_changed_segment_quarantines_its_table_by_name_and_the_one_pass_fails(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, _row(1))
    pipeline.begin(OTHER)
    pipeline.manifest.transaction([Change("i", _row(2))], SCHEMA)
    key = list(pipeline.store.list(keys.segment_folder("16385")))[-1]
    data = bytearray(pipeline.store.get(key))
    data[len(data) // 2] ^= 1
    pipeline.store.put(key, bytes(data))
    pipeline.manifest.transaction([Change("i", _row(7))], OTHER)
    with pytest.raises(ApplyError, match=f"1 of 2 tables are quarantined: public.items; .*{key}"):
        pipeline.apply()
    assert pipeline.reported()["16385"].state == "quarantined"
    assert (pipeline.rows(), pipeline.rows("other")) == ([_row(1)], [_row(7)])


def test_a_lake_table_that_cannot_be_read_at_start_is_quarantined_and_no_other(pipeline: Pipeline) -> None:
    for schema in (SCHEMA, OTHER):
        pipeline.begin(schema, _row(1))
    for schema in (SCHEMA, OTHER):
        pipeline.manifest.transaction([Change("i", _row(2))], schema)
    pipeline.apply()
    log = pipeline.path() / "_delta_log"
    first = log / f"{0:020d}.json"
    before = first.read_bytes()
    first.write_bytes(b"{")
    for file in log.iterdir():
        if file.suffix == ".crc":
            file.unlink()
    pipeline.move()
    pipeline.manifest.transaction([Change("i", _row(3))], OTHER)
    with pytest.raises(ApplyError, match=r"public\.items; (the lake table could not be read at start|attempt)"):
        pipeline.apply()
    assert len(pipeline.rows("other")) == 3
    (pipeline.path() / "_delta_log" / first.name).write_bytes(before)
    pipeline.move()
    pipeline.manifest.transaction([Change("i", _row(3))], SCHEMA)
    assert pipeline.apply().tables["16385"].state == "live"
    assert len(pipeline.rows()) == 3


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every path given to fsync, in order."""
    paths: list[str] = []
    before = os.fsync

    def fsync(descriptor: int) -> None:
        paths.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        before(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return paths


def test_every_file_and_folder_of_a_local_commit_is_synced_before_it_is_reported(
    pipeline: Pipeline, synced: list[str]
) -> None:
    pipeline.begin(SCHEMA, _row(1), _row(2), _row(3))
    pipeline.apply()
    pipeline.manifest.transaction([Change("u", _row(1, 5)), Change("i", _row(4))], SCHEMA)
    pipeline.apply()
    folder = pipeline.path()
    ours = {
        str(path)
        for path in folder.rglob("*")
        if path.suffix in (".parquet", ".bin", ".json") and not path.name.startswith(".")
    }
    assert any(path.endswith(".bin") for path in ours), "no deletion vector, so that this test proves less than it says"
    folders = {str(Path(path).parent) for path in ours} | {str(folder), str(folder.parent), str(folder.parent.parent)}
    assert ours | folders <= set(synced)
    reports = [place for place, path in enumerate(synced) if "/apply/log/" in path]
    newest = str(max((folder / "_delta_log").glob("*.json")))
    assert synced.index(newest) < reports[-1]
    for path in ours:
        assert synced.index(path) < max(
            place for place, other in enumerate(synced) if other == str(Path(path).parent)
        ), "a folder before its file"


def test_a_commit_that_cannot_be_synced_stops_its_table_and_is_never_synced_again(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.begin(SCHEMA, _row(1))
    pipeline.apply()
    tried: list[int] = []

    class FailingDisk:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        def fsync(self, descriptor: int) -> None:
            tried.append(descriptor)
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk_sync, "os", FailingDisk())
    pipeline.manifest.transaction([Change("i", _row(2))], SCHEMA)
    row = pipeline.apply().tables["16385"]
    assert (row.state, len(tried)) == ("stale", 1)
    assert "could not be synced" in row.reason

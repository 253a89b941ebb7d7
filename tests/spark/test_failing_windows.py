"""Windows that fail, before their commit and after it: the table waits alone, nothing is applied
twice, and old generations never come after new ones.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.contract import keys
from sluice.errors import ApplyError, StoreUnavailable
from sluice.store.base import ObjectStore
from sluice_spark.lake import disk_sync
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline, held, running
from tests.spark.model import SCHEMA, named, row
from tests.support.extent import slow
from tests.support.forwarding import Forwarding

OTHER = named("other")
BEFORE = "apply.commit.before"


class FailsAfterCommit(Forwarding):
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
    pipeline.begin(SCHEMA, row(1))
    pipeline.apply()
    monkeypatch.setattr("sluice_spark.lake.rows_to_commit.LOCAL_BYTES", 0)
    pipeline.change(Change("i", row(2)))
    # The next attempt finds more to do than the first one did.
    pipeline.store = FailsAfterCommit(pipeline.store, lambda: pipeline.change(Change("i", row(3))))
    with running(pipeline, way="merge") as work:
        work.until(lambda: len(pipeline.rows()) > 2, what="both rows are applied")
    assert pipeline.rows() == [row(1), row(2), row(3)]
    assert pipeline.reported()["16385"].state == "live"


def test_a_window_of_an_old_generation_never_lands_after_the_snapshot_of_a_new_one(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1))
    pipeline.begin(OTHER)
    pipeline.apply()
    with held(pipeline.folder / "gate", f"{BEFORE}@2") as let_go, running(pipeline, workers=2) as work:

        def committed(key: int) -> None:
            seq = pipeline.change(Change("i", row(key)), schema=OTHER)
            work.says(lambda table: table.committed_seq >= seq, "the other table's window", table_id="16386")

        # The first window of a process runs alone.
        committed(4)
        pipeline.change(Change("i", row(2)), schema=SCHEMA)
        work.passes(BEFORE, 2)
        pipeline.manifest.table(SCHEMA, state="stale", reason="rewritten", new=False)
        pipeline.begin(SCHEMA, row(9), generation=2)
        # One worker is blocked: whatever could be begun before the other table's window has ended
        # before it does.
        committed(5)
        let_go()
        work.says(lambda table: table.state == "live", "the new generation is live")
    assert pipeline.rows() == [row(9)]


def _two_tables(pipeline: Pipeline) -> str:
    """Of the first one a change waits, in the segment that is given."""
    pipeline.begin(OTHER)
    pipeline.begin(SCHEMA, row(1))
    pipeline.change(Change("i", row(2)))
    return list(pipeline.store.list(keys.segment_folder("16385")))[-1]


@slow
def test_I14_a_missing_segment_quarantines_its_table_by_name_and_no_other_until_it_is_back(pipeline: Pipeline) -> None:
    key = _two_tables(pipeline)
    data = pipeline.store.get(key)
    pipeline.store.delete(key)
    with running(pipeline) as work:
        assert key in work.says(lambda table: table.state == "quarantined", "it is quarantined").reason
        seq = pipeline.change(Change("i", row(7)), schema=OTHER)
        work.says(lambda table: table.committed_seq >= seq, "the other table goes on", table_id="16386")
        work.until(lambda: pipeline.complete().seq >= seq, what="the others are at a boundary")
        assert pipeline.complete().left_out == {"public.items": "quarantined"}
        pipeline.store.put(key, data)
        work.says(lambda table: table.state == "live", "it is tried again")
    assert pipeline.rows() == [row(1), row(2)]


def test_I13_a_changed_segment_quarantines_its_table_by_name_and_the_one_pass_fails(pipeline: Pipeline) -> None:
    key = _two_tables(pipeline)
    pipeline.damage(key)
    pipeline.change(Change("i", row(7)), schema=OTHER)
    with pytest.raises(ApplyError, match=f"1 of 2 tables are quarantined: public.items; .*{key}"):
        pipeline.apply()
    assert pipeline.reported()["16385"].state == "quarantined"
    assert (pipeline.rows(), pipeline.rows("other")) == ([row(1)], [row(7)])


@slow
def test_a_lake_table_that_cannot_be_read_at_start_is_quarantined_and_no_other(pipeline: Pipeline) -> None:
    for schema in (SCHEMA, OTHER):
        pipeline.begin(schema, row(1))
    for schema in (SCHEMA, OTHER):
        pipeline.change(Change("i", row(2)), schema=schema)
    pipeline.apply()
    first = pipeline.log() / f"{0:020d}.json"
    before = first.read_bytes()
    first.write_bytes(b"{")
    for file in pipeline.log().iterdir():
        if file.suffix == ".crc":
            file.unlink()
    pipeline.move()
    pipeline.change(Change("i", row(3)), schema=OTHER)
    with pytest.raises(ApplyError, match=r"public\.items; (the lake table could not be read at start|attempt)"):
        pipeline.apply()
    assert len(pipeline.rows("other")) == 3
    (pipeline.log() / first.name).write_bytes(before)
    pipeline.move()
    pipeline.change(Change("i", row(3)), schema=SCHEMA)
    pipeline.applied()
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
    pipeline.begin(SCHEMA, row(1), row(2), row(3))
    pipeline.apply()
    pipeline.change(Change("u", row(1, 5)), Change("i", row(4)))
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
    newest = str(max(pipeline.log().glob("*.json")))
    assert synced.index(newest) < reports[-1]
    for path in ours:
        of_folder = [place for place, other in enumerate(synced) if other == str(Path(path).parent)]
        assert synced.index(path) < max(of_folder), "a folder before its file"


def test_a_commit_that_cannot_be_synced_stops_its_table_and_is_never_synced_again(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.begin(SCHEMA, row(1))
    pipeline.apply()
    tried: list[int] = []

    class FailingDisk:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        def fsync(self, descriptor: int) -> None:
            tried.append(descriptor)
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk_sync, "os", FailingDisk())
    pipeline.change(Change("i", row(2)))
    assert "could not be synced" in pipeline.applied(state="stale").reason
    assert len(tried) == 1

"""Several lake tables of one source table: each goes its own way, and all are fed from the same segments."""

from pathlib import Path

import pytest
from deltalake import DeltaTable

from sluice.contract.applied import AppliedLog
from sluice.contract.entries import REPAIR_ORDINAL, Lost, Repair
from sluice.errors import UsageError, WriterFenced
from sluice.manifest import pruning
from sluice_lake import Lake
from tests.spark import lake
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline, armed
from tests.spark.model import ID, SCHEMA, named, row
from tests.support.extent import cases, slow
from tests.support.manifests import opened

MIRROR = {"kind": "mirror"}
COPY = {"kind": "mirror", "name": "items_copy"}
LOG = {"kind": "changelog", "name": "items_log"}


def _apply(pipeline: Pipeline, *targets: dict[str, str], **options: object) -> AppliedLog:
    return pipeline.apply(tables={"public.items": {"targets": list(targets)}}, **options)


def _states(log: AppliedLog) -> dict[str, str]:
    return {key: table.state.value for key, table in log.tables.items()}


def _values(path: Path) -> dict[object, object]:
    return {one["id"]: one["v"] for one in lake.rows_in(path)}


def _ops(path: Path) -> str:
    rows = sorted(lake.rows_in(path, metadata=True), key=lambda one: (one["_sluice_lsn"], one["_sluice_ordinal"]))
    return "".join(one["_sluice_op"] for one in rows)


def _begin(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1), row(2))
    pipeline.change(Change("u", row(1, 10)), Change("i", row(3)))


def _change(pipeline: Pipeline, v: int) -> None:
    pipeline.change(Change("u", row(1, v)), Change("d", old=row(2)), Change("i", row(2, v)))


def _assert_live(log: AppliedLog) -> None:
    assert set(_states(log).values()) == {"live"}


def _assert_all(pipeline: Pipeline, v: int) -> None:
    expected = {1: v, 2: v, 3: 0}
    assert [_values(pipeline.path(name)) for name in ("items", "items_copy")] == [expected, expected]
    assert _ops(pipeline.path("items_log")) == "iiuiudi"


def test_every_target_of_a_table_is_fed_from_one_set_of_segments(pipeline: Pipeline) -> None:
    _begin(pipeline)
    log = _apply(pipeline, MIRROR, COPY, LOG)
    assert _states(log) == {ID: "live", f"{ID}/items_copy": "live", f"{ID}/items_log": "live"}
    before = list(pipeline.store.list("data/"))
    _change(pipeline, 20)
    log = _apply(pipeline, MIRROR, COPY, LOG)
    assert len(list(pipeline.store.list("data/"))) == len(before) + 1
    titles = ["public.items", "public.items/items_copy", "public.items/items_log"]
    assert [table.title for table in log.tables.values()] == titles
    assert [table.mode for table in log.tables.values()] == ["mirror", "mirror", "changelog"]
    _assert_all(pipeline, 20)
    complete = pipeline.complete()
    assert list(complete.versions) == titles
    assert complete.paths["public.items/items_log"] == "public/items_log"
    for title, version in complete.versions.items():
        assert DeltaTable(pipeline.folder / "lake" / complete.paths[title]).version() == version


@slow
def test_a_target_whose_lake_table_others_changed_stops_alone(pipeline: Pipeline) -> None:
    _begin(pipeline)
    _apply(pipeline, MIRROR, COPY, LOG)
    DeltaTable(pipeline.path("items_copy")).delete("id = 3")
    _change(pipeline, 20)
    log = _apply(pipeline, MIRROR, COPY, LOG)
    assert _states(log) == {ID: "live", f"{ID}/items_copy": "stale", f"{ID}/items_log": "live"}
    assert "DELETE" in log.tables[f"{ID}/items_copy"].reason
    assert _values(pipeline.path()) == {1: 20, 2: 20, 3: 0}
    complete = pipeline.complete()
    assert complete.left_out == {"public.items/items_copy": "stale"}
    assert complete.versions.keys() == {"public.items", "public.items/items_log"}
    holds = pruning.plan(pipeline.store, keep_seconds=0).holds
    assert [hold.what for hold in holds] == ["public.items/items_copy"]

    # Another snapshot is one for all of them.
    pipeline.begin(SCHEMA, row(1, 20), row(2, 20), row(3), generation=2)
    _assert_live(_apply(pipeline, MIRROR, COPY, LOG))
    assert _values(pipeline.path("items_copy")) == {1: 20, 2: 20, 3: 0}


@pytest.mark.parametrize("point", cases(["apply.window.after", "apply.read.after", "apply.log.before"], quick=[]))
def test_a_late_target_that_is_cut_off_half_way_is_finished_by_the_next_process(pipeline: Pipeline, point: str) -> None:
    _begin(pipeline)
    _apply(pipeline, MIRROR)
    for v in (20, 30):
        _change(pipeline, v)
    _apply(pipeline, MIRROR)
    version = pipeline.version()
    for passage in (1, 2):
        with armed(f"{point}=raise:WriterFenced@{passage}"), pytest.raises(WriterFenced):
            _apply(pipeline, MIRROR, LOG, max_window_bytes=1)
    _assert_live(_apply(pipeline, MIRROR, LOG))
    assert _ops(pipeline.path("items_log")) == "iiui" + "udi" * 2
    assert (pipeline.version(), _values(pipeline.path())) == (version, {1: 30, 2: 30, 3: 0})


def test_a_late_target_that_the_spool_no_longer_reaches_says_so_and_holds_up_nothing(pipeline: Pipeline) -> None:
    _begin(pipeline)
    _apply(pipeline, MIRROR)
    for v in range(20, 220):
        _change(pipeline, v)
    _apply(pipeline, MIRROR)
    plan = pruning.plan(pipeline.store, keep_seconds=0)
    assert plan.objects
    pruning.carry_out(pipeline.store, plan)
    _change(pipeline, 500)
    log = _apply(pipeline, MIRROR, COPY)
    assert _states(log) == {ID: "live", f"{ID}/items_copy": "stale"}
    assert "`sluice resync public.items`" in log.tables[f"{ID}/items_copy"].reason
    assert not pipeline.path("items_copy").exists()
    assert _values(pipeline.path()) == {1: 500, 2: 500, 3: 0}
    assert pruning.plan(pipeline.store, keep_seconds=0).holds == ()


def test_a_target_that_is_removed_leaves_its_lake_table_and_goes_on_when_it_comes_back(pipeline: Pipeline) -> None:
    _begin(pipeline)
    _apply(pipeline, MIRROR, COPY, LOG)
    version = pipeline.version("items_copy")
    _change(pipeline, 20)
    for _ in range(2):
        log = _apply(pipeline, MIRROR, LOG)
        assert log.left == {"public.items/items_copy": "public/items_copy"}
        assert f"{ID}/items_copy" not in log.tables
        assert (pipeline.version("items_copy"), pipeline.complete().left_out) == (version, {})
    assert pruning.plan(pipeline.store, keep_seconds=0).holds == ()
    log = _apply(pipeline, MIRROR, COPY, LOG)
    assert (log.left, set(_states(log).values())) == ({}, {"live"})
    _assert_all(pipeline, 20)
    # Nothing of the table of its own name is asked for any more.
    log = _apply(pipeline, COPY)
    assert log.left == {"public.items": "public/items", "public.items/items_log": "public/items_log"}
    assert _states(log) == {f"{ID}/items_copy": "live"}


@slow
def test_a_changelog_that_comes_back_behind_a_gap_is_stale_and_stays_as_it_is(pipeline: Pipeline) -> None:
    """It has no change of the gap: what closes it is rows. So a rebuild does not remove it either."""
    _begin(pipeline)
    _apply(pipeline, MIRROR, LOG)
    _assert_live(_apply(pipeline, MIRROR))
    version, manifest = pipeline.version("items_log"), pipeline.manifest
    manifest.epoch += 1
    lost = manifest.append(opened(lost=Lost("the slot was lost", (ID,))), through_lsn=manifest.lsn + 100)
    read = manifest.segment([Change("u", row(3, 99), lsn=manifest.lsn, ordinal=REPAIR_ORDINAL)], SCHEMA)
    manifest.append(Repair(ID, 1, SCHEMA.version, manifest.lsn, manifest.lsn, (read,), gap_seq=lost))
    _assert_live(_apply(pipeline, MIRROR))
    _change(pipeline, 20)
    for rebuild in ((), ("public.items",), ()):
        log = _apply(pipeline, MIRROR, LOG, rebuild=rebuild)
        assert _states(log) == {ID: "live", f"{ID}/items_log": "stale"}
        assert "changes of it are lost" in log.tables[f"{ID}/items_log"].reason
        assert (_ops(pipeline.path("items_log")), pipeline.version("items_log")) == ("iiui", version)
        assert _values(pipeline.path()) == {1: 20, 2: 20, 3: 99}


def test_a_target_never_takes_the_place_of_another_lake_table(pipeline: Pipeline) -> None:
    pipeline.begin(named("items_copy", "20001"), row(7, 7))
    _begin(pipeline)
    for targets in ((MIRROR,), (MIRROR, COPY), (MIRROR, COPY)):
        log = _apply(pipeline, *targets)
        assert _values(pipeline.path("items_copy")) == {7: 7}
    assert _states(log) == {ID: "live", f"{ID}/items_copy": "stale", "20001": "live"}
    assert "where that of public.items_copy is" in log.tables[f"{ID}/items_copy"].reason


def test_rows_that_are_read_again_for_a_mirror_are_no_changes_of_its_changelog(pipeline: Pipeline) -> None:
    _begin(pipeline)
    _apply(pipeline, MIRROR, LOG)
    manifest = pipeline.manifest
    again = manifest.segment([Change("u", row(3, 99), lsn=manifest.lsn, ordinal=REPAIR_ORDINAL)], SCHEMA)
    manifest.append(Repair(ID, 1, SCHEMA.version, manifest.lsn, manifest.lsn, (again,)))
    _assert_live(_apply(pipeline, MIRROR, LOG))
    assert _values(pipeline.path())[3] == 99
    assert _ops(pipeline.path("items_log")) == "iiui"


@slow
def test_a_table_that_is_made_again_from_the_spool_comes_with_all_its_lake_tables(pipeline: Pipeline) -> None:
    _begin(pipeline)
    _change(pipeline, 20)
    _apply(pipeline, MIRROR, COPY, LOG)
    DeltaTable(pipeline.path("items_copy")).delete("id = 3")
    _assert_live(_apply(pipeline, MIRROR, COPY, LOG, rebuild=("public.items",)))
    _assert_all(pipeline, 20)


@pytest.mark.parametrize("kind", cases(["history", "soft"], quick=["soft"]))
def test_what_a_lake_table_keeps_from_before_the_snapshot_outlives_a_rebuild(pipeline: Pipeline, kind: str) -> None:
    targets = {"history": {"kind": "history"}, "soft": {"kind": "mirror", "deletes": "soft"}}
    kept = {**targets[kind], "name": "items_kept"}
    _begin(pipeline)
    pipeline.change(Change("d", old=row(3)))
    _apply(pipeline, MIRROR, kept)
    pipeline.begin_again(SCHEMA, row(1, 10))
    _apply(pipeline, MIRROR, kept)
    before = pipeline.rows("items_kept", metadata=True)
    assert len(before) > 1
    DeltaTable(pipeline.path()).delete("id = 1")
    _assert_live(_apply(pipeline, MIRROR, kept, rebuild=("public.items",)))
    assert _values(pipeline.path()) == {1: 10}
    assert pipeline.rows("items_kept", metadata=True) == before
    with pytest.raises(UsageError, match="items_kept keeps rows from before the snapshot"):
        _apply(pipeline, kept, rebuild=("public.items",))
    assert pipeline.rows("items_kept", metadata=True) == before


def test_readers_find_each_target_under_a_name_of_its_own(pipeline: Pipeline) -> None:
    _begin(pipeline)
    _apply(pipeline, MIRROR, LOG)
    now = Lake(f"file://{pipeline.folder}/lake").as_of()
    names = {table.name: (table.path, table.marker.split("/")[2:-2]) for table in now.boundary.tables}
    assert names == {
        "public.items": ("public/items", [ID]),
        "public.items/items_log": ("public/items_log", [ID, "items_log"]),
    }
    found = now.duckdb().execute("SELECT (SELECT count(*) FROM items), (SELECT count(*) FROM items_log)")
    assert found.fetchone() == (3, 4)

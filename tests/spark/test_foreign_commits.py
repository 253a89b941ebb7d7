"""Commits to a lake table that are not the applier's: what changes data stops the table with its
author; maintenance alone does not.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sluice.contract import keys
from tests.spark.changes import INT4, INT8, Change, column, table_schema
from tests.spark.conftest import Pipeline, Running, running
from tests.spark.model import SCHEMA, named, row
from tests.spark.replays import by_delta_rs
from tests.support.extent import FULL, cases, slow

CANARY = 918_273


def _append_with_delta_rs(path: Path) -> None:
    """Column mapping keeps delta-rs from writing; its log does not."""
    table = DeltaTable(path)
    number = table.version() + 1
    other = path.parent / f"{path.name}-elsewhere"
    write_deltalake(other, pa.table({"id": [CANARY]}))
    written = next((other / "_delta_log").glob("*0.json")).read_text()
    added = [line for line in written.splitlines() if line.startswith(('{"add"', '{"commitInfo"'))]
    for file in other.glob("*.parquet"):
        shutil.copy(file, path)
    (path / "_delta_log" / f"{number:020d}.json").write_text("\n".join(added))


FOREIGN: dict[str, tuple[str, str | Callable[[Pipeline, Path], object]]] = {
    "restored": ("RESTORE", "RESTORE TABLE {t} TO VERSION AS OF 0"),
    "deleted": ("DELETE", lambda _, path: DeltaTable(path).delete("id = 1")),
    "updated": ("UPDATE", f"UPDATE {{t}} SET v = {CANARY} WHERE id = 1"),
    "written": ("WRITE", lambda _, path: _append_with_delta_rs(path)),
    "compacted": ("WRITE", lambda p, path: _rewritten(p, path)),
    "widened": ("ADD COLUMNS", "ALTER TABLE {t} ADD COLUMNS (mine INT)"),
}
"""By the name of a table: what Delta calls the operation, and how it is done."""
QUICK = ("deleted", "written", "compacted")
MORE_MAINTENANCE = ("REORG TABLE {t} APPLY (PURGE)", "DELETE FROM {t} WHERE id = 99")


def _rewritten(pipeline: Pipeline, path: Path) -> None:
    """Claims that it changes no data, as any commit may."""
    frame = pipeline.spark.read.format("delta").load(str(path)).limit(1)
    frame.write.format("delta").mode("overwrite").option("dataChange", "false").save(str(path))


def test_a_foreign_change_of_rows_or_columns_makes_the_table_stale_with_who_when_and_what(pipeline: Pipeline) -> None:
    foreign = {name: FOREIGN[name] for name in (FOREIGN if FULL else QUICK)}
    schemas = {name: named(name, str(20_000 + number)) for number, name in enumerate([*foreign, "untouched"])}
    for schema in schemas.values():
        pipeline.begin(schema, row(1), row(2))
    for schema in schemas.values():
        pipeline.change(Change("u", row(2, 5)), schema=schema)
    pipeline.apply()
    ours = {name: pipeline.version(name) for name in foreign}
    for name, (_, act) in foreign.items():
        if isinstance(act, str):
            pipeline.sql(act, table=name)
        else:
            act(pipeline, pipeline.path(name))
    for schema in schemas.values():
        pipeline.change(Change("i", row(3)), schema=schema)
    log = pipeline.apply()
    for name, (operation, _) in foreign.items():
        reported = log.tables[schemas[name].table_id]
        assert reported.state == "stale", name
        assert f"somebody else changed the lake table: {operation} at 20" in reported.reason, name
        assert f"made version {ours[name] + 1}" in reported.reason, name
        assert ("delta-rs" if name in ("deleted", "written") else "Delta-Lake/") in reported.reason, name
        assert str(CANARY) not in reported.reason, name
    assert pipeline.complete().left_out == {f"public.{name}": "stale" for name in foreign}
    assert pipeline.rows("untouched") == [row(1), row(2, 5), row(3)]


def test_a_commit_that_only_maintains_files_does_not_stop_the_table(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1), row(2))
    pipeline.change(Change("u", row(2, 5)))
    pipeline.apply()
    for statement in ("OPTIMIZE {t}", "VACUUM {t}", *(MORE_MAINTENANCE if FULL else ())):
        pipeline.sql(statement)
    pipeline.sql("ALTER TABLE {t} SET TBLPROPERTIES ('somebodys' = 'own')")
    version = pipeline.version()
    pipeline.change(Change("u", row(1, 7)))
    reported = pipeline.applied()
    assert (reported.reason, reported.delta_version) == ("", version + 1)
    assert pipeline.rows() == [row(1, 7), row(2, 5)]


@slow
def test_a_table_that_loses_the_feature_of_deletion_vectors_goes_on(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1), row(2))
    pipeline.change(Change("u", row(2, 5)))
    pipeline.apply()
    pipeline.sql("ALTER TABLE {t} DROP FEATURE deletionVectors")
    pipeline.change(Change("u", row(1, 7)), Change("i", row(3)))
    pipeline.applied()
    assert pipeline.rows() == [row(1, 7), row(2, 5), row(3)]


@contextmanager
def _with_its_snapshot(pipeline: Pipeline) -> Iterator[Running]:
    """A running applier that has brought the first row to the lake."""
    pipeline.begin(SCHEMA, row(1))
    with running(pipeline) as work:
        work.until(lambda: any(pipeline.store.list(keys.APPLY_COMPLETE)), what="the snapshot is applied")
        yield work


def test_a_table_whose_folder_is_removed_while_the_applier_runs_is_stale_and_not_begun_anew(pipeline: Pipeline) -> None:
    with _with_its_snapshot(pipeline) as work:
        shutil.rmtree(pipeline.path())
        reported = work.takes(pipeline.change(Change("i", row(2))))
    assert reported.state == "stale"
    assert "is gone" in reported.reason
    assert not pipeline.path().exists()


@slow
def test_a_table_whose_folder_was_removed_is_made_anew_by_a_resync_in_the_same_process(pipeline: Pipeline) -> None:
    """Spark still has the removed table's log in its memory."""
    with _with_its_snapshot(pipeline) as work:
        shutil.rmtree(pipeline.path())
        assert work.takes(pipeline.change(Change("i", row(2)))).state == "stale"
        pipeline.begin(SCHEMA, row(3), generation=2)
        seq = pipeline.change(Change("i", row(4)))
        work.says(lambda table: table.state == "live" and table.through_seq >= seq, "the new generation is in the lake")
    assert pipeline.rows() == [row(3), row(4)]


def test_a_commit_that_lands_while_the_folder_is_removed_does_not_hide_that_it_is_gone(pipeline: Pipeline) -> None:
    """On an object store what a listing found is removed, and what was written since stays."""
    with _with_its_snapshot(pipeline) as work:
        listed = [path for path in pipeline.path().rglob("*") if path.is_file()]
        assert work.takes(pipeline.change(Change("i", row(2)))).state == "live"
        for path in listed:
            path.unlink()
        reported = work.takes(pipeline.change(Change("i", row(3))))
        assert reported.state == "stale"
        assert "somebody else removed what came before it" in reported.reason


@slow
def test_what_a_removed_table_left_in_its_log_is_not_taken_for_the_next_table(pipeline: Pipeline) -> None:
    """A folder that is removed while a commit lands may keep the checksum of that commit."""
    pipeline.begin(SCHEMA, row(1, 1))
    pipeline.apply()
    pipeline.change(Change("i", row(2, 2)))
    pipeline.apply()
    left = pipeline.log() / f"{1:020d}.crc"
    content = left.read_bytes()
    shutil.rmtree(pipeline.path())
    left.parent.mkdir(parents=True)
    left.write_bytes(content)
    pipeline.begin(SCHEMA, row(1, 3), generation=2)
    pipeline.apply()
    assert [one["v"] for one in by_delta_rs(pipeline.path(), None)] == [3]
    pipeline.change(Change("i", row(4, 4)))
    pipeline.apply()
    pipeline.move()
    pipeline.change(Change("u", row(1, 5)))
    pipeline.applied()
    assert {one["id"]: one["v"] for one in pipeline.rows()} == {1: 5, 4: 4}


def test_another_table_put_in_the_place_of_ours_is_recognised_by_the_marker_alone(pipeline: Pipeline) -> None:
    """It is ahead of ours, and its commits since then changed no row: only our marker is missing."""
    elsewhere = pipeline.path("elsewhere")
    with _with_its_snapshot(pipeline) as work:
        pipeline.spark.read.format("delta").load(str(pipeline.path())).write.format("delta").save(str(elsewhere))
        for number in range(2):
            pipeline.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('somebodys' = '{number}')", table="elsewhere")
        shutil.rmtree(pipeline.path())
        elsewhere.rename(pipeline.path())
        reported = work.takes(pipeline.change(Change("i", row(2))))
    assert reported.state == "stale"
    assert "the lake table's marker is missing" in reported.reason


def test_a_table_whose_folder_is_removed_while_nothing_changes_is_stale_as_well(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice_spark.progress.ledger.LOOK_SECONDS", 1.0)
    with _with_its_snapshot(pipeline) as work:
        shutil.rmtree(pipeline.path())
        assert "is gone" in work.says(lambda table: table.state == "stale", "it is noticed").reason
    assert not pipeline.path().exists()


def _applied_twice(pipeline: Pipeline) -> list[Path]:
    """Two commits of the table; the files of the newest one in its log, the commit first."""
    pipeline.begin(SCHEMA, row(1))
    pipeline.change(Change("i", row(2)))
    pipeline.apply()
    newest = max(pipeline.log().glob("*.json"))
    return [newest, *(file for file in pipeline.log().iterdir() if newest.stem in file.name and file != newest)]


TORN = b'{"commitInfo":{"operation":"WRITE"'


@pytest.mark.parametrize("whole_checksum", [True, False])
@pytest.mark.parametrize("left", cases([b"", TORN, b"\0" * 600], quick=[TORN]))
def test_a_last_commit_that_power_loss_emptied_or_tore_stops_its_table_by_name(
    pipeline: Pipeline, left: bytes, whole_checksum: bool
) -> None:
    newest, *beside = _applied_twice(pipeline)
    newest.write_bytes(left)
    if not whole_checksum:
        for file in beside:
            file.unlink()
        pipeline.move()
    assert newest.name in pipeline.applied(state="stale").reason


def test_the_marker_decides_and_a_report_that_says_otherwise_makes_the_table_stale(pipeline: Pipeline) -> None:
    for file in _applied_twice(pipeline):
        file.unlink()
    pipeline.move()
    pipeline.sql("ALTER TABLE {t} SET TBLPROPERTIES ('same' = 'version')")
    assert "marker" in pipeline.applied(state="stale").reason


def test_a_log_that_was_cleaned_up_since_the_last_report_is_doubt(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1))
    pipeline.apply()
    for number in range(3):
        pipeline.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('n' = '{number}')")
    DeltaTable(pipeline.path()).create_checkpoint()
    for number in range(3):
        (pipeline.log() / f"{number:020d}.json").unlink()
    pipeline.move()
    assert "was cleaned up" in pipeline.applied(state="stale").reason


def test_a_table_that_forgets_markers_by_their_age_is_stale_by_the_name_of_the_property(pipeline: Pipeline) -> None:
    """Its columns would be changed a second time: two that swapped their names would swap their values."""
    old = table_schema(column("id", 1, INT8, key=True), column("a", 2, INT4), column("b", 3, INT4))
    new = table_schema(column("id", 1, INT8, key=True), column("b", 2, INT4), column("a", 3, INT4), version=2)
    pipeline.begin(old, {"id": 1, "a": 10, "b": 20})
    pipeline.evolve(new)
    pipeline.change(Change("i", {"id": 2, "b": 11, "a": 21}))
    pipeline.applied()
    pipeline.set(setTransactionRetentionDuration="interval 1 day")
    pipeline.change(Change("i", {"id": 3, "b": 12, "a": 22}))
    assert "delta.setTransactionRetentionDuration" in pipeline.applied(state="stale").reason
    pipeline.begin_again(new, {"id": 1, "b": 10, "a": 20})
    assert "delta.setTransactionRetentionDuration" in pipeline.applied(state="stale").reason
    pipeline.sql("ALTER TABLE {t} UNSET TBLPROPERTIES ('delta.setTransactionRetentionDuration')")
    pipeline.begin_again(new, {"id": 1, "b": 10, "a": 20}, generation=3)
    pipeline.applied()
    assert pipeline.rows() == [{"id": 1, "b": 10, "a": 20}]

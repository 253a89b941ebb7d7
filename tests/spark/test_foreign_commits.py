"""Commits to a lake table that are not the applier's: what changes data stops the table with its
author; maintenance alone does not.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sluice import faults
from sluice.contract import keys
from sluice.contract.applied import AppliedTable
from sluice.contract.schema import TableSchema
from tests.spark import lake
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline, Running, running
from tests.spark.model import SCHEMA
from tests.spark.replays import by_delta_rs
from tests.support.pipeline import wait_until

CANARY = 918_273


def _row(key: int, v: int = 0) -> dict[str, object]:
    return {"id": key, "v": v, "big": "B", "at": None}


def _named(number: int, name: str) -> TableSchema:
    return replace(SCHEMA, table_id=str(20_000 + number), table_name=name)


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


FOREIGN: dict[str, tuple[str, Callable[[Pipeline, Path], object]]] = {
    "restored": ("RESTORE", lambda p, path: p.spark.sql(f"RESTORE TABLE delta.`{path}` TO VERSION AS OF 0")),
    "deleted": ("DELETE", lambda p, path: DeltaTable(path).delete("id = 1")),
    "updated": ("UPDATE", lambda p, path: p.spark.sql(f"UPDATE delta.`{path}` SET v = {CANARY} WHERE id = 1")),
    "written": ("WRITE", lambda _, path: _append_with_delta_rs(path)),
    "compacted": ("WRITE", lambda p, path: _rewritten(p, path)),
    "widened": ("ADD COLUMNS", lambda p, path: p.spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMNS (mine INT)")),
}
"""By the name of a table: what Delta calls the operation, and how it is done."""


def _rewritten(pipeline: Pipeline, path: Path) -> None:
    """Claims that it changes no data, as any commit may."""
    frame = pipeline.spark.read.format("delta").load(str(path)).limit(1)
    frame.write.format("delta").mode("overwrite").option("dataChange", "false").save(str(path))


def test_a_foreign_change_of_rows_or_columns_makes_the_table_stale_with_who_when_and_what(pipeline: Pipeline) -> None:
    schemas = {name: _named(number, name) for number, name in enumerate([*FOREIGN, "untouched"])}
    for schema in schemas.values():
        pipeline.begin(schema, _row(1), _row(2))
    for schema in schemas.values():
        pipeline.manifest.transaction([Change("u", _row(2, 5))], schema)
    pipeline.apply()
    ours = {name: DeltaTable(pipeline.path(name)).version() for name in FOREIGN}
    for name, (_, act) in FOREIGN.items():
        act(pipeline, pipeline.path(name))
    for schema in schemas.values():
        pipeline.manifest.transaction([Change("i", _row(3))], schema)
    log = pipeline.apply()
    for name, (operation, _) in FOREIGN.items():
        row = log.tables[schemas[name].table_id]
        assert row.state == "stale", name
        assert f"somebody else changed the lake table: {operation} at 20" in row.reason, name
        assert f"made version {ours[name] + 1}" in row.reason, name
        assert ("delta-rs" if name in ("deleted", "written") else "Delta-Lake/") in row.reason, name
        assert str(CANARY) not in row.reason, name
    assert pipeline.complete().left_out == {f"public.{name}": "stale" for name in FOREIGN}
    assert sorted(pipeline.rows("untouched"), key=str) == [_row(1), _row(2, 5), _row(3)]


def test_a_commit_that_only_maintains_files_does_not_stop_the_table(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, _row(1), _row(2))
    pipeline.manifest.transaction([Change("u", _row(2, 5))], SCHEMA)
    pipeline.apply()
    table = f"delta.`{pipeline.path()}`"
    pipeline.spark.sql(f"OPTIMIZE {table}")
    pipeline.spark.sql(f"REORG TABLE {table} APPLY (PURGE)")
    pipeline.spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
    pipeline.spark.sql(f"VACUUM {table}")
    pipeline.spark.conf.unset("spark.sql.sources.parallelPartitionDiscovery.parallelism")
    pipeline.spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('somebodys' = 'own')")
    pipeline.spark.sql(f"DELETE FROM {table} WHERE id = 99")
    version = lake.version(pipeline.path())
    pipeline.manifest.transaction([Change("u", _row(1, 7))], SCHEMA)
    row = pipeline.apply().tables["16385"]
    assert (row.state, row.reason, row.delta_version) == ("live", "", version + 1)
    assert sorted(pipeline.rows(), key=str) == [_row(1, 7), _row(2, 5)]


def test_a_foreign_commit_between_the_look_and_ours_makes_the_table_stale(
    pipeline: Pipeline, request: pytest.FixtureRequest
) -> None:
    pipeline.begin(SCHEMA, _row(1))
    pipeline.apply()
    gate = pipeline.folder / "gate"
    faults.arm(f"apply.commit.before=hold:{gate}")
    request.addfinalizer(lambda: faults.arm(""))
    with running(pipeline) as work:
        pipeline.manifest.transaction([Change("i", _row(2))], SCHEMA)
        wait_until(
            lambda: faults.passages("apply.commit.before") > 0 or bool(work.ended),
            what="the window is about to be committed",
        )
        _append_with_delta_rs(pipeline.path())
        gate.touch()
        wait_until(lambda: pipeline.reported()["16385"].state == "stale" or bool(work.ended), what="the table is stale")
    assert work.ended == []
    assert "WRITE" in pipeline.reported()["16385"].reason


def _taken_or_refused(pipeline: Pipeline, work: Running, seq: int) -> AppliedTable:
    """What is said of the table when entry `seq` was looked at."""

    def reported() -> AppliedTable:
        return pipeline.reported()["16385"]

    wait_until(
        lambda: bool(work.ended) or reported().state == "stale" or reported().through_seq >= seq,
        what="it is taken or refused",
    )
    return reported()


@contextmanager
def _with_its_snapshot(pipeline: Pipeline) -> Iterator[Running]:
    """A running applier that has brought the first row to the lake."""
    pipeline.begin(SCHEMA, _row(1))
    with running(pipeline) as work:
        wait_until(lambda: any(pipeline.store.list(keys.APPLY_COMPLETE)), what="the snapshot is applied")
        yield work


def test_a_table_whose_folder_is_removed_while_the_applier_runs_is_stale_and_not_begun_anew(pipeline: Pipeline) -> None:
    with _with_its_snapshot(pipeline) as work:
        shutil.rmtree(pipeline.path())
        seq = pipeline.manifest.transaction([Change("i", _row(2))], SCHEMA)
        row = _taken_or_refused(pipeline, work, seq)
    assert (work.ended, row.state) == ([], "stale")
    assert "is gone" in row.reason
    assert not pipeline.path().exists()


def test_a_table_whose_folder_was_removed_is_made_anew_by_a_resync_in_the_same_process(pipeline: Pipeline) -> None:
    """Spark still has the removed table's log in its memory."""
    with _with_its_snapshot(pipeline) as work:
        shutil.rmtree(pipeline.path())
        seq = pipeline.manifest.transaction([Change("i", _row(2))], SCHEMA)
        assert _taken_or_refused(pipeline, work, seq).state == "stale"
        pipeline.begin(SCHEMA, _row(3), generation=2)
        seq = pipeline.manifest.transaction([Change("i", _row(4))], SCHEMA)

        def is_there() -> bool:
            row = pipeline.reported()["16385"]
            return row.state == "live" and row.through_seq >= seq

        wait_until(lambda: bool(work.ended) or is_there(), what="the new generation is in the lake")
    assert work.ended == []
    assert sorted(pipeline.rows(), key=str) == sorted([_row(3), _row(4)], key=str)


def test_a_commit_that_lands_while_the_folder_is_removed_does_not_hide_that_it_is_gone(pipeline: Pipeline) -> None:
    """On an object store what a listing found is removed, and what was written since stays."""
    with _with_its_snapshot(pipeline) as work:
        listed = [path for path in pipeline.path().rglob("*") if path.is_file()]
        seq = pipeline.manifest.transaction([Change("i", _row(2))], SCHEMA)
        assert _taken_or_refused(pipeline, work, seq).state == "live"
        for path in listed:
            path.unlink()
        seq = pipeline.manifest.transaction([Change("i", _row(3))], SCHEMA)
        row = _taken_or_refused(pipeline, work, seq)
        assert (work.ended, row.state) == ([], "stale")
        assert "somebody else removed what came before it" in row.reason


def test_what_a_removed_table_left_in_its_log_is_not_taken_for_the_next_table(pipeline: Pipeline) -> None:
    """A folder that is removed while a commit lands may keep the checksum of that commit."""
    pipeline.begin(SCHEMA, _row(1, 1))
    pipeline.apply()
    pipeline.manifest.transaction([Change("i", _row(2, 2))], SCHEMA)
    pipeline.apply()
    left = pipeline.path() / "_delta_log" / f"{1:020d}.crc"
    content = left.read_bytes()
    shutil.rmtree(pipeline.path())
    left.parent.mkdir(parents=True)
    left.write_bytes(content)
    pipeline.begin(SCHEMA, _row(1, 3), generation=2)
    pipeline.apply()
    assert [row["v"] for row in by_delta_rs(pipeline.path(), None)] == [3]
    pipeline.manifest.transaction([Change("i", _row(4, 4))], SCHEMA)
    pipeline.apply()
    pipeline.move()
    pipeline.manifest.transaction([Change("u", _row(1, 5))], SCHEMA)
    assert pipeline.apply().tables["16385"].state == "live"
    assert {row["id"]: row["v"] for row in pipeline.rows()} == {1: 5, 4: 4}


def test_another_table_put_in_the_place_of_ours_is_recognised_by_the_marker_alone(pipeline: Pipeline) -> None:
    """It is ahead of ours, and its commits since then changed no row: only our marker is missing."""
    elsewhere = pipeline.folder / "elsewhere"
    with _with_its_snapshot(pipeline) as work:
        pipeline.spark.read.format("delta").load(str(pipeline.path())).write.format("delta").save(str(elsewhere))
        for number in range(2):
            pipeline.spark.sql(f"ALTER TABLE delta.`{elsewhere}` SET TBLPROPERTIES ('somebodys' = '{number}')")
        shutil.rmtree(pipeline.path())
        elsewhere.rename(pipeline.path())
        seq = pipeline.manifest.transaction([Change("i", _row(2))], SCHEMA)
        row = _taken_or_refused(pipeline, work, seq)
    assert (work.ended, row.state) == ([], "stale")
    assert "the lake table's marker is missing" in row.reason


def test_a_table_whose_folder_is_removed_while_nothing_changes_is_stale_as_well(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice_spark.progress.ledger.LOOK_SECONDS", 1.0)
    with _with_its_snapshot(pipeline) as work:
        shutil.rmtree(pipeline.path())
        wait_until(lambda: bool(work.ended) or pipeline.reported()["16385"].state == "stale", what="it is noticed")
    row = pipeline.reported()["16385"]
    assert (work.ended, row.state) == ([], "stale")
    assert "is gone" in row.reason
    assert not pipeline.path().exists()


def _applied_twice(pipeline: Pipeline) -> list[Path]:
    """Two commits of the table; the files of the newest one in its log, the commit first."""
    pipeline.begin(SCHEMA, _row(1))
    pipeline.manifest.transaction([Change("i", _row(2))], SCHEMA)
    pipeline.apply()
    log = pipeline.path() / "_delta_log"
    newest = max(log.glob("*.json"))
    return [newest, *(file for file in log.iterdir() if newest.stem in file.name and file != newest)]


@pytest.mark.parametrize("left", [b"", b'{"commitInfo":{"operation":"WRITE"', b"\0" * 600])
def test_a_last_commit_that_power_loss_emptied_or_tore_stops_its_table_by_name(pipeline: Pipeline, left: bytes) -> None:
    newest, *beside = _applied_twice(pipeline)
    newest.write_bytes(left)
    for file in beside:
        file.unlink()
    pipeline.move()
    row = pipeline.apply().tables["16385"]
    assert row.state == "stale"
    assert newest.name in row.reason


def test_the_marker_decides_and_a_report_that_says_otherwise_makes_the_table_stale(pipeline: Pipeline) -> None:
    for file in _applied_twice(pipeline):
        file.unlink()
    pipeline.move()
    pipeline.spark.sql(f"ALTER TABLE delta.`{pipeline.path()}` SET TBLPROPERTIES ('same' = 'version')")
    row = pipeline.apply().tables["16385"]
    assert row.state == "stale"
    assert "marker" in row.reason


def test_a_log_that_was_cleaned_up_since_the_last_report_is_doubt(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, _row(1))
    pipeline.apply()
    for number in range(3):
        pipeline.spark.sql(f"ALTER TABLE delta.`{pipeline.path()}` SET TBLPROPERTIES ('n' = '{number}')")
    log = pipeline.path() / "_delta_log"
    table = DeltaTable(pipeline.path())
    table.create_checkpoint()
    for number in range(3):
        (log / f"{number:020d}.json").unlink()
    pipeline.move()
    row = pipeline.apply().tables["16385"]
    assert row.state == "stale"
    assert "was cleaned up" in row.reason

"""`sluice rebuild`: lake tables that were lost or damaged are made again from the spool, with the source away."""

import shutil
from pathlib import Path

import pytest

from sluice import faults
from tests.e2e.readers import bank
from tests.support.compare import compare_tables
from tests.support.extent import slow
from tests.support.pipeline import must
from tests.support.sources import Database
from tools.local.ports import free_port
from tools.local.sluice import Pipeline

pytestmark = pytest.mark.timeout(1800)


def _ingest(pipeline: Pipeline, *changes: str, database: Database) -> None:
    database.execute(*changes)
    must(pipeline, "run", "--until-caught-up", timeout=600)


def _apply(pipeline: Pipeline) -> None:
    must(pipeline, "apply", "--once", timeout=600)


def _differences(pipeline: Pipeline, database: Database) -> list[str]:
    compared = compare_tables(database, ("checking", "savings"), lake_uri=pipeline.lake_uri)
    assert all(one.lake_rows for one in compared)
    return [difference for one in compared for difference in one.differences]


def _refused(pipeline: Pipeline, *arguments: str, says: str) -> None:
    done = pipeline.run("rebuild", *arguments)
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr


@slow
def test_lost_and_damaged_lake_tables_are_made_again_without_the_source(database: Database, tmp_path: Path) -> None:
    pipeline = bank(database, tmp_path)
    _ingest(pipeline, database=database)
    _ingest(
        pipeline,
        "UPDATE checking SET balance = balance - id WHERE id % 2 = 0",
        "DELETE FROM savings WHERE id < 10",
        "ALTER TABLE savings ADD COLUMN more int DEFAULT 7",
        "UPDATE savings SET id = id + 1000 WHERE id > 40",
        database=database,
    )
    _apply(pipeline)
    assert _differences(pipeline, database) == []
    lake = tmp_path / "lake" / "public"
    shutil.rmtree(lake / "checking")
    next((lake / "savings").glob("*.parquet")).unlink()
    planned = pipeline.run("rebuild", "public.checking", "public.savings")
    assert (planned.returncode, "nothing was changed" in planned.stderr) == (0, True), planned.stderr
    assert not (lake / "checking").exists()
    _refused(pipeline, "public.nothing", says="is not the name of a table")
    away = {"SLUICE_SOURCE__DSN": f"postgresql://nobody@127.0.0.1:{free_port()}/nowhere"}
    must(pipeline, "rebuild", "public.checking", "public.savings", "--yes", environment=away, timeout=600)
    assert _differences(pipeline, database) == []
    assert {table["state"] for table in pipeline.tables() if table["schema"] == "public"} == {"live"}
    _ingest(pipeline, "UPDATE checking SET balance = 0 WHERE id = 1", "TRUNCATE savings", database=database)
    _ingest(pipeline, "INSERT INTO savings (id, balance) VALUES (5, 5)", database=database)
    _apply(pipeline)
    assert _differences(pipeline, database) == []
    segment = next((pipeline.own_spool / "data").glob("*/*.parquet"))
    segment.unlink()
    _refused(pipeline, "public.checking", "public.savings", "--yes", says="are not in the spool any more")
    assert _differences(pipeline, database) == [], "nothing was changed"


@slow
def test_what_a_rebuild_still_needs_stays_in_the_spool_however_old_it_is(database: Database, tmp_path: Path) -> None:
    """The applier that rebuilds prunes as well, and its last report says that the tables have everything."""
    pipeline = bank(database, tmp_path)
    _ingest(pipeline, database=database)
    _ingest(pipeline, "UPDATE checking SET balance = balance - id", database=database)
    _apply(pipeline)
    shutil.rmtree(tmp_path / "lake" / "public" / "checking")
    short = {"SLUICE_SPOOL__RETENTION": "1s"}
    must(pipeline, "rebuild", "public.checking", "--yes", environment=short, timeout=600)
    assert _differences(pipeline, database) == []


@slow
def test_what_a_rebuild_that_was_killed_still_needs_is_not_pruned(database: Database, tmp_path: Path) -> None:
    """Its lake table is gone, so no report may say any more that the table has everything."""
    pipeline = bank(database, tmp_path)
    _ingest(pipeline, database=database)
    _apply(pipeline)
    killed = pipeline.run(
        "rebuild", "public.checking", "--yes", environment={"SLUICE_FAULTS": "apply.rebuild.removed=crash"}, timeout=600
    )
    assert killed.returncode == faults.CRASHED, killed.stderr
    states = {table["table"]: table["state"] for table in pipeline.tables()}
    assert states == {"checking": "snapshot", "savings": "live"}
    must(pipeline, "spool", "gc", "--retention", "until_applied", "--yes")
    must(pipeline, "rebuild", "public.checking", "--yes", timeout=600)
    assert _differences(pipeline, database) == []

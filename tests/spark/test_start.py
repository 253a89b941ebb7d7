"""A start reads the ends of the logs without Spark, and proves as much as Delta's own look does."""

import json
import shutil
from copy import copy
from dataclasses import replace
from typing import Any

import pytest

from sluice.contract.applied import AppliedLog
from sluice.contract.schema import TableSchema
from sluice.manifest.reader import load_state
from sluice.manifest.targets import lake_tables
from sluice.store.opening import open_store
from sluice_spark.lake.opening import Lake
from sluice_spark.progress.restart import find_tables, reported
from sluice_spark.telemetry import ApplyTelemetry
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline
from tests.spark.model import SCHEMA


def _row(key: int) -> dict[str, object]:
    return {"id": key, "v": 0, "big": "B", "at": None}


def _named(number: int) -> TableSchema:
    return replace(SCHEMA, table_id=str(20_000 + number), table_name=f"t{number}")


class NoSpark:
    """A session that must not be asked."""

    @property
    def _jvm(self) -> Any:
        raise AssertionError("Spark was asked")

    _jsparkSession = _jvm


@pytest.mark.parametrize("through_report", [True, False])
def test_tables_are_found_without_spark_where_delta_finds_them(pipeline: Pipeline, through_report: bool) -> None:
    schemas = [_named(number) for number in range(3)]
    for schema in schemas:
        pipeline.begin(schema, _row(1))
    log: AppliedLog | None = pipeline.apply()
    for schema in schemas[:2]:
        pipeline.manifest.transaction([Change("i", _row(2))], schema)
    pipeline.apply()
    # The older report: two tables have moved on since, as after a kill. Without one their own
    # commits say where to begin.
    log = log if through_report else None
    lake = Lake(pipeline.options(), pipeline.store, before_commit=lambda: None)
    states = lake_tables(load_state(pipeline.store), pipeline.options().targets_of)
    found = find_tables(
        states,
        log,
        lake=lake,
        session=NoSpark(),  # type: ignore[arg-type, unused-ignore]
        telemetry=ApplyTelemetry(pipeline.options()),
    )
    assert [item.stale for item in found.values()] == [None, None, None]
    assert {key: item.place for key, item in found.items()} == {
        key: lake.table(state, pipeline.spark).find(reported(state, log)) for key, state in states.items()
    }


def test_a_lake_table_beyond_the_end_of_a_restored_spool_is_stale_and_skips_nothing(pipeline: Pipeline) -> None:
    """The numbers that were lost come again, for other changes."""
    spool, kept = pipeline.folder / "spool", pipeline.folder / "copy"
    pipeline.begin(SCHEMA, _row(1))
    pipeline.apply()
    shutil.copytree(spool, kept)
    manifest = copy(pipeline.manifest)
    for key in (2, 3):
        pipeline.manifest.transaction([Change("i", _row(key))], SCHEMA)
        pipeline.apply()
    shutil.rmtree(spool)
    kept.rename(spool)
    pipeline.manifest = manifest
    row = pipeline.apply().tables["16385"]
    assert (row.state, "an older copy of the spool was restored" in row.reason) == ("stale", True)
    for key in (7, 8, 9):
        pipeline.manifest.transaction([Change("i", _row(key))], SCHEMA)
    row = pipeline.apply().tables["16385"]
    assert (row.state, "an older copy of the spool was restored" in row.reason) == ("stale", True)


@pytest.mark.parametrize("restored", ["all of it", "without its reports", "older than its reports"])
def test_a_lake_table_with_entries_of_a_log_that_went_on_elsewhere_is_stale(pipeline: Pipeline, restored: str) -> None:
    """The applier starts once the manifest has passed the numbers that the lake has: they are of other changes."""
    spool, kept, idle = pipeline.folder / "spool", pipeline.folder / "copy", _named(7)
    pipeline.begin(SCHEMA, _row(1))
    pipeline.begin(idle, _row(1))
    pipeline.apply()
    shutil.copytree(spool, kept)
    manifest = copy(pipeline.manifest)
    for key in (2, 3):
        pipeline.manifest.transaction([Change("i", _row(key))], SCHEMA)
        pipeline.apply()
    (reports,) = kept.rglob("apply/log")
    if restored != "all of it":
        shutil.rmtree(reports)
        reports.mkdir()
    if restored == "older than its reports":
        (spool / reports.relative_to(kept)).replace(reports)
    shutil.rmtree(spool)
    kept.rename(spool)
    pipeline.manifest = manifest
    for key, schema in ((2, idle), (8, SCHEMA), (9, SCHEMA), (10, SCHEMA)):
        pipeline.manifest.transaction([Change("i", _row(key))], schema)
    tables = pipeline.apply().tables
    row = tables[SCHEMA.table_id]
    assert (row.state, "an older copy of the spool was restored" in row.reason) == ("stale", True)
    # What was only reported of the lost entries is not believed: the one that came in its place is applied.
    assert tables[idle.table_id].state == "live"
    assert sorted(str(found["id"]) for found in pipeline.rows("t7")) == ["1", "2"]


@pytest.mark.parametrize("left", [b"", b'{"commitInfo":{"operation":"WRITE"', b"\0" * 600])
def test_a_last_commit_that_is_torn_beside_its_whole_checksum_stops_its_table(pipeline: Pipeline, left: bytes) -> None:
    pipeline.begin(SCHEMA, _row(1))
    pipeline.manifest.transaction([Change("i", _row(2))], SCHEMA)
    pipeline.apply()
    newest = max((pipeline.path() / "_delta_log").glob("*.json"))
    newest.write_bytes(left)
    row = pipeline.apply().tables["16385"]
    assert row.state == "stale"
    assert newest.name in row.reason


def test_a_marker_that_no_commit_left_skips_nothing_and_stops_its_table(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, _row(1))
    pipeline.apply()
    newest = max((pipeline.path() / "_delta_log").glob("0*.crc"))
    stated = json.loads(newest.read_text())
    for item in stated["setTransactions"]:
        item["version"] += 1
    newest.write_text(json.dumps(stated))
    seq = pipeline.manifest.transaction([Change("i", _row(2))], SCHEMA)
    row = pipeline.apply().tables["16385"]
    assert (row.state, row.through_seq < seq) == ("stale", True)
    assert "it is not the table that it was" in row.reason


def test_a_table_whose_last_checksum_is_missing_is_found_through_delta(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, _row(1))
    pipeline.apply()
    for file in (pipeline.path() / "_delta_log").glob("*.crc"):
        file.unlink()
    pipeline.manifest.transaction([Change("i", _row(2))], SCHEMA)
    row = pipeline.apply().tables["16385"]
    assert (row.state, row.rows_applied) == ("live", 2)
    assert sorted(pipeline.rows(), key=str) == [_row(1), _row(2)]


def test_a_checkpoint_is_read_by_a_fresh_thread_when_the_last_checksum_is_missing(
    pipeline: Pipeline,
) -> None:
    pipeline.begin(SCHEMA, _row(1))
    pipeline.apply()
    jvm: Any = pipeline.spark._jvm
    delta = jvm.org.apache.spark.sql.delta.DeltaLog
    delta.forTable(pipeline.spark._jsparkSession, str(pipeline.path())).checkpoint()
    pipeline.manifest.transaction([Change("i", _row(2))], SCHEMA)
    log = pipeline.apply()
    # As a kill between a commit and its checksum leaves it.
    max((pipeline.path() / "_delta_log").glob("0*.crc")).unlink()
    # Another path, because a running Spark remembers the log of this one.
    pipeline.folder = pipeline.folder.rename(pipeline.folder.parent / f"{pipeline.folder.name}-moved")
    pipeline.store = open_store(f"file://{pipeline.folder}/spool", prefix="shop/", options={})
    options = pipeline.options()
    lake = Lake(options, pipeline.store, before_commit=lambda: None)
    states = lake_tables(load_state(pipeline.store), pipeline.options().targets_of)
    (found,) = find_tables(states, log, lake=lake, session=pipeline.spark, telemetry=ApplyTelemetry(options)).values()
    assert (found.problem, found.failures) == (None, 0)
    assert found.place.marker == log.tables["16385"].through_seq

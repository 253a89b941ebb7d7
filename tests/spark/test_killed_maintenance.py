"""A process that is killed in the maintenance of a table leaves the same rows, and the next process goes on."""

import os
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sluice import faults
from sluice.contract import keys
from sluice.contract.applied import Maintenance
from sluice.manifest.newest_record import newest_log
from sluice_spark.maintenance.planner import FILES_OF_A_TIER, VERSIONS, Turn
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline
from tests.spark.model import ID, SCHEMA, row
from tests.spark.processes import SMALL_JVM, run_applier
from tests.spark.protocol_reader import DeltaFolder
from tests.spark.table_audit import check_files, live_files
from tests.support.extent import slow

CASES = [(turn, point) for turn in Turn for point in ("before", "after")]
TWO_DAYS = 2 * 86_400.0


def _scattered(pipeline: Pipeline, turn: Turn) -> Path:
    """A table that needs the turn: in many files, after many versions, with a file that a killed commit left."""
    pipeline.begin(SCHEMA, *(row(key) for key in range(300)))
    pipeline.apply()
    folder, session = pipeline.path(), pipeline.spark.newSession()
    session.conf.set("spark.databricks.delta.optimize.maxFileSize", "100")
    session.sql(f"OPTIMIZE delta.`{folder}` ZORDER BY (id)")
    for number in range(VERSIONS):
        pipeline.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('n' = '{number}')")
    log = newest_log(pipeline.store).read()
    assert log is not None
    said = log.tables[ID]
    long_ago = datetime.fromtimestamp(time.time() - 9 * TWO_DAYS, UTC).isoformat()
    version = said.delta_version if turn is Turn.TIDY else said.delta_version + 10 * VERSIONS
    seen = Maintenance(tidied_version=version, vacuumed_at="" if turn is Turn.TIDY else long_ago)
    stated = replace(log, number=log.number + 1, tables={ID: replace(said, maintenance=seen)})
    pipeline.store.create(keys.apply_log(stated.number), stated.encode())
    orphan = folder / "part-left.parquet"
    orphan.write_bytes(b"left")
    os.utime(orphan, (time.time() - TWO_DAYS,) * 2)
    return folder


@slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("turn", "point"), CASES)
def test_a_kill_in_maintenance_leaves_the_rows_and_the_next_process_goes_on(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, turn: Turn, point: str
) -> None:
    folder = _scattered(pipeline, turn)
    rows = dict.fromkeys(range(300), 0)
    before = DeltaFolder(folder).state()
    assert len(live_files(before)) >= FILES_OF_A_TIER
    monkeypatch.setenv("SLUICE_FAULTS", f"apply.maintenance.{point}=crash")
    options = pipeline.options(once=False, maintenance_share=1.0, vacuum_seconds=3600.0, **SMALL_JVM)
    run = run_applier(options)
    assert run.code == faults.CRASHED, run.output
    state = DeltaFolder(folder).state()
    assert {one["id"]: one["v"] for one in state.rows()} == rows
    check_files(state)
    assert (state.version > before.version) == (point == "after")
    assert (folder / "part-left.parquet").exists() == (turn is Turn.TIDY or point == "before")
    pipeline.change(Change("u", row(7, 7)))
    monkeypatch.delenv("SLUICE_FAULTS")
    pipeline.applied()
    state = DeltaFolder(folder).state()
    assert {one["id"]: one["v"] for one in state.rows()} == rows | {7: 7}
    check_files(state)

"""A process that is killed inside a direct commit leaves files that no version names, and nothing else: the table is as
it was, or as it must be, and the next process goes on from there.
"""

import os
from pathlib import Path

import pytest

from sluice import faults
from sluice_spark.options import DIRECT
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline
from tests.spark.model import SCHEMA
from tests.spark.processes import SMALL_JVM, run_applier
from tests.spark.protocol_reader import DeltaFolder
from tests.spark.replays import by_delta_rs
from tests.spark.table_audit import check_checksum, check_files, live_files

POINTS = {
    "apply.direct.data_written": False,
    "apply.direct.vectors_written": False,
    "apply.commit.before": False,
    "apply.commit.after": True,
}
"""Whether the commit is there when the process is killed."""
QUICK = ("apply.direct.vectors_written",)
CASES = POINTS if os.environ.get("CHAOS") == "full" else QUICK


def _row(key: int, v: int = 0, big: str = "B") -> dict[str, object]:
    return {"id": key, "v": v, "big": big, "at": None}


def _files(folder: Path) -> set[Path]:
    """Data and vectors, whoever needs them."""
    return {file for file in folder.iterdir() if file.suffix in (".parquet", ".bin")}


def _assert_rows(folder: Path, rows: list[dict[str, object]]) -> None:
    state = DeltaFolder(folder).state()
    for found in (state.rows(), by_delta_rs(folder, None)):
        plain = [{name: row[name] for name in rows[0]} for row in found]
        assert sorted(plain, key=str) == sorted(rows, key=str)
    check_files(state)
    check_checksum(DeltaFolder(folder), state.version)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", CASES)
def test_a_killed_direct_commit_leaves_orphans_only_and_the_next_process_is_right(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    before = [_row(1), _row(2, 2), _row(3), _row(5)]
    after = [_row(1, 11), _row(3, 33), _row(6), _row(7)]
    pipeline.begin(SCHEMA, _row(1), _row(2), _row(3), _row(4))
    pipeline.manifest.transaction([Change("u", _row(2, 2)), Change("d", old={"id": 4}), Change("i", _row(5))], SCHEMA)
    pipeline.apply(way=DIRECT)
    folder = pipeline.path()
    _assert_rows(folder, before)
    version, files = DeltaFolder(folder).versions()[-1], _files(folder)
    pipeline.manifest.transaction(
        [
            Change("u", {"id": 1, "v": 11}, unchanged=("big", "at")),
            Change("d", old={"id": 2}),
            Change("u", {"id": 3, "v": 33}, unchanged=("big", "at")),
            Change("u", {"id": 6, "v": 0}, old={"id": 5}, unchanged=("big", "at")),
            Change("i", _row(7)),
        ],
        SCHEMA,
    )
    monkeypatch.setenv("SLUICE_FAULTS", f"{point}=crash")
    run = run_applier(pipeline.options(way=DIRECT, **SMALL_JVM))
    assert run.code == faults.CRASHED, run.output
    is_there = POINTS[point]
    assert DeltaFolder(folder).versions()[-1] == version + is_there
    _assert_rows(folder, after if is_there else before)
    written = _files(folder) - files
    assert written, "nothing was written before the kill"
    assert written.isdisjoint(live_files(DeltaFolder(folder).state())) == (not is_there)
    assert pipeline.apply(way=DIRECT).tables["16385"].state == "live"
    _assert_rows(folder, after)
    session = pipeline.spark.newSession()
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
    session.sql(f"VACUUM delta.`{folder}` RETAIN 0 HOURS")
    assert _files(folder) == live_files(DeltaFolder(folder).state()), "an orphan stays, or a live file went"
    _assert_rows(folder, after)

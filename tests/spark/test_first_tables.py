"""A lake table that a small snapshot makes without a Spark job: the one that Spark would make, and nothing in place
of what somebody else put there.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice import faults
from sluice.contract.schema import TableSchema
from sluice.errors import ManifestCorrupt
from sluice.manifest.targets import lake_tables
from sluice_spark.lake.arranging import tell, words_of
from sluice_spark.lake.commit_way import DIRECT, DISTRIBUTED
from sluice_spark.lake.layout import TABLE_PROPERTIES
from tests.spark.changes import FLOAT8, INT4, INT4_ARRAY, INT8, NUMERIC, TEXT, TIMESTAMP, Change, column, table_schema
from tests.spark.conftest import Pipeline, held, running
from tests.spark.model import ID, SCHEMA, row
from tests.spark.processes import SMALL_JVM, run_applier
from tests.spark.protocol_reader import DeltaFolder, State
from tests.spark.replays import by_delta_rs
from tests.spark.table_audit import check_checksum, check_files, live_files
from tests.spark.windows import Windows
from tests.support.extent import cases, slow

WIDE = table_schema(
    column("id", 1, INT8, key=True), column("a `b` ${c}", 2, TEXT), column("n", 3, NUMERIC, typmod=(12 << 16 | 3) + 4),
    column("at", 4, TIMESTAMP), column("f", 6, FLOAT8), column("l", 7, INT4_ARRAY), column("v", 8, INT4),
)  # fmt: skip
ROWS: list[dict[str, object]] = [{"id": 1, "a `b` ${c}": "ü\n", "f": -0.0, "l": [1, None], "v": 7}, {"id": 2}]
NO_KEY = table_schema(column("v", 1, INT4), column("s", 2, TEXT), identity="n")
CASES: dict[str, tuple[TableSchema, list[dict[str, object]], dict[str, object]]] = {
    "mirror": (WIDE, ROWS, {}),
    "changelog": (WIDE, ROWS, {"tables": {"public.items": {"targets": [{"kind": "changelog"}]}}}),
    "no rows": (WIDE, [], {}),
    "no key": (NO_KEY, [{"v": 1, "s": "x"}, {"v": 1, "s": "x"}], {}),
    "no metadata columns": (SCHEMA, [row(1)], {"metadata_columns": False}),
}


def _made(spark: SparkSession, folder: Path, case: str, way: str) -> Pipeline:
    schema, rows, options = CASES[case]
    folder.mkdir()
    pipeline = Pipeline(spark, folder)
    pipeline.begin(schema, *rows)
    pipeline.applied(way=way, **options)  # type: ignore[arg-type]
    return pipeline


def _columns(state: State) -> list[dict[str, Any]]:
    """Without the names that Delta draws."""
    return [
        {**one, "metadata": {name: value for name, value in one["metadata"].items() if "physicalName" not in name}}
        for one in json.loads(json.dumps(state.fields))
    ]


def _properties(state: State) -> list[tuple[str, str]]:
    """Without the names that are drawn, too."""
    return sorted((name.partition("#")[0], value) for name, value in state.metadata["configuration"].items())


@pytest.mark.parametrize("case", cases(CASES, quick=["mirror", "changelog"]))
def test_a_table_made_without_a_job_is_the_one_that_spark_makes(spark: SparkSession, tmp_path: Path, case: str) -> None:
    made = [_made(spark, tmp_path / way, case, way) for way in (DIRECT, DISTRIBUTED)]
    ours, sparks = (DeltaFolder(pipeline.path()).state() for pipeline in made)
    check_files(ours)
    check_checksum(DeltaFolder(made[0].path()), ours.version)
    assert ours.protocol == sparks.protocol
    assert _properties(ours) == _properties(sparks)
    assert ours.metadata["partitionColumns"] == sparks.metadata["partitionColumns"]
    assert ours.metadata["format"] == sparks.metadata["format"]
    assert _columns(ours)[0] == _columns(sparks)[0] or case == "changelog"
    assert [{**one, "type": str(one["type"])[:9]} for one in _columns(ours)] == [
        {**one, "type": str(one["type"])[:9]} for one in _columns(sparks)
    ]
    assert sorted(map(str, ours.rows())) == sorted(map(str, sparks.rows()))
    assert sorted(map(str, by_delta_rs(made[0].path(), None))) == sorted(map(str, by_delta_rs(made[1].path(), None)))
    assert len(ours.files) == (1 if CASES[case][1] else 0)


def test_neither_a_small_snapshot_nor_the_first_window_runs_a_task(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1))
    windows = Windows(pipeline)
    tracker = pipeline.spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    windows.apply()
    assert windows.table is not None
    (state,) = lake_tables(windows.state, windows.options.targets_of).values()
    tell(windows.table, words_of(state, 0))
    assert windows.table.place.version == 0, "it says of itself what it is to say from the beginning"
    assert windows.change(Change("u", {"id": 1, "v": 5}, unchanged=("big", "at"))).way.name == DIRECT
    infos = [tracker.getJobInfo(job) for job in set(tracker.getJobIdsForGroup()) - before]
    # Delta asks for the files of the table that is not there yet: a job without a stage.
    assert all(info is not None and not list(info.stageIds) for info in infos)
    assert pipeline.rows() == [row(1, 5)]


def test_a_small_snapshot_with_a_changed_segment_makes_no_table(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1))
    (segment,) = pipeline.store.list("data/")
    pipeline.damage(segment)
    with pytest.raises(ManifestCorrupt):
        Windows(pipeline).apply()
    assert not pipeline.path().exists()


def test_a_snapshot_replaces_no_table_that_somebody_else_made(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1))
    theirs = pipeline.spark.newSession().sql("SELECT 9 AS id")
    theirs.write.format("delta").options(**TABLE_PROPERTIES).save(str(pipeline.path()))
    for _ in range(2):
        reason = pipeline.applied(state="stale").reason
        assert reason == "somebody else's table is where the lake table should be"
        assert by_delta_rs(pipeline.path(), None) == [{"id": 9}]


def test_a_table_that_appears_before_the_first_commit_is_not_replaced(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1))
    point = "apply.direct.data_written"
    with held(pipeline.folder / "gate", f"{point}@1") as let_go, running(pipeline) as work:
        work.passes(point)
        pipeline.spark.newSession().sql("SELECT 9 AS theirs").write.format("delta").save(str(pipeline.path()))
        let_go()
        work.until(pipeline.reported, what="the table is reported")
    reported = pipeline.reported()[ID]
    assert reported.state == "stale"
    assert "somebody else changed the lake table" in reported.reason
    assert by_delta_rs(pipeline.path(), None) == [{"theirs": 9}]


@slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("point", "is_there"),
    [("apply.direct.data_written", False), ("apply.commit.before", False), ("apply.commit.after", True)],
)
def test_a_kill_while_a_table_is_made_leaves_no_table_or_the_whole_one(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, point: str, *, is_there: bool
) -> None:
    pipeline.begin(SCHEMA, *(row(number, number) for number in range(50)))
    monkeypatch.setenv("SLUICE_FAULTS", f"{point}=crash")
    run = run_applier(pipeline.options(**SMALL_JVM))
    assert run.code == faults.CRASHED, run.output
    assert (pipeline.log() / f"{0:020d}.json").exists() == is_there
    monkeypatch.delenv("SLUICE_FAULTS")
    pipeline.applied()
    state = DeltaFolder(pipeline.path()).state()
    assert len(live_files(state)) == 1
    check_files(state)
    assert sorted(one["id"] for one in state.rows()) == list(range(50))

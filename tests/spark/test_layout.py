"""How files of a lake table lie, as it is configured: properties, clustering, partitions. Rows are what they are
without, for other engines too.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from sluice.contract.entries import Progress
from sluice_spark.lake import arranging
from sluice_spark.lake.commit_way import DIRECT, MERGE
from tests.spark import lake
from tests.spark.changes import INT4, INT8, TEXT, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.support.extent import cases

BOOL, FLOAT8, DATE = 16, 701, 1082
SCHEMA = table_schema(
    column("id", 1, INT8, key=True), column("day", 2, DATE), column("who", 3, INT4), column("what", 4, TEXT)
)
ROWS: list[dict[str, object]] = [
    {"id": number, "day": None, "who": number % 3, "what": f"w{number}"} for number in range(1, 41)
]


def _apply(pipeline: Pipeline, *, kind: str = "mirror", state: str = "live", **layout: Any) -> Any:
    layout = {"properties": tuple(layout.pop("properties", {}).items()), **layout}
    tables = {"public.items": {"targets": [{"kind": kind, "layout": layout}]}}
    row = pipeline.apply(tables=tables).tables["16385"]
    assert row.state == state, row.reason
    return row


def _detail(pipeline: Pipeline) -> Mapping[str, Any]:
    (found,) = pipeline.spark.newSession().sql(f"DESCRIBE DETAIL delta.`{pipeline.path()}`").collect()
    return found.asDict()


def _changed(pipeline: Pipeline) -> list[tuple[Any, ...]]:
    """Some rows change; what the table has then."""
    changes = [Change("u", {"id": 3, "who": 9}, unchanged=("what",)), Change("d", old={"id": 4})]
    changes += [Change("i", {"id": 100, "who": 1, "what": ""})]
    pipeline.manifest.transaction(changes, SCHEMA)
    rows: dict[object, tuple[Any, ...]] = {row["id"]: (row["id"], row["who"], row["what"]) for row in ROWS}
    del rows[4]
    return sorted((rows | {3: (3, 9, "w3"), 100: (100, 1, "")}).values())


def _rows(pipeline: Pipeline) -> list[tuple[Any, ...]]:
    """By Spark, and the same by delta-rs and DuckDB."""
    rows = sorted((row["id"], row["who"], row["what"]) for row in lake.rows_in(pipeline.path()))
    found = QueryBuilder().register("lake", DeltaTable(pipeline.path())).execute("select * from lake").read_all()
    connection = duckdb.connect()
    connection.register("found", pa.table(found))
    assert connection.execute("SELECT id, who, what FROM found ORDER BY id").fetchall() == rows
    return rows


def test_properties_are_set_once_and_windows_stay_direct(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, *ROWS)
    wanted = {
        "delta.enableRowTracking": "true",
        "delta.logRetentionDuration": "interval 40 days",
        "team": "the \\ shop's",
    }
    _apply(pipeline, properties=wanted)
    assert wanted.items() <= _detail(pipeline)["properties"].items()
    version = DeltaTable(pipeline.path()).version()
    rows = _changed(pipeline)
    assert _apply(pipeline, properties=wanted).way == DIRECT
    assert _rows(pipeline) == rows
    assert DeltaTable(pipeline.path()).version() == version + 1, "properties were set again"


def test_a_property_that_delta_refuses_is_named_and_windows_go_on(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, *ROWS)
    wanted = {"delta.logRetentionDuration": "interval 1 hour"}
    assert "delta.logRetentionDuration" in _apply(pipeline, properties=wanted).maintenance.failing["layout"]
    rows = _changed(pipeline)
    assert _apply(pipeline, properties=wanted).way == DIRECT
    assert _rows(pipeline) == rows


@pytest.mark.parametrize("kind", ["mirror", "history"])
def test_a_clustered_table_takes_direct_windows_and_optimize_clusters_it(pipeline: Pipeline, kind: str) -> None:
    pipeline.begin(SCHEMA, *ROWS)
    _apply(pipeline, kind=kind, cluster_by=("who", "id"))
    assert _detail(pipeline)["clusteringColumns"] == ["who", "id"]
    rows = _changed(pipeline)
    assert _apply(pipeline, kind=kind, cluster_by=("who", "id")).way == DIRECT
    pipeline.spark.newSession().sql(f"OPTIMIZE delta.`{pipeline.path()}`").collect()
    pipeline.manifest.transaction([Change("d", old={"id": 100})], SCHEMA)
    assert _apply(pipeline, kind=kind, cluster_by=("who", "id")).way == DIRECT
    if kind == "mirror":
        assert _rows(pipeline) == rows[:-1]
    assert _detail(pipeline)["clusteringColumns"] == ["who", "id"]


def test_a_clustering_column_that_is_renamed_or_dropped_holds_no_window_up(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arranging, "AGAIN_SECONDS", 0.0)
    pipeline.begin(SCHEMA, *ROWS)
    _apply(pipeline, cluster_by=("who",))
    identity, day, who, what = SCHEMA.columns
    renamed = table_schema(identity, day, replace(who, name="whom"), what, version=2)
    pipeline.manifest.table(renamed, state="live")
    pipeline.manifest.transaction([Change("i", {"id": 200, "whom": 5, "what": "x"})], renamed)
    said = _apply(pipeline, cluster_by=("who",)).maintenance.failing["layout"]
    assert "'who'" in said
    assert "whom" in said
    assert _detail(pipeline)["clusteringColumns"] == ["whom"]
    without = table_schema(identity, day, what, version=3)
    pipeline.manifest.table(without, state="live")
    pipeline.manifest.transaction([Change("i", {"id": 201, "what": "y"})], without)
    _apply(pipeline, cluster_by=("id",))
    assert {row["id"] for row in lake.rows_in(pipeline.path())} >= {200, 201}
    assert _detail(pipeline)["clusteringColumns"] == ["id"]
    pipeline.spark.newSession().sql(f"OPTIMIZE delta.`{pipeline.path()}`").collect()
    assert len(lake.rows_in(pipeline.path())) == len(ROWS) + 2


def test_a_clustering_that_is_configured_no_more_stays_until_somebody_ends_it(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, *ROWS)
    _apply(pipeline, cluster_by=("id",))
    rows = _changed(pipeline)
    assert not _apply(pipeline).maintenance.failing
    assert _detail(pipeline)["clusteringColumns"] == ["id"]
    pipeline.spark.newSession().sql(f"ALTER TABLE delta.`{pipeline.path()}` CLUSTER BY NONE")
    pipeline.manifest.transaction([Change("d", old={"id": 100})], SCHEMA)
    assert _apply(pipeline).way == "direct"
    assert _detail(pipeline)["clusteringColumns"] == []
    assert len(_rows(pipeline)) == len(rows) - 1


def test_a_table_is_partitioned_by_its_snapshot_and_says_why_windows_are_merged(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, *ROWS)
    _apply(pipeline, partition_by=("who",))
    assert _detail(pipeline)["partitionColumns"] == ["who"]
    rows = _changed(pipeline)
    row = _apply(pipeline, partition_by=("who",))
    assert (row.way, row.way_reason) == (MERGE, "the table is partitioned")
    assert _rows(pipeline) == rows
    pipeline.manifest.transaction([Change("d", old={"id": 100})], SCHEMA)
    other = _apply(pipeline, partition_by=("day",))
    assert "partitioned by who" in other.maintenance.failing["layout"]
    pipeline.manifest.append(Progress(), through_lsn=pipeline.manifest.lsn + 10)
    pipeline.begin(SCHEMA, *ROWS, generation=2)
    assert not _apply(pipeline, partition_by=("day",)).maintenance.failing
    assert _detail(pipeline)["partitionColumns"] == ["day"]


@pytest.mark.parametrize("kind", cases(["mirror", "history"], quick=["history"]))
def test_a_snapshot_makes_partitions_of_a_clustering_and_the_other_way_round(pipeline: Pipeline, kind: str) -> None:
    layouts: list[dict[str, Any]] = [{"cluster_by": ("who",)}, {"partition_by": ("who",)}, {}]
    for turn, layout in enumerate([*layouts, *layouts[:2]], start=1):
        if turn > 1:
            pipeline.manifest.append(Progress(), through_lsn=pipeline.manifest.lsn + 10)
        pipeline.begin(SCHEMA, *ROWS, generation=turn)
        row = _apply(pipeline, kind=kind, **layout)
        assert not row.maintenance.failing
        detail = _detail(pipeline)
        assert detail["clusteringColumns"] == list(layout.get("cluster_by", ()))
        assert detail["partitionColumns"] == list(layout.get("partition_by", ()))
        assert sorted(found["id"] for found in lake.rows_in(pipeline.path())) == [one["id"] for one in ROWS]


def test_a_partition_column_that_is_renamed_stops_the_table_by_its_name(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, *ROWS)
    _apply(pipeline, partition_by=("who",))
    identity, day, who, what = SCHEMA.columns
    renamed = table_schema(identity, day, replace(who, name="whom"), what, version=2)
    pipeline.manifest.table(renamed, state="live")
    pipeline.manifest.transaction([Change("i", {"id": 200, "whom": 5, "what": "x"})], renamed)
    assert "'who'" in _apply(pipeline, partition_by=("who",), state="stale").reason


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ({"partition_by": ("what",)}, "'what' is string"),
        ({"partition_by": ("whoo",)}, "did you mean who?"),
    ],
)
def test_partitions_that_cannot_hold_every_value_are_refused(
    pipeline: Pipeline, layout: dict[str, Any], said: str
) -> None:
    pipeline.begin(SCHEMA, *ROWS)
    assert said in _apply(pipeline, state="stale", **layout).reason


def test_a_table_that_cannot_be_clustered_as_asked_says_so_and_goes_on(pipeline: Pipeline) -> None:
    schema = table_schema(column("id", 1, INT8, key=True), column("on", 2, BOOL))
    pipeline.begin(schema, {"id": 1, "on": True})
    assert "'on' is boolean" in _apply(pipeline, cluster_by=("on",)).maintenance.failing["layout"]
    pipeline.manifest.transaction([Change("d", old={"id": 1})], schema)
    _apply(pipeline, cluster_by=("on",))
    assert lake.rows_in(pipeline.path()) == []


def test_delta_does_not_cluster_by_columns_without_bounds(pipeline: Pipeline) -> None:
    """Which is why `check` refuses them: numbers with a fraction, and columns behind the first 32."""
    wide = table_schema(
        column("id", 1, INT8, key=True), column("weight", 2, FLOAT8), *(column(f"c{n}", n, INT4) for n in range(3, 40))
    )
    pipeline.begin(wide, {"id": 1, "weight": 1.5})
    for name, said in (("weight", "'weight' is double"), ("c33", "")):
        failing = _apply(pipeline, cluster_by=(name,)).maintenance.failing
        assert said in failing["layout"]
        assert _detail(pipeline)["clusteringColumns"] == []
        pipeline.manifest.transaction([Change("u", {"id": 1})], wide)
    assert not _apply(pipeline, cluster_by=("c32",)).maintenance.failing
    assert _detail(pipeline)["clusteringColumns"] == ["c32"]

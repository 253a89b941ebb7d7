"""How files of a lake table lie, as it is configured: properties, clustering, partitions. Rows are what they are
without, for other engines too.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from sluice.contract.applied import AppliedTable
from sluice_spark.lake import arranging
from sluice_spark.lake.commit_way import DIRECT, MERGE
from tests.spark.changes import INT4, INT8, TEXT, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.support.extent import cases, slow

BOOL, FLOAT8, DATE = 16, 701, 1082
SCHEMA = table_schema(
    column("id", 1, INT8, key=True), column("day", 2, DATE), column("who", 3, INT4), column("what", 4, TEXT)
)
ROWS: list[dict[str, object]] = [
    {"id": number, "day": None, "who": number % 3, "what": f"w{number}"} for number in range(1, 41)
]


IDENTITY, DAY, WHO, WHAT = SCHEMA.columns
RENAMED = table_schema(IDENTITY, DAY, replace(WHO, name="whom"), WHAT, version=2)


def _apply(pipeline: Pipeline, *, kind: str = "mirror", state: str = "live", **layout: Any) -> AppliedTable:
    layout = {"properties": tuple(layout.pop("properties", {}).items()), **layout}
    return pipeline.applied(target={"kind": kind, "layout": layout}, state=state)


def _detail(pipeline: Pipeline) -> Mapping[str, Any]:
    (found,) = pipeline.sql("DESCRIBE DETAIL {t}")
    detail: Mapping[str, Any] = found.asDict()
    return detail


def _changed(pipeline: Pipeline) -> list[tuple[Any, ...]]:
    """Some rows change; what the table has then."""
    changes = [Change("u", {"id": 3, "who": 9}, unchanged=("what",)), Change("d", old={"id": 4})]
    pipeline.change(*changes, Change("i", {"id": 100, "who": 1, "what": ""}))
    rows: dict[object, tuple[Any, ...]] = {row["id"]: (row["id"], row["who"], row["what"]) for row in ROWS}
    del rows[4]
    return sorted((rows | {3: (3, 9, "w3"), 100: (100, 1, "")}).values())


def _rows(pipeline: Pipeline) -> list[tuple[Any, ...]]:
    """By delta-rs, and the same by Spark."""
    rows = sorted((row["id"], row["who"], row["what"]) for row in pipeline.rows())
    assert list(map(tuple, pipeline.sql("SELECT id, who, what FROM {t} ORDER BY id"))) == rows
    return rows


@slow
def test_properties_are_set_once_and_windows_stay_direct(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, *ROWS)
    wanted = {
        "delta.enableRowTracking": "true",
        "delta.logRetentionDuration": "interval 40 days",
        "team": "the \\ shop's",
    }
    _apply(pipeline, properties=wanted)
    assert wanted.items() <= _detail(pipeline)["properties"].items()
    version = pipeline.version()
    rows = _changed(pipeline)
    assert _apply(pipeline, properties=wanted).way == DIRECT
    assert _rows(pipeline) == rows
    assert pipeline.version() == version + 1, "properties were set again"


def test_a_property_that_delta_refuses_is_named_and_windows_go_on(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, *ROWS)
    wanted = {"delta.logRetentionDuration": "interval 1 hour"}
    assert "delta.logRetentionDuration" in _apply(pipeline, properties=wanted).maintenance.failing["layout"]
    rows = _changed(pipeline)
    assert _apply(pipeline, properties=wanted).way == DIRECT
    assert _rows(pipeline) == rows


@pytest.mark.parametrize("kind", cases(["mirror", "history"], quick=["mirror"]))
def test_a_clustered_table_takes_direct_windows_and_optimize_clusters_it(pipeline: Pipeline, kind: str) -> None:
    pipeline.begin(SCHEMA, *ROWS)
    _apply(pipeline, kind=kind, cluster_by=("who", "id"))
    assert _detail(pipeline)["clusteringColumns"] == ["who", "id"]
    rows = _changed(pipeline)
    assert _apply(pipeline, kind=kind, cluster_by=("who", "id")).way == DIRECT
    pipeline.sql("OPTIMIZE {t}")
    pipeline.change(Change("d", old={"id": 100}))
    assert _apply(pipeline, kind=kind, cluster_by=("who", "id")).way == DIRECT
    if kind == "mirror":
        assert _rows(pipeline) == rows[:-1]
    assert _detail(pipeline)["clusteringColumns"] == ["who", "id"]


@slow
def test_a_clustering_column_that_is_renamed_or_dropped_holds_no_window_up(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arranging, "AGAIN_SECONDS", 0.0)
    pipeline.begin(SCHEMA, *ROWS)
    _apply(pipeline, cluster_by=("who",))
    pipeline.evolve(RENAMED)
    pipeline.change(Change("i", {"id": 200, "whom": 5, "what": "x"}))
    said = _apply(pipeline, cluster_by=("who",)).maintenance.failing["layout"]
    assert "'who'" in said
    assert "whom" in said
    assert _detail(pipeline)["clusteringColumns"] == ["whom"]
    pipeline.evolve(table_schema(IDENTITY, DAY, WHAT, version=3))
    pipeline.change(Change("i", {"id": 201, "what": "y"}))
    _apply(pipeline, cluster_by=("id",))
    assert {*pipeline.keys()} >= {200, 201}
    assert _detail(pipeline)["clusteringColumns"] == ["id"]
    pipeline.sql("OPTIMIZE {t}")
    assert len(pipeline.rows()) == len(ROWS) + 2


@slow
def test_a_clustering_that_is_configured_no_more_stays_until_somebody_ends_it(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, *ROWS)
    _apply(pipeline, cluster_by=("id",))
    rows = _changed(pipeline)
    assert not _apply(pipeline).maintenance.failing
    assert _detail(pipeline)["clusteringColumns"] == ["id"]
    pipeline.sql("ALTER TABLE {t} CLUSTER BY NONE")
    pipeline.change(Change("d", old={"id": 100}))
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
    pipeline.change(Change("d", old={"id": 100}))
    other = _apply(pipeline, partition_by=("day",))
    assert "partitioned by who" in other.maintenance.failing["layout"]
    pipeline.begin_again(SCHEMA, *ROWS)
    assert not _apply(pipeline, partition_by=("day",)).maintenance.failing
    assert _detail(pipeline)["partitionColumns"] == ["day"]


@slow
def test_a_table_with_floating_point_numbers_has_partitions(pipeline: Pipeline) -> None:
    """Delta takes no statistics of partition columns, and those of other columns are named in such a table."""
    numbers = table_schema(*SCHEMA.columns, column("f", 5, FLOAT8))
    pipeline.begin(numbers, *ROWS)
    for generation, partitions in enumerate((["who"], [], ["day"]), start=2):
        assert not _apply(pipeline, partition_by=tuple(partitions)).maintenance.failing
        assert _detail(pipeline)["partitionColumns"] == partitions
        rows = _changed(pipeline)
        more = table_schema(*numbers.columns, column("g", 6, FLOAT8, missing="1.5"), version=generation)
        pipeline.evolve(more, generation=generation - 1)
        pipeline.change(Change("u", {"id": 5, "who": 1, "what": "w5", "f": 0.5, "g": 0.5}))
        _apply(pipeline, partition_by=tuple(partitions))
        assert _rows(pipeline) == sorted({*rows, (5, 1, "w5")} - {(5, 2, "w5")})
        assert sorted({row["g"] for row in pipeline.rows()}) == [0.5, 1.5]
        pipeline.begin_again(numbers, *ROWS, generation=generation)


@slow
@pytest.mark.parametrize("kind", ["mirror", "history"])
def test_a_snapshot_makes_partitions_of_a_clustering_and_the_other_way_round(pipeline: Pipeline, kind: str) -> None:
    layouts: list[dict[str, Any]] = [{"cluster_by": ("who",)}, {"partition_by": ("who",)}, {}]
    for turn, layout in enumerate([*layouts, *layouts[:2]], start=1):
        pipeline.begin_again(SCHEMA, *ROWS, generation=turn)
        assert not _apply(pipeline, kind=kind, **layout).maintenance.failing
        detail = _detail(pipeline)
        assert detail["clusteringColumns"] == list(layout.get("cluster_by", ()))
        assert detail["partitionColumns"] == list(layout.get("partition_by", ()))
        assert pipeline.keys() == [one["id"] for one in ROWS]


def test_a_partition_column_that_is_renamed_stops_the_table_by_its_name(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, *ROWS)
    _apply(pipeline, partition_by=("who",))
    pipeline.evolve(RENAMED)
    pipeline.change(Change("i", {"id": 200, "whom": 5, "what": "x"}))
    assert "'who'" in _apply(pipeline, partition_by=("who",), state="stale").reason


@pytest.mark.parametrize(("name", "said"), [("what", "'what' is string"), ("whoo", "did you mean who?")])
def test_partitions_that_cannot_hold_every_value_are_refused(pipeline: Pipeline, name: str, said: str) -> None:
    pipeline.begin(SCHEMA, *ROWS)
    assert said in _apply(pipeline, state="stale", partition_by=(name,)).reason


@slow
def test_a_table_that_delta_does_not_cluster_by_columns_without_bounds_says_so_and_goes_on(pipeline: Pipeline) -> None:
    """Which is why `check` refuses them: numbers with a fraction, booleans, and columns behind the first 32."""
    first = column("id", 1, INT8, key=True), column("weight", 2, FLOAT8), column("on", 3, BOOL)
    pipeline.begin(table_schema(*first, *(column(f"c{n}", n, INT4) for n in range(4, 40))), {"id": 1, "weight": 1.5})
    for name, said in (("weight", "'weight' is double"), ("on", "'on' is boolean"), ("c33", "")):
        failing = _apply(pipeline, cluster_by=(name,)).maintenance.failing
        assert said in failing["layout"]
        assert _detail(pipeline)["clusteringColumns"] == []
        pipeline.change(Change("u", {"id": 1}))
    assert not _apply(pipeline, cluster_by=("c32",)).maintenance.failing
    assert _detail(pipeline)["clusteringColumns"] == ["c32"]

"""Files that somebody's OPTIMIZE wrote under other settings of Spark than ours, and such settings under which Spark was
started for us: each value stays what it is.
"""

import datetime as dt
from typing import Any

import pytest

from sluice.errors import ApplyError
from sluice_spark import session
from sluice_spark.lake.commit_way import DIRECT, DISTRIBUTED, MERGE, CommitWay
from sluice_spark.lake.evolution import Shape, evolve
from tests.spark.changes import INT4, INT8, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.spark.windows import Windows
from tests.support.extent import slow

TIMESTAMPTZ, DATE, DATES = 1184, 1082, 1182
YEARS = (1, 1500, 1600, 1969, 2300, 9998)


def _optimized(pipeline: Pipeline, **settings: str) -> None:
    other = pipeline.spark.newSession()
    for name, value in settings.items():
        other.conf.set(f"spark.sql.parquet.{name}", value)
    other.sql(f"OPTIMIZE delta.`{pipeline.path()}`").collect()


def _texts(pipeline: Pipeline, *columns: str) -> list[tuple[Any, ...]]:
    """Spark's texts: Python has no time before the year 1."""
    frame = pipeline.spark.read.format("delta").load(str(pipeline.path()))
    return sorted(map(tuple, frame.selectExpr(*(f"CAST({name} AS string)" for name in columns)).collect()))


@slow
def test_times_of_any_year_stay_exact_in_files_of_the_old_form(pipeline: Pipeline) -> None:
    schema = table_schema(column("at", 1, TIMESTAMPTZ, key=True), column("v", 2, INT4))
    times = [dt.datetime(year, 12, 31, 23, tzinfo=dt.UTC) for year in YEARS]
    pipeline.begin(schema, *({"at": at, "v": 0} for at in times))
    applied = Windows(pipeline)
    applied.apply()
    expected = {f"{year:04}-12-31 23:00:00": "0" for year in YEARS}

    def window(*changes: Change) -> None:
        assert applied.change(*changes).way == CommitWay(DIRECT)

    window(Change("i", {"at": dt.datetime(2000, 1, 1, tzinfo=dt.UTC), "v": 1}))
    _optimized(pipeline, outputTimestampType="INT96")
    window(*(Change("u", {"at": at, "v": 2}) for at in times[:3]))
    expected |= dict.fromkeys(list(expected)[:3], "2") | {"2000-01-01 00:00:00": "1"}
    for day in range(2, 18):
        window(Change("i", {"at": dt.datetime(2000, 1, day, tzinfo=dt.UTC), "v": 1}))
        expected[f"2000-01-{day:02} 00:00:00"] = "1"
    assert applied.table is not None
    assert (applied.table.known_file_count or 99) < 16, "nothing was joined"
    assert _texts(pipeline, "at", "v") == sorted(expected.items())


@slow
@pytest.mark.parametrize("way", [DIRECT, DISTRIBUTED])
def test_days_counted_in_the_julian_calendar_are_left_to_spark(pipeline: Pipeline, way: str) -> None:
    schema = table_schema(column("day", 1, DATE, key=True), column("v", 2, INT4), column("days", 3, DATES))
    days = [dt.date(year, 3, 1) for year in YEARS]
    pipeline.begin(schema, *({"day": day, "v": 0, "days": [day]} for day in days))
    applied = Windows(pipeline, way=way)
    applied.apply()
    applied.change(Change("i", {"day": dt.date(2000, 1, 1), "v": 0}))
    _optimized(pipeline, datetimeRebaseModeInWrite="LEGACY")
    changes = [Change("u", {"day": day, "v": 1}, unchanged=("days",)) for day in days[:3]]
    before = applied.place, applied.state
    pipeline.change(*changes)
    rows = [(str(day), "1" if number < 3 else "0", f"[{day}]") for number, day in enumerate(days)]
    if way == DISTRIBUTED:
        with pytest.raises(ApplyError):
            applied.apply()
        # The error asks the operator to choose another way.
        applied = Windows(pipeline, way=MERGE)
        applied.place, applied.state = before
    assert applied.apply().way.name == MERGE
    assert _texts(pipeline, "day", "v", "days") == sorted([*rows, ("2000-01-01", "0", None)])


@slow
def test_settings_of_spark_under_which_days_and_types_would_differ_are_not_ours(pipeline: Pipeline) -> None:
    schema = table_schema(column("day", 1, DATE, key=True), column("at", 2, TIMESTAMPTZ), column("v", 3, INT4))
    pipeline.begin(schema)
    applied = Windows(pipeline, way=DISTRIBUTED)
    for name, value in (
        ("spark.sql.parquet.datetimeRebaseModeInRead", "LEGACY"),
        ("spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY"),
        ("spark.sql.timestampType", "TIMESTAMP_NTZ"),
    ):
        applied.session.conf.set(name, value)
    session.require(applied.session)
    active = pipeline.spark._jvm.org.apache.spark.sql.SparkSession  # type: ignore[union-attr, unused-ignore]
    active.setActiveSession(applied.session._jsparkSession)
    applied.apply()
    days = [dt.date(year, 3, 1) for year in YEARS]
    for op, v in (("i", 0), ("u", 1)):
        at = dt.datetime(1500, 3, 1, tzinfo=dt.UTC)
        applied.change(*(Change(op, {"day": day, "at": at, "v": v}) for day in days))
    assert _texts(pipeline, "day", "v", "at", "typeof(at)") == [
        (str(day), "1", "1500-03-01 00:00:00", "timestamp") for day in days
    ]


def test_settings_of_spark_under_which_a_truncate_leaves_rows_are_not_ours(pipeline: Pipeline) -> None:
    schema = table_schema(column("id", 1, INT4, key=True), column("part", 2, INT4))
    pipeline.begin(schema, *({"id": number, "part": number % 3} for number in range(6)))
    target = {"kind": "mirror", "layout": {"partition_by": ("part",)}}
    applied = Windows(pipeline, tables={"public.items": {"targets": [target]}})
    applied.apply()
    applied.session.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    session.require(applied.session)
    applied.change(Change("t"), Change("i", {"id": 2, "part": 1}))
    assert pipeline.keys() == [2]


def test_settings_of_spark_under_which_lost_files_count_as_empty_are_not_ours(pipeline: Pipeline) -> None:
    """A step that writes the table anew would make the loss its content."""
    schema = table_schema(column("id", 1, INT4, key=True), column("v", 2, INT4))
    pipeline.begin(schema, {"id": 1, "v": 1})
    applied = Windows(pipeline)
    applied.apply()
    for name in ("spark.sql.files.ignoreMissingFiles", "spark.sql.files.ignoreCorruptFiles"):
        applied.session.conf.set(name, "true")
    session.require(applied.session)
    wider = table_schema(column("id", 1, INT4, key=True), column("v", 2, INT8), version=2)
    assert applied.table is not None
    columns = dict(applied.table.columns())
    shapes = {
        1: Shape(schema, tuple(columns.items())),
        2: Shape(wider, tuple((columns | {"v": "bigint"}).items())),
    }
    for file in pipeline.path().glob("*.parquet"):
        file.unlink()
    with pytest.raises(ApplyError):
        evolve(applied.table, shapes, 2, since=1, keeps_changes=False)


def test_settings_of_spark_under_which_a_merge_says_not_what_it_removed_are_not_ours(pipeline: Pipeline) -> None:
    pipeline.begin(table_schema(column("v", 1, INT4), identity="f"), {"v": 1}, {"v": 1})
    applied = Windows(pipeline)
    applied.apply()
    applied.session.conf.set("spark.databricks.delta.history.metricsEnabled", "false")
    session.require(applied.session)
    applied.change(Change("d", old={"v": 1}))
    assert pipeline.keys(column="v") == [1]

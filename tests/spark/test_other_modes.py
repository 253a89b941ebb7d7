"""Tables without a key, changelogs and schema changes, through the whole applier."""

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice.contract.entries import Changes, Commits
from sluice.errors import WriterFenced
from sluice_spark.lake.changes_to_commit import APP_ID, VERSION
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.lake.table import USER_METADATA, LakeTable
from tests.spark import lake, predicates
from tests.spark.changes import FLOAT8, INT4, INT8, NUMERIC, TEXT, TIMESTAMP, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.spark.model import named
from tests.support.extent import cases, slow

CHANGELOG = {"kind": "changelog"}
ONE_KEY = table_schema(column("id", 1, INT8, key=True))
KEYED = table_schema(column("id", 1, INT8, key=True), column("v", 2, INT4))


@pytest.mark.parametrize(
    ("identity", "options"),
    cases(
        [("d", {}), ("n", {"max_memory_bytes": 400}), ("i", {"max_memory_bytes": 400, "way": "distributed"})],
        quick=[("d", {})],
    ),
)
def test_a_table_without_key_and_full_identity_is_mirrored(
    pipeline: Pipeline, identity: str, options: dict[str, Any]
) -> None:
    """Rows can only be inserted, equal ones too, and all be truncated."""
    pipeline.begin(
        table_schema(column("a", 1, INT4), column("at", 2, TIMESTAMP), identity=identity), {"a": 1}, {"a": 1}
    )
    pipeline.change(Change("i", {"a": 1}), Change("i", {"a": 2}, special={"at": "infinity"}))
    applied = pipeline.applied(**options)
    assert (applied.mode, applied.reason) == ("mirror of whole rows", "")
    assert pipeline.keys(column="a") == [1, 1, 1, 2]
    pipeline.change(Change("i", {"a": 3}), Change("t"), Change("i", {"a": 4}))
    pipeline.change(Change("i", {"a": 4}))
    pipeline.applied(**options)
    assert pipeline.keys(column="a") == [4, 4]
    pipeline.change(Change("t"))
    pipeline.applied(**options)
    assert pipeline.rows() == []


@pytest.mark.parametrize("memory", cases([1 << 28, 1], quick=[1 << 28]))
def test_a_changelog_names_the_origin_of_each_transaction(pipeline: Pipeline, memory: int) -> None:
    pipeline.begin(ONE_KEY, {"id": 0})
    pipeline.change(Change("i", {"id": 1}))
    begun = pipeline.manifest.lsn
    ends = [begun + 10, begun + 20]
    changes = [Change("i", {"id": number}, lsn=end) for number, end in enumerate(ends, start=2)]
    commits = Commits(ends, ends, [7, 8], {1: ("upstream", 2**64 - 1)})
    pipeline.manifest.append(Changes((pipeline.manifest.segment(changes, ONE_KEY),), commits), through_lsn=ends[1])
    pipeline.applied(max_memory_bytes=memory, target=CHANGELOG)
    rows = {one["id"]: (one["_sluice_origin"], one["_sluice_origin_lsn"]) for one in pipeline.rows(metadata=True)}
    assert rows == {0: (None, None), 1: (None, None), 2: (None, None), 3: ("upstream", 2**64 - 1)}


@slow
def test_columns_that_go_change_places_and_come_again_keep_their_own_values(pipeline: Pipeline) -> None:
    first = table_schema(
        *(column("id", 1, INT8, key=True), column("a", 2, TEXT), column("b", 3, TEXT), column("at", 4, TIMESTAMP)),
        column("n", 5, NUMERIC, typmod=4 + (10 << 16) + 2),
    )
    key, _, b, at, n = first.columns
    b, moment, b_again = replace(b, name="a"), replace(at, name="moment"), column("b", 6, TEXT)
    swapped = table_schema(key, b, moment, n, b_again, version=2)
    wide, at_again = column("n", 5, NUMERIC, typmod=4 + (20 << 16) + 2), column("at", 7, TIMESTAMP, missing="infinity")
    last = table_schema(replace(key, name="number"), b, wide, b_again, at_again, version=3)
    old = {"a": "old a", "b": "old b", "at": None, "n": Decimal("1.50")}
    pipeline.begin(first)
    endless = {"at": "infinity"}
    pipeline.change(*(Change("i", {"id": number, **old}, special=endless) for number in (1, 2, 3)))
    pipeline.apply()
    pipeline.evolve(swapped)
    came = Change("i", {"id": 4, "a": "new a", "moment": None, "n": None, "b": "new b"})
    gone = Change("u", {"id": 2, **old, "a": "gone"}, special=endless)
    pipeline.manifest.entry([([gone], first), ([came], swapped)])
    assert pipeline.applied().reason == ""
    assert {one["id"]: (one["a"], one["moment"], one["b"]) for one in pipeline.rows()} == {
        **dict.fromkeys((1, 2, 3), ("old b", "infinity", None)),
        4: ("new a", None, "new b"),
    }
    pipeline.evolve(last)
    large = Decimal("123456789012345.25")
    changed = Change("u", {"number": 4, "a": "x", "n": large, "b": "y", "at": None})
    pipeline.manifest.entry([([Change("d", old={"id": 3})], swapped), ([changed], last)])
    assert pipeline.applied().reason == ""
    assert {one["number"]: (one["a"], one["n"], one["b"], one["at"]) for one in pipeline.rows()} == {
        **dict.fromkeys((1, 2), ("old b", Decimal("1.50"), None, "infinity")),
        4: ("x", large, "y", None),
    }
    assert lake.marker(pipeline.path(), pipeline.store, suffix="/schema") == 3


def test_large_and_small_windows_give_the_same_rows(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    when = dt.datetime(2020, 2, 29, 1, 2, 3, 4)  # noqa: DTZ001 - timestamp without time zone
    pipeline.begin(
        table_schema(column("id", 1, INT8, key=True), column("s", 2, TEXT), column("at", 3, TIMESTAMP)), {"id": 1}
    )
    added = Change("i", {"id": 2, "s": "é", "at": when}), Change("i", {"id": 3}, special={"at": "infinity"})
    pipeline.change(*added, Change("d", old={"id": 1}))
    monkeypatch.setattr("sluice_spark.lake.rows_to_commit.LOCAL_BYTES", 0)
    pipeline.store.put("apply/scratch/left-by-a-killed-process.parquet", b"")
    pipeline.apply()
    assert pipeline.rows() == [{"id": 2, "s": "é", "at": when}, {"id": 3, "s": None, "at": "infinity"}]
    assert list(pipeline.store.list("apply/scratch/")) == []


def test_J01_J02_a_version_is_never_skipped_in_silence_and_never_leaks(spark: SparkSession, tmp_path: Path) -> None:
    session = spark.newSession()
    table = LakeTable(session, str(tmp_path / "t"), app_id="app", before_commit=lambda: None)
    table.write("app", 5, frame=session.range(1), mode="append", new_schema=True)
    with pytest.raises(WriterFenced, match="at 5, at or past 4"):
        table.write("app", 4, frame=session.range(1), mode="append")
    table.execute("app", 6, statement=f"UPDATE {table.expression} SET id = 1")
    assert [session.conf.get(name, None) for name in (APP_ID, VERSION, USER_METADATA)] == [None] * 3
    assert table.examine() == ExaminedVersion(1, 6, seen=True)


def test_an_identity_column_of_any_name_keeps_its_old_value_in_a_changelog(pipeline: Pipeline) -> None:
    """And what was not sent is named."""
    names = ("a` b", "`", "x`: int, `y", "` ", "c,d`>")
    keys = [column(name, place, INT8, key=True) for place, name in enumerate(names, start=1)]
    old, new = dict(zip(names, range(1, 6), strict=True)), dict(zip(names, range(11, 16), strict=True))
    pipeline.begin(table_schema(*keys, column("big", 6, TEXT)), {**old, "big": "b"})
    pipeline.change(Change("u", dict(new), old=old, unchanged=("big",)))
    pipeline.applied(target=CHANGELOG)
    (found,) = (one for one in pipeline.rows(metadata=True) if one["_sluice_op"] == "u")
    assert (found["_sluice_old"], {name: found[name] for name in names}) == (old, new)
    assert (found["_sluice_unchanged"], found["big"]) == ([6], None)


@pytest.mark.parametrize(
    "options",
    cases([{}, {"way": "distributed"}, {"way": "merge"}, {"max_memory_bytes": 1, "way": "direct"}], quick=[{}]),
)
def test_old_rows_of_a_changelog_have_their_values_by_name_when_more_of_them_is_sent(
    pipeline: Pipeline, options: dict[str, Any]
) -> None:
    """The replica identity becomes full within a window, and the key is not the first column."""
    columns = column("a", 1, INT8), column("b", 2, INT8, key=True)
    by_key, whole = table_schema(*columns), table_schema(*columns, identity="f", version=2)
    pipeline.begin(by_key, {"a": 1, "b": 2})
    pipeline.applied(target=CHANGELOG, **options)
    pipeline.change(Change("u", {"a": 1, "b": 20}, old={"b": 2}))
    pipeline.evolve(whole)
    pipeline.change(Change("u", {"a": 5, "b": 20}, old={"a": 1, "b": 20}))
    pipeline.applied(target=CHANGELOG, **options)
    changes = sorted(pipeline.rows(metadata=True), key=lambda one: one["_sluice_lsn"])
    assert [one["_sluice_old"] for one in changes] == [None, {"a": None, "b": 2}, {"a": 1, "b": 20}]


@pytest.mark.parametrize(("before", "after"), [("mirror", "changelog"), ("changelog", "mirror")])
def test_a_changed_mode_stops_the_table_by_name_until_it_is_changed_back_or_resynced(
    pipeline: Pipeline, before: str, after: str
) -> None:
    pipeline.manifest.table(KEYED)
    pipeline.manifest.snapshot([{"id": 1, "v": 1}], KEYED)
    pipeline.change(Change("u", {"id": 1, "v": 2}), schema=KEYED)
    pipeline.apply(mode=before)
    rows, through = pipeline.rows(metadata=True), pipeline.manifest.lsn
    pipeline.change(Change("u", {"id": 1, "v": 3}), schema=KEYED)
    for key in list(pipeline.store.list("apply/")):
        pipeline.store.delete(key)
    for _ in range(2):
        stopped = pipeline.applied(mode=after, state="stale")
        assert 0 < stopped.complete_through_lsn <= through, "without a report only the snapshot is claimed"
        assert f"holds a {before}" in stopped.reason
        assert "sluice resync public.items" in stopped.reason
        assert pipeline.rows(metadata=True) == rows
    pipeline.applied(mode=before)
    assert 3 in pipeline.keys(column="v")
    pipeline.begin(KEYED, {"id": 1, "v": 3}, generation=2)
    pipeline.change(Change("u", {"id": 1, "v": 4}))
    pipeline.applied(mode=after)
    found = [
        (one["_sluice_op"], one["v"]) if after == "changelog" else one["v"] for one in pipeline.rows(metadata=True)
    ]
    assert sorted(found) == ([("i", 3), ("u", 4)] if after == "changelog" else [4])


@pytest.mark.parametrize(
    ("identity", "options", "count"),
    [
        ("d", {}, 4),
        ("f", {}, 2),
        ("f", {"target": CHANGELOG}, 4),
        pytest.param("f", {"max_memory_bytes": 1}, 2, marks=slow),
    ],
)
def test_a_table_without_columns_is_carried(
    pipeline: Pipeline, identity: str, options: dict[str, Any], count: int
) -> None:
    """Its rows are all equal, and there are as many as at the source."""
    pipeline.begin(table_schema(identity=identity), {})
    pipeline.change(Change("i"), Change("i"), Change("d", old={}) if identity == "f" else Change("i"))
    pipeline.applied(**options)
    assert len(pipeline.rows(metadata=True)) == count


def test_a_table_of_which_no_column_is_left_is_stopped_by_name_and_others_go_on(pipeline: Pipeline) -> None:
    """Without its own columns and without ours the Delta table would have no column."""
    pipeline.begin(table_schema(identity="f"), {})
    pipeline.begin(named("others"), {"id": 1})
    tables = pipeline.apply(metadata_columns=False).tables
    assert (tables["16385"].state, tables["16386"].state) == ("stale", "live")
    assert "no column" in tables["16385"].reason


def test_a_merge_that_removes_other_rows_than_were_counted_stops_the_table(pipeline: Pipeline) -> None:
    """Two NaNs of different bits are two rows in the fold and one in a MERGE: ingest writes one of them only."""
    bits = (0x7FF8000000000000, 0xFFF8000000000001)
    one, other = (dict[str, object](f=predicates.nan(some)) for some in bits)
    pipeline.begin(table_schema(column("f", 1, FLOAT8), identity="f"), one, other)
    pipeline.applied()
    pipeline.change(Change("d", old=one), Change("d", old=other))
    reason = pipeline.applied(state="stale").reason
    assert reason == "public.items: a MERGE removed 2 rows of the lake table, but 4 equal ones had been counted"

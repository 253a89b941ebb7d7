"""Tables without a key, changelogs and schema changes, through the whole applier."""

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluice.contract.entries import Changes, Commits
from sluice.contract.schema import TableSchema
from sluice.errors import StoreUnavailable, UsageError, WriterFenced
from sluice.store.opening import open_store
from sluice_spark.lake.commits import APP_ID, VERSION
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.lake.table import USER_METADATA, LakeTable
from sluice_spark.lease import Lease
from sluice_spark.options import ApplyOptions
from tests.spark import lake, predicates
from tests.spark.changes import FLOAT8, INT4, INT4_ARRAY, INT8, NUMERIC, TEXT, TIMESTAMP, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.support.extent import slow


@slow
def test_G05_G06_equal_rows_without_a_key_keep_their_number(pipeline: Pipeline) -> None:
    schema = table_schema(
        column("a", 1, INT4),
        column("f", 2, FLOAT8),
        column("l", 3, INT4_ARRAY),
        column("at", 4, TIMESTAMP),
        identity="f",
    )
    row: dict[str, object] = {"a": 1, "f": -0.0, "l": [1, None], "at": None}
    null: dict[str, object] = {"a": None, "f": 0.0, "l": None, "at": None}
    pipeline.manifest.table(schema)
    pipeline.manifest.snapshot([row, row, row, {**row, "f": 0.0}, null, null], schema)
    pipeline.manifest.transaction(
        [
            Change("d", old=row),
            Change("d", old=null),
            Change("u", {**row, "a": 2}, old=row),
            Change("i", {"a": 9}, special={"at": "infinity"}),
        ],
        schema,
    )
    pipeline.apply()
    rows = pipeline.rows()
    assert sorted((str(item["a"]), str(item["f"]), str(item["at"])) for item in rows) == [
        ("1", "-0.0", "None"),
        ("1", "0.0", "None"),
        ("2", "-0.0", "None"),
        ("9", "None", "infinity"),
        ("None", "0.0", "None"),
    ]
    pipeline.manifest.transaction(
        [Change("d", old={"a": 9}, old_special={"at": "infinity"}), Change("d", old=null)], schema
    )
    assert pipeline.apply().tables["16385"].state == "live"
    assert sorted(str(item["a"]) for item in pipeline.rows()) == ["1", "1", "2"]
    pipeline.manifest.transaction([Change("d", old=null)], schema)
    assert "does not have" in pipeline.apply().tables["16385"].reason


@pytest.mark.parametrize(
    ("identity", "options"),
    [("d", {}), ("n", {"max_memory_bytes": 400}), ("i", {"max_memory_bytes": 400, "way": "distributed"})],
)
def test_a_table_without_key_and_full_identity_is_mirrored(
    pipeline: Pipeline, identity: str, options: dict[str, object]
) -> None:
    """Rows can only be inserted, equal ones too, and all be truncated."""
    schema = table_schema(column("a", 1, INT4), column("at", 2, TIMESTAMP), identity=identity)
    pipeline.manifest.table(schema)
    pipeline.manifest.snapshot([{"a": 1}, {"a": 1}], schema)
    pipeline.manifest.transaction([Change("i", {"a": 1}), Change("i", {"a": 2}, special={"at": "infinity"})], schema)
    applied = pipeline.apply(**options).tables["16385"]
    assert (applied.state, applied.mode, applied.reason) == ("live", "mirror of whole rows", "")
    assert sorted(int(str(row["a"])) for row in pipeline.rows()) == [1, 1, 1, 2]
    pipeline.manifest.transaction([Change("i", {"a": 3}), Change("t"), Change("i", {"a": 4})], schema)
    pipeline.manifest.transaction([Change("i", {"a": 4})], schema)
    assert pipeline.apply(**options).tables["16385"].state == "live"
    assert sorted(int(str(row["a"])) for row in pipeline.rows()) == [4, 4]
    pipeline.manifest.transaction([Change("t")], schema)
    assert pipeline.apply(**options).tables["16385"].state == "live"
    assert pipeline.rows() == []


def test_a_changelog_by_configuration_keeps_old_rows_and_what_was_not_sent(pipeline: Pipeline) -> None:
    schema = table_schema(column("id", 1, INT8, key=True), column("big", 2, TEXT))
    pipeline.manifest.table(schema)
    pipeline.manifest.snapshot([], schema)
    pipeline.manifest.transaction([Change("u", {"id": 2}, old={"id": 1}, unchanged=("big",))], schema)
    pipeline.apply(tables={"public.items": {"targets": [{"kind": "changelog"}]}})
    row = lake.rows_in(pipeline.path(), metadata=True)[0]
    assert (row["_sluice_old"], row["_sluice_unchanged"], row["big"]) == ({"id": 1}, [2], None)


@pytest.mark.parametrize("memory", [1 << 28, 1])
def test_a_changelog_names_the_origin_of_each_transaction(pipeline: Pipeline, memory: int) -> None:
    schema = table_schema(column("id", 1, INT8, key=True))
    pipeline.manifest.table(schema)
    pipeline.manifest.snapshot([{"id": 0}], schema)
    pipeline.manifest.transaction([Change("i", {"id": 1})], schema)
    begun = pipeline.manifest.lsn
    ends = [begun + 10, begun + 20]
    segment = pipeline.manifest.segment(
        [Change("i", {"id": 2}, lsn=ends[0]), Change("i", {"id": 3}, lsn=ends[1])], schema
    )
    pipeline.manifest.append(
        Changes((segment,), Commits(ends, ends, [7, 8], {1: ("upstream", 2**64 - 1)})), through_lsn=ends[1]
    )
    pipeline.apply(max_memory_bytes=memory, tables={"public.items": {"targets": [{"kind": "changelog"}]}})
    rows = {
        row["id"]: (row["_sluice_origin"], row["_sluice_origin_lsn"])
        for row in lake.rows_in(pipeline.path(), metadata=True)
    }
    assert rows == {0: (None, None), 1: (None, None), 2: (None, None), 3: ("upstream", 2**64 - 1)}


def test_a_kind_that_nobody_registered_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="snapshots"):
        ApplyOptions("p", "file:///s", "file:///l", tables={"public.t": {"targets": [{"kind": "snapshots"}]}})


def test_E05_rows_older_than_a_column_get_its_default_once(pipeline: Pipeline) -> None:
    first = table_schema(column("id", 1, INT8, key=True), column("v", 2, INT4))
    second = table_schema(
        *first.columns,
        column("n", 3, INT4, missing="7"),
        column("at", 4, TIMESTAMP, missing="infinity"),
        column("x", 5, TEXT),
        version=2,
    )
    pipeline.manifest.table(first)
    pipeline.manifest.snapshot([{"id": 1, "v": 1}], first)
    pipeline.apply()
    pipeline.manifest.table(second, state="live")
    pipeline.manifest.entry(
        [([Change("i", {"id": 2, "v": 2})], first), ([Change("i", {"id": 3, "v": 3, "n": 8, "x": "y"})], second)]
    )
    pipeline.manifest.transaction([Change("u", {"id": 3, "v": 3, "n": 9})], second)
    pipeline.apply(max_window_bytes=1)
    rows = {row["id"]: (row["n"], row["at"], row["x"]) for row in pipeline.rows()}
    assert rows == {1: (7, "infinity", None), 2: (7, "infinity", None), 3: (9, None, None)}
    assert lake.marker(pipeline.path(), pipeline.store, suffix="/schema") == 2


def test_columns_that_go_change_places_and_come_again_keep_their_own_values(pipeline: Pipeline) -> None:
    first = table_schema(
        column("id", 1, INT8, key=True),
        column("a", 2, TEXT),
        column("b", 3, TEXT),
        column("at", 4, TIMESTAMP),
        column("n", 5, NUMERIC, typmod=4 + (10 << 16) + 2),
    )
    key, _, b, at, n = first.columns
    b, moment = replace(b, name="a"), replace(at, name="moment")
    swapped = table_schema(key, b, moment, n, column("b", 6, TEXT), version=2)
    last = table_schema(
        replace(key, name="number"),
        b,
        column("n", 5, NUMERIC, typmod=4 + (20 << 16) + 2),
        column("b", 6, TEXT),
        column("at", 7, TIMESTAMP, missing="infinity"),
        version=3,
    )
    old = {"a": "old a", "b": "old b", "at": None, "n": Decimal("1.50")}
    pipeline.begin(first)
    endless = {"at": "infinity"}
    pipeline.manifest.transaction([Change("i", {"id": number, **old}, special=endless) for number in (1, 2, 3)], first)
    pipeline.apply()
    pipeline.manifest.table(swapped, state="live")
    pipeline.manifest.entry(
        [
            ([Change("u", {"id": 2, **old, "a": "gone"}, special=endless)], first),
            ([Change("i", {"id": 4, "a": "new a", "moment": None, "n": None, "b": "new b"})], swapped),
        ]
    )
    assert pipeline.apply().tables["16385"].reason == ""
    assert {row["id"]: (row["a"], row["moment"], row["b"]) for row in pipeline.rows()} == {
        1: ("old b", "infinity", None),
        2: ("old b", "infinity", None),
        3: ("old b", "infinity", None),
        4: ("new a", None, "new b"),
    }
    pipeline.manifest.table(last, state="live")
    pipeline.manifest.entry(
        [
            ([Change("d", old={"id": 3})], swapped),
            ([Change("u", {"number": 4, "a": "x", "n": Decimal("123456789012345.25"), "b": "y", "at": None})], last),
        ]
    )
    assert pipeline.apply().tables["16385"].reason == ""
    assert {row["number"]: (row["a"], row["n"], row["b"], row["at"]) for row in pipeline.rows()} == {
        1: ("old b", Decimal("1.50"), None, "infinity"),
        2: ("old b", Decimal("1.50"), None, "infinity"),
        4: ("x", Decimal("123456789012345.25"), "y", None),
    }
    assert lake.marker(pipeline.path(), pipeline.store, suffix="/schema") == 3


def test_large_and_small_windows_give_the_same_rows(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = table_schema(column("id", 1, INT8, key=True), column("s", 2, TEXT), column("at", 3, TIMESTAMP))
    when = dt.datetime(2020, 2, 29, 1, 2, 3, 4)  # noqa: DTZ001 - timestamp without time zone
    changes = [
        Change("i", {"id": 2, "s": "é", "at": when}),
        Change("i", {"id": 3}, special={"at": "infinity"}),
        Change("d", old={"id": 1}),
    ]
    pipeline.manifest.table(schema)
    pipeline.manifest.snapshot([{"id": 1}], schema)
    pipeline.manifest.transaction(changes, schema)
    monkeypatch.setattr("sluice_spark.lake.rows_to_commit.LOCAL_BYTES", 0)
    pipeline.apply()
    assert sorted(pipeline.rows(), key=str) == sorted(
        [{"id": 2, "s": "é", "at": when}, {"id": 3, "s": None, "at": "infinity"}], key=str
    )
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


def test_a_lease_belongs_to_one_and_a_takeover_stops_the_old_owner(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}", prefix="p/", options={})
    now = [1000.0]
    old = Lease(store, seconds=30, wall=lambda: now[0], monotonic=lambda: now[0])

    def pass_by(seconds: float) -> bool:
        now[0] += seconds
        return False

    new = Lease(store, seconds=30, wall=lambda: now[0], monotonic=lambda: now[0], wait=pass_by)
    old._process = replace(old._process, boot="elsewhere")
    old.acquire()
    old.check()
    with pytest.raises(WriterFenced, match="another applier owns"):
        new.acquire()
    now[0] += 31
    with pytest.raises(StoreUnavailable, match="lapsed"):
        old.check()
    new.acquire()
    with pytest.raises(WriterFenced, match="taken this pipeline over"):
        old.renew()
    new.check()


def test_an_identity_column_of_any_name_keeps_its_old_value_in_a_changelog(pipeline: Pipeline) -> None:
    names = ("a` b", "`", "x`: int, `y", "` ", "c,d`>")
    schema = table_schema(*(column(name, place, INT8, key=True) for place, name in enumerate(names, start=1)))
    old, new = dict(zip(names, range(1, 6), strict=True)), dict(zip(names, range(11, 16), strict=True))
    pipeline.manifest.table(schema)
    pipeline.manifest.snapshot([old], schema)
    pipeline.manifest.transaction([Change("u", new, old=old)], schema)
    pipeline.apply(tables={"public.items": {"targets": [{"kind": "changelog"}]}})
    found = {row["_sluice_op"]: row for row in lake.rows_in(pipeline.path(), metadata=True)}
    assert (found["u"]["_sluice_old"], {name: found["u"][name] for name in names}) == (old, new)


@pytest.mark.parametrize(("before", "after"), [("mirror", "changelog"), ("changelog", "mirror")])
def test_a_changed_mode_stops_the_table_by_name_until_it_is_changed_back_or_resynced(
    pipeline: Pipeline, before: str, after: str
) -> None:
    schema = table_schema(column("id", 1, INT8, key=True), column("v", 2, INT4))
    pipeline.manifest.table(schema)
    pipeline.manifest.snapshot([{"id": 1, "v": 1}], schema)
    pipeline.manifest.transaction([Change("u", {"id": 1, "v": 2})], schema)
    pipeline.apply(mode=before)
    rows, through = lake.rows_in(pipeline.path(), metadata=True), pipeline.manifest.lsn
    pipeline.manifest.transaction([Change("u", {"id": 1, "v": 3})], schema)
    for key in list(pipeline.store.list("apply/")):
        pipeline.store.delete(key)
    for _ in range(2):
        stopped = pipeline.apply(mode=after).tables["16385"]
        assert stopped.state == "stale"
        assert 0 < stopped.complete_through_lsn <= through, "without a report only the snapshot is claimed"
        assert f"holds a {before}" in stopped.reason
        assert "sluice resync public.items" in stopped.reason
        assert lake.rows_in(pipeline.path(), metadata=True) == rows
    assert pipeline.apply(mode=before).tables["16385"].state == "live"
    assert 3 in [row["v"] for row in pipeline.rows()]
    pipeline.manifest.table(schema, generation=2, new=False)
    pipeline.manifest.snapshot([{"id": 1, "v": 3}], schema, generation=2)
    pipeline.manifest.transaction([Change("u", {"id": 1, "v": 4})], schema)
    assert pipeline.apply(mode=after).tables["16385"].state == "live"
    found = [
        (row["_sluice_op"], row["v"]) if after == "changelog" else row["v"]
        for row in lake.rows_in(pipeline.path(), metadata=True)
    ]
    assert sorted(found) == ([("i", 3), ("u", 4)] if after == "changelog" else [4])


@pytest.mark.parametrize(
    ("identity", "options", "count"),
    [
        ("d", {}, 4),
        ("f", {}, 2),
        ("f", {"tables": {"public.items": {"targets": [{"kind": "changelog"}]}}}, 4),
        ("f", {"max_memory_bytes": 1}, 2),
    ],
)
def test_a_table_without_columns_is_carried(
    pipeline: Pipeline, identity: str, options: dict[str, object], count: int
) -> None:
    """Its rows are all equal, and there are as many as at the source."""
    schema = table_schema(identity=identity)
    pipeline.manifest.table(schema)
    pipeline.manifest.snapshot([{}], schema)
    pipeline.manifest.transaction(
        [Change("i"), Change("i"), Change("d", old={}) if identity == "f" else Change("i")], schema
    )
    assert pipeline.apply(**options).tables["16385"].state == "live"
    assert len(lake.rows_in(pipeline.path(), metadata=True)) == count


def test_a_table_of_which_no_column_is_left_is_stopped_by_name_and_others_go_on(pipeline: Pipeline) -> None:
    """Without its own columns and without ours the Delta table would have no column."""
    schema, other = (
        table_schema(identity="f"),
        TableSchema("16386", 1, "public", "others", "d", (column("id", 1, INT8, key=True),)),
    )
    for one in (schema, other):
        pipeline.manifest.table(one)
        pipeline.manifest.snapshot([{}] if one is schema else [{"id": 1}], one)
    tables = pipeline.apply(metadata_columns=False).tables
    assert (tables["16385"].state, tables["16386"].state) == ("stale", "live")
    assert "no column" in tables["16385"].reason


def test_a_merge_that_removes_other_rows_than_were_counted_stops_the_table(pipeline: Pipeline) -> None:
    """Two NaNs of different bits are two rows in the fold and one in a MERGE: ingest writes one of them only."""
    schema = table_schema(column("f", 1, FLOAT8), identity="f")
    bits = (0x7FF8000000000000, 0xFFF8000000000001)
    one, other = (dict[str, object](f=predicates.nan(one)) for one in bits)
    pipeline.begin(schema, one, other)
    assert pipeline.apply().tables["16385"].state == "live"
    pipeline.manifest.transaction([Change("d", old=one), Change("d", old=other)], schema)
    reported = pipeline.apply().tables["16385"]
    assert reported.state == "stale"
    assert (
        reported.reason == "public.items: a MERGE removed 2 rows of the lake table, but 4 equal ones had been counted"
    )

"""What a history and a mirror with soft deletes keep when rows are read again, columns change or time passes."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice.contract.entries import REPAIR_ORDINAL, Progress, Repair
from sluice.contract.schema import TableSchema
from sluice_spark.lake import expiring
from sluice_spark.lake.commit_way import DIRECT, DISTRIBUTED, MERGE
from sluice_spark.session import private
from tests.spark import lake
from tests.spark.changes import INT4, INT8, NUMERIC, TEXT, Change, Manifest, column, table_schema
from tests.spark.conftest import Pipeline
from tests.spark.protocol_reader import DeltaFolder
from tests.spark.table_audit import check_files
from tests.spark.windows import Windows
from tests.support.extent import FULL, cases, slow

SCHEMA = table_schema(column("id", 1, INT8, key=True), column("v", 2, INT4), column("big", 3, TEXT))
WAYS = [DIRECT, DISTRIBUTED, MERGE] if FULL else [DIRECT]
HISTORY = {"kind": "history"}
SOFT = {"kind": "mirror", "deletes": "soft"}


def _apply(pipeline: Pipeline, target: dict[str, Any], way: str = DIRECT, *, state: str = "live") -> str:
    row = pipeline.apply(way=way, tables={"public.items": {"targets": [target]}}).tables["16385"]
    assert row.state == state, row.reason
    return str(row.reason)


def _versions(pipeline: Pipeline) -> list[tuple[Any, ...]]:
    """(key, value, from, to) of every version, by key and time."""
    rows = lake.rows_in(pipeline.path(), metadata=True)
    for row in rows:
        assert (row["_sluice_to_lsn"] is None) == row["_sluice_is_current"] == (row["_sluice_valid_to"] is None)
    return sorted((row["id"], row["v"], row["_sluice_from_lsn"], row["_sluice_to_lsn"] or 0) for row in rows)


def _marked(pipeline: Pipeline) -> list[tuple[Any, ...]]:
    """(key, value, deleted at, LSN) of every row."""
    rows = lake.rows_in(pipeline.path(), metadata=True)
    at = [None if row["_sluice_deleted_at"] is None else _micros(row["_sluice_deleted_at"]) for row in rows]
    return sorted(
        ((row["id"], row["v"], when, row["_sluice_lsn"]) for row, when in zip(rows, at, strict=True)),
        key=lambda row: row[0],
    )


def _micros(when: Any) -> int:
    micros: int = round(when.timestamp() * 1_000_000)
    return micros


def _begun(pipeline: Pipeline, target: dict[str, Any], way: str) -> None:
    """Rows 1 to 4 at 100; at 110 row 1 changes and row 2 goes."""
    pipeline.begin(SCHEMA, *({"id": number, "v": number, "big": f"b{number}"} for number in range(1, 5)))
    _apply(pipeline, target, way)
    changes = [Change("u", {"id": 1, "v": 10}, unchanged=("big",)), Change("d", old={"id": 2})]
    pipeline.manifest.transaction(changes, SCHEMA)
    _apply(pipeline, target, way)


def _read_again(pipeline: Pipeline, rows: Iterable[tuple[int, int]], *, generation: int = 2) -> None:
    pipeline.manifest.append(Progress(), through_lsn=pipeline.manifest.lsn + 40)
    pipeline.begin(SCHEMA, *({"id": key, "v": value, "big": f"b{key}"} for key, value in rows), generation=generation)


@pytest.mark.parametrize("way", WAYS)
def test_a_resync_of_a_history_ends_and_begins_versions_only_where_rows_differ(pipeline: Pipeline, way: str) -> None:
    _begun(pipeline, HISTORY, way)
    _read_again(pipeline, [(1, 10), (3, 33), (5, 5)])
    _apply(pipeline, HISTORY, way)
    kept = [(1, 1, 100, 110), (1, 10, 110, 0), (2, 2, 100, 110), (3, 3, 100, 150)]
    assert _versions(pipeline) == [*kept, (3, 33, 150, 0), (4, 4, 100, 150), (5, 5, 150, 0)]
    pipeline.manifest.transaction([Change("u", {"id": 3, "v": 34}, unchanged=("big",))], SCHEMA)
    _apply(pipeline, HISTORY, way)
    assert _versions(pipeline)[4:6] == [(3, 33, 150, 160), (3, 34, 160, 0)]


@pytest.mark.parametrize("way", WAYS)
def test_a_resync_marks_rows_that_went_and_leaves_those_that_were_deleted(pipeline: Pipeline, way: str) -> None:
    _begun(pipeline, SOFT, way)
    _read_again(pipeline, [(1, 10), (3, 33), (5, 5)])
    _apply(pipeline, SOFT, way)
    living = [(1, 10, None, 150), (3, 33, None, 150), (5, 5, None, 150)]
    assert _marked(pipeline) == sorted([*living, (2, 2, 110, 110), (4, 4, 150, 150)])


@pytest.mark.parametrize("target", [HISTORY, pytest.param(SOFT, marks=slow)], ids=["history", "soft"])
def test_what_somebody_else_did_to_past_rows_does_not_outlive_a_resync(
    pipeline: Pipeline, spark: SparkSession, target: dict[str, Any]
) -> None:
    _begun(pipeline, target, DIRECT)
    read = _versions if target is HISTORY else _marked
    before = read(pipeline)
    table = f"delta.`{pipeline.path()}`"
    foreign = private(spark)
    foreign.sql(f"UPDATE {table} SET v = v + 1000 WHERE id = 1")
    foreign.sql(f"OPTIMIZE {table}")
    foreign.sql(f"DELETE FROM {table} WHERE id = 2")
    assert "somebody else changed" in _apply(pipeline, target, state="stale")
    _read_again(pipeline, [(1, 10), (3, 3), (4, 4)])
    _apply(pipeline, target)
    assert [row[:3] for row in read(pipeline)] == [row[:3] for row in before]
    # The commits of others are behind it now.
    pipeline.manifest.transaction([Change("u", {"id": 3, "v": 34}, unchanged=("big",))], SCHEMA)
    _apply(pipeline, target)
    _read_again(pipeline, [(1, 10), (3, 34), (4, 4)], generation=3)
    kept = read(pipeline)
    _apply(pipeline, target)
    assert [row[:3] for row in read(pipeline)] == [row[:3] for row in kept]


@pytest.mark.parametrize("target", [HISTORY, SOFT])
def test_a_property_that_was_set_is_no_change_of_rows_that_a_resync_passes_by(
    pipeline: Pipeline, spark: SparkSession, target: dict[str, Any]
) -> None:
    read = _versions if target is HISTORY else _marked
    target = {**target, "layout": {"properties": (("team", "shop"),)}}
    _begun(pipeline, {**target, "layout": {}}, DIRECT)
    pipeline.manifest.transaction([Change("u", {"id": 3, "v": 30}, unchanged=("big",))], SCHEMA)
    _apply(pipeline, target)
    before = read(pipeline)
    table, foreign = f"delta.`{pipeline.path()}`", private(spark)
    assert foreign.sql(f"SHOW TBLPROPERTIES {table} ('team')").first() == ("team", "shop")
    # Files of the version before are not there any more.
    foreign.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    foreign.sql(f"OPTIMIZE {table}")
    foreign.sql(f"VACUUM {table} RETAIN 0 HOURS")
    _read_again(pipeline, [(1, 10), (3, 30), (4, 4)])
    _apply(pipeline, target)
    assert [row[:3] for row in read(pipeline)] == [row[:3] for row in before]


def _with_other_columns(pipeline: Pipeline, schema: TableSchema, rows: list[dict[str, Any]]) -> None:
    """The table is read again because of what was done to its columns."""
    pipeline.manifest.append(Progress(), through_lsn=pipeline.manifest.lsn + 40)
    pipeline.manifest.table(schema, generation=2)
    pipeline.manifest.snapshot(rows, schema, generation=2)
    pipeline.manifest.table(schema, state="live", generation=2, new=False)


@pytest.mark.parametrize("target", [HISTORY, SOFT], ids=["history", "soft"])
def test_columns_that_were_renamed_before_a_resync_keep_their_values(
    pipeline: Pipeline, target: dict[str, Any]
) -> None:
    _begun(pipeline, target, DIRECT)
    identity, value, _ = SCHEMA.columns
    after = table_schema(identity, replace(value, name="w"), column("more", 4, INT4, missing="7"), version=2)
    rows = [{"id": key, "w": number, "more": 7} for key, number in ((1, 10), (3, 33))]
    _with_other_columns(pipeline, after, rows)
    _apply(pipeline, target)
    found = lake.rows_in(pipeline.path(), metadata=True)
    assert not {"v", "big"} & found[0].keys()
    before = {(1, 1), (1, 10), (2, 2), (3, 3), (4, 4)} if target is HISTORY else {(1, 10), (2, 2), (4, 4)}
    assert {(row["id"], row["w"]) for row in found} == before | {(3, 33)}
    assert {row["more"] for row in found} == {7}


@pytest.mark.parametrize("target", [HISTORY, SOFT], ids=["history", "soft"])
def test_a_column_of_another_type_stops_the_table_by_its_name_and_keeps_its_rows(
    pipeline: Pipeline, target: dict[str, Any]
) -> None:
    exact = table_schema(column("id", 1, INT4, key=True), column("n", 2, NUMERIC, typmod=(10 << 16 | 2) + 4))
    pipeline.begin(exact, {"id": 1, "n": Decimal("1.25")})
    _apply(pipeline, target)
    identity, number = exact.columns
    cut = table_schema(identity, column("n", 2, NUMERIC, typmod=(10 << 16 | 1) + 4), version=2)
    assert cut.columns[1].lake.sql != number.lake.sql
    _with_other_columns(pipeline, cut, [{"id": 1, "n": Decimal("1.3")}])
    assert "'n' is decimal(10,1) now and decimal(10,2)" in _apply(pipeline, target, state="stale")
    assert [row["n"] for row in lake.rows_in(pipeline.path())] == [Decimal("1.25")]


def test_columns_that_exchanged_their_names_before_a_resync_stop_the_table(pipeline: Pipeline) -> None:
    schema = table_schema(column("id", 1, INT4, key=True), column("a", 2, INT4), column("b", 3, INT4))
    pipeline.begin(schema, {"id": 1, "a": 1, "b": 2})
    _apply(pipeline, HISTORY)
    identity, a, b = schema.columns
    after = table_schema(identity, replace(a, name="b"), replace(b, name="a"), version=2)
    _with_other_columns(pipeline, after, [{"id": 1, "a": 2, "b": 1}])
    assert "columns exchanged their names" in _apply(pipeline, HISTORY, state="stale")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "target", [{"kind": "mirror"}, HISTORY, SOFT, {"kind": "changelog"}], ids=lambda one: len(str(one))
)
def test_a_large_value_that_was_not_sent_of_a_column_that_is_dropped_later_in_a_window_is_nobodys(
    pipeline: Pipeline, target: dict[str, Any], way: str
) -> None:
    rows: list[dict[str, Any]] = [{"id": number, "v": number, "big": f"b{number}"} for number in (1, 2)]
    pipeline.begin(SCHEMA, *rows)
    _apply(pipeline, target, way)
    identity, value, _ = SCHEMA.columns
    dropped = table_schema(identity, value, version=2)
    again = table_schema(identity, value, column("big", 4, TEXT), version=3)
    pipeline.manifest.table(dropped, state="live")
    pipeline.manifest.table(again, state="live")
    pipeline.manifest.entry(
        [
            ([Change("u", {"id": 1, "v": 10}, unchanged=("big",))], SCHEMA),
            ([Change("u", {"id": 2, "v": 20})], dropped),
            ([Change("u", {"id": 2, "v": 21}, unchanged=("big",))], again),
        ]
    )
    _apply(pipeline, target, way)
    living = [
        row
        for row in lake.rows_in(pipeline.path(), metadata=True)
        if row.get("_sluice_is_current", True) and row.get("_sluice_op", "u") == "u"
    ]
    assert {(row["id"], row["v"], row["big"]) for row in living} - {(2, 20, None)} == {(1, 10, None), (2, 21, None)}


@pytest.mark.parametrize("target", [HISTORY, SOFT], ids=["history", "soft"])
def test_a_name_that_passed_to_a_new_column_before_a_resync_keeps_its_values_apart(
    pipeline: Pipeline, target: dict[str, Any]
) -> None:
    rows: list[dict[str, Any]] = [{"id": number, "v": number, "big": f"b{number}"} for number in (1, 2)]
    pipeline.begin(SCHEMA, *rows)
    _apply(pipeline, target)
    identity, value, _ = SCHEMA.columns
    again = table_schema(identity, value, column("big", 4, TEXT), version=2)
    pipeline.manifest.table(again, state="live")
    pipeline.manifest.entry([([Change("u", {"id": 1, "v": 1, "big": "new"}), Change("d", old={"id": 2})], again)])
    _apply(pipeline, target)
    renamed = table_schema(identity, value, column("large", 4, TEXT), version=3)
    _with_other_columns(pipeline, renamed, [{"id": 1, "v": 1, "large": "new"}])
    _apply(pipeline, target)
    found = [(row["id"], row["large"]) for row in lake.rows_in(pipeline.path(), metadata=True)]
    assert Counter(found) == Counter([(1, "new"), (2, None)] + ([(1, None)] if target is HISTORY else []))


@pytest.mark.parametrize("target", [HISTORY, SOFT], ids=["history", "soft"])
def test_rows_that_a_new_key_makes_one_live_once_after_a_resync(pipeline: Pipeline, target: dict[str, Any]) -> None:
    first, second, value = column("a", 1, INT4, key=True), column("b", 2, INT4, key=True), column("v", 3, INT4)
    rows: list[dict[str, Any]] = [{"a": 1, "b": b, "v": b} for b in (1, 2, 3)]
    pipeline.begin(table_schema(first, second, value), *rows)
    _apply(pipeline, target)
    after = table_schema(first, column("b", 2, INT4), value, version=2)
    _with_other_columns(pipeline, after, [{"a": 1, "b": 2, "v": 2}])
    _apply(pipeline, target)
    rows = lake.rows_in(pipeline.path(), metadata=True)
    lives = "_sluice_is_current" if target is HISTORY else "_sluice_deleted_at"
    assert [(row["a"], row["b"]) for row in rows if row[lives] in (True, None)] == [(1, 2)]
    if target is HISTORY:
        ended = sorted(row["b"] for row in rows if not row[lives])
        assert ended in ([1, 3], [1, 2, 3]), "versions were lost or doubled"


@pytest.mark.parametrize("lsn", [100, 150])
def test_a_history_goes_on_at_another_server_only_where_positions_are_later(pipeline: Pipeline, lsn: int) -> None:
    """As after a recovery to a point in time, or a move of the database: the pipeline is a new one over the lake."""
    _begun(pipeline, HISTORY, DIRECT)
    before = _versions(pipeline)
    for key in list(pipeline.store.list("")):
        pipeline.store.delete(key)
    pipeline.manifest = Manifest(pipeline.store, origin="none")
    pipeline.manifest.append(Progress(), through_lsn=lsn)
    pipeline.begin(SCHEMA, {"id": 1, "v": 11, "big": "b1"})
    if lsn > 110:
        _apply(pipeline, HISTORY)
        assert _versions(pipeline)[1:3] == [(1, 10, 110, lsn), (1, 11, lsn, 0)]
    else:
        assert "0/6E, and the snapshot was read at 0/64" in _apply(pipeline, HISTORY, state="stale")
        assert _versions(pipeline) == before


def test_a_resync_that_finds_no_row_keeps_all_that_were_there(pipeline: Pipeline) -> None:
    _begun(pipeline, HISTORY, DIRECT)
    _read_again(pipeline, [])
    _apply(pipeline, HISTORY)
    assert [version[3] for version in _versions(pipeline)] == [110, 150, 110, 150, 150]


@pytest.mark.parametrize("target", [HISTORY, SOFT], ids=["history", "soft"])
def test_rows_that_are_read_again_change_only_what_differs(pipeline: Pipeline, target: dict[str, Any]) -> None:
    _begun(pipeline, target, DIRECT)
    manifest = pipeline.manifest
    manifest.append(Progress(), through_lsn=manifest.lsn + 10)
    rows = [("u", 1, 10), ("u", 3, 30), ("u", 6, 6)]
    changes = [
        Change(op, {"id": key, "v": value, "big": f"b{key}"}, lsn=manifest.lsn, ordinal=REPAIR_ORDINAL + place)
        for place, (op, key, value) in enumerate(rows)
    ]
    changes += [Change("d", old={"id": key}, lsn=manifest.lsn, ordinal=REPAIR_ORDINAL + 10 + key) for key in (2, 4)]
    segment = manifest.segment(changes, SCHEMA)
    manifest.append(Repair("16385", 1, 1, manifest.lsn, manifest.lsn, (segment,)))
    _apply(pipeline, target)
    if target is HISTORY:
        kept = [(1, 1, 100, 110), (1, 10, 110, 0), (2, 2, 100, 110), (3, 3, 100, 120), (3, 30, 120, 0)]
        assert _versions(pipeline) == [*kept, (4, 4, 100, 120), (6, 6, 120, 0)]
    else:
        living = [(1, 10, None, 120), (3, 30, None, 120), (6, 6, None, 120)]
        assert _marked(pipeline) == sorted([*living, (2, 2, 110, 110), (4, 4, 120, 120)])


@pytest.mark.parametrize("target", [HISTORY, SOFT], ids=["history", "soft"])
def test_a_table_without_a_key_is_refused_with_what_to_do(pipeline: Pipeline, target: dict[str, Any]) -> None:
    keyless = table_schema(column("v", 1, INT4), identity="f")
    pipeline.begin(keyless, {"v": 1})
    reason = _apply(pipeline, target, state="stale")
    assert "needs a key" in reason
    assert "primary key" in reason


def test_a_history_that_tracks_an_unknown_column_is_refused_by_its_name(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, {"id": 1})
    assert "'status'" in _apply(pipeline, {"kind": "history", "track": ["status"]}, state="stale")


@pytest.mark.parametrize("name", ["v", "w"])
def test_a_tracked_column_is_known_by_its_number_when_its_name_changes(pipeline: Pipeline, name: str) -> None:
    target = {"kind": "history", "track": [name]}
    identity, value, big = SCHEMA.columns
    pipeline.begin(SCHEMA, {"id": 1, "v": 1, "big": "b"})
    pipeline.manifest.transaction([Change("u", {"id": 1, "v": 2}, unchanged=("big",))], SCHEMA)
    after = table_schema(identity, replace(value, name="w"), big, version=2)
    pipeline.manifest.table(after, state="live")
    for number, text in ((2, "other"), (3, "other")):
        pipeline.manifest.transaction([Change("u", {"id": 1, "w": number, "big": text})], after)
    row = pipeline.apply(max_window_bytes=1, tables={"public.items": {"targets": [target]}}).tables["16385"]
    assert row.state == "live", row.reason
    rows = lake.rows_in(pipeline.path(), metadata=True)
    assert sorted((row["w"], row["big"]) for row in rows) == [(1, "b"), (2, "other"), (3, "other")]


def test_a_tracked_name_means_each_column_that_had_it_also_when_the_applier_is_late(pipeline: Pipeline) -> None:
    target = {"kind": "history", "track": ["v"]}
    identity, value, big = SCHEMA.columns
    pipeline.begin(SCHEMA, {"id": 1, "v": 1, "big": "b"})
    pipeline.manifest.transaction([Change("u", {"id": 1, "v": 2}, unchanged=("big",))], SCHEMA)
    after = table_schema(identity, replace(value, name="before"), big, column("v", 4, INT4), version=2)
    pipeline.manifest.table(after, state="live")
    for before, now in ((2, 5), (2, 6), (3, 6)):
        changed = {"id": 1, "before": before, "v": now}
        pipeline.manifest.transaction([Change("u", changed, unchanged=("big",))], after)
    row = pipeline.apply(max_window_bytes=1, tables={"public.items": {"targets": [target]}}).tables["16385"]
    assert row.state == "live", row.reason
    rows = lake.rows_in(pipeline.path(), metadata=True)
    assert sorted((row["before"], row["v"] or 0) for row in rows) == [(1, 0), (2, 0), (2, 5), (2, 6), (3, 6)]


def test_a_history_is_made_from_before_the_column_that_it_tracks_was_added(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, {"id": 1, "v": 1, "big": "b"})
    pipeline.manifest.transaction([Change("u", {"id": 1, "v": 2}, unchanged=("big",))], SCHEMA)
    after = table_schema(*SCHEMA.columns, column("more", 4, INT4, missing="7"), version=2)
    pipeline.manifest.table(after, state="live")
    pipeline.manifest.transaction([Change("u", {"id": 1, "v": 3, "more": 8}, unchanged=("big",))], after)
    target = {"kind": "history", "track": ["more"]}
    row = pipeline.apply(max_window_bytes=1, tables={"public.items": {"targets": [target]}}).tables["16385"]
    assert row.state == "live", row.reason
    rows = lake.rows_in(pipeline.path(), metadata=True)
    assert sorted((row["v"], row["more"]) for row in rows) == [(2, 7), (3, 8)]


def test_versions_keep_the_values_of_a_renamed_column_and_have_the_default_of_a_later_one(pipeline: Pipeline) -> None:
    _begun(pipeline, HISTORY, DIRECT)
    identity, value, big = SCHEMA.columns
    after = table_schema(identity, replace(value, name="w"), big, column("more", 4, INT4, missing="7"), version=2)
    pipeline.manifest.table(after, state="live")
    pipeline.manifest.transaction([Change("u", {"id": 1, "w": 10, "more": 8}, unchanged=("big",))], after)
    _apply(pipeline, HISTORY)
    rows = sorted(
        (row["id"], row["w"], row["more"], row["big"]) for row in lake.rows_in(pipeline.path(), metadata=True)
    )
    assert rows == [
        (1, 1, 7, "b1"),
        (1, 10, 7, "b1"),
        (1, 10, 8, "b1"),
        (2, 2, 7, "b2"),
        (3, 3, 7, "b3"),
        (4, 4, 7, "b4"),
    ]


def test_rows_that_were_deleted_long_enough_ago_go_and_no_others(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiring, "SHORTEST_TURN_SECONDS", 0.001)
    _begun(pipeline, {**SOFT, "soft_delete_retention": 0.01}, DIRECT)
    assert [row[0] for row in _marked(pipeline)] == [1, 3, 4]
    pipeline.manifest.transaction([Change("i", {"id": 2, "v": 5})], SCHEMA)
    _apply(pipeline, SOFT)
    assert [row[0] for row in _marked(pipeline)] == [1, 2, 3, 4]


def test_rows_go_under_a_retention_that_was_made_longer(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiring, "SHORTEST_TURN_SECONDS", 0.001)
    monkeypatch.setattr(expiring, "LONGEST_TURN_SECONDS", 0.05)
    _begun(pipeline, {**SOFT, "soft_delete_retention": 0.01}, DIRECT)
    pipeline.manifest.transaction([Change("d", old={"id": 3})], SCHEMA)
    _apply(pipeline, {**SOFT, "soft_delete_retention": 1000.0})
    assert [row[0] for row in _marked(pipeline)] == [1, 4]


def test_the_other_kinds_of_tables_are_recognised_by_their_columns(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, {"id": 1})
    _apply(pipeline, SOFT)
    for target, held in ((HISTORY, "history"), ({"kind": "mirror"}, "mirror")):
        assert held in _apply(pipeline, target, state="stale")
    _apply(pipeline, SOFT)


def _rows_of(session: SparkSession, pipeline: Pipeline, version: int) -> Counter[tuple[Any, ...]]:
    frame = session.read.format("delta").option("versionAsOf", version).load(str(pipeline.path()))
    return Counter(tuple(row) for row in frame.collect())


def _feed_of(session: SparkSession, pipeline: Pipeline, versions: range) -> dict[int, Counter[tuple[Any, ...]]]:
    """How often each row came (less how often it went) in each version, as readers of changes see it."""
    reader = session.read.format("delta").option("readChangeFeed", "true")
    span = reader.option("startingVersion", versions[0]).option("endingVersion", versions[-1])
    found: dict[int, Counter[tuple[Any, ...]]] = {version: Counter() for version in versions}
    for row in span.load(str(pipeline.path())).drop("_commit_timestamp").collect():
        sign = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}[row["_change_type"]]
        values = tuple(row[name] for name in row.__fields__ if not name.startswith(("_change", "_commit")))
        found[row["_commit_version"]][values] += sign
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "way"),
    cases(
        product(("history", "soft"), (DIRECT, DISTRIBUTED, MERGE)), quick=[("history", DIRECT), ("soft", DISTRIBUTED)]
    ),
)
def test_readers_of_changes_see_which_versions_came_and_went(pipeline: Pipeline, way: str, kind: str) -> None:
    target = {"history": HISTORY, "soft": SOFT}[kind]
    windows = Windows(pipeline, way=way, tables={"public.items": {"targets": [target]}})
    pipeline.begin(SCHEMA, *({"id": number, "v": number, "big": f"b{number}"} for number in range(1, 30)))
    windows.apply()
    session = windows.session
    both = "'delta.enableRowTracking' = 'true', 'delta.enableChangeDataFeed' = 'true'"
    session.sql(f"ALTER TABLE delta.`{pipeline.path()}` SET TBLPROPERTIES ({both})")
    first = DeltaFolder(pipeline.path()).versions()[-1]
    for turn in range(2):
        keys = range(1 + turn, 20, 2)
        changes = [Change("u", {"id": key, "v": 100 * turn + key}, unchanged=("big",)) for key in keys if key % 3]
        changes += [Change("d", old={"id": 20 + turn}), Change("i", {"id": 40 + turn, "v": 1, "big": "new"})]
        pipeline.manifest.transaction(changes, SCHEMA)
        applied = windows.apply()
        assert applied.way.name == way, applied.way
        state = DeltaFolder(pipeline.path()).state()
        check_files(state)
        numbers = [number for number, _, _ in state.tracked_rows()]
        assert len(set(numbers)) == len(numbers), "two rows have one id"
    versions = range(first + 1, DeltaFolder(pipeline.path()).versions()[-1] + 1)
    assert len(versions) >= 2
    feed, before = _feed_of(session, pipeline, versions), _rows_of(session, pipeline, first)
    for version in versions:
        rows = _rows_of(session, pipeline, version)
        net = Counter(rows)
        net.subtract(before)
        before = rows
        assert {row: count for row, count in feed[version].items() if count} == {
            row: count for row, count in net.items() if count
        }

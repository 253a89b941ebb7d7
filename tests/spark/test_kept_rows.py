"""What a history and a mirror with soft deletes keep when rows are read again, columns change or time passes."""

from collections import Counter
from dataclasses import replace
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice.contract.entries import REPAIR_ORDINAL, Repair
from sluice.contract.schema import TableSchema
from sluice_spark.lake import expiring
from sluice_spark.lake.commit_way import DIRECT, DISTRIBUTED, MERGE
from sluice_spark.session import private
from tests.spark.changes import FLOAT8, INT4, INT8, NUMERIC, TEXT, Change, Manifest, column, table_schema
from tests.spark.conftest import Pipeline
from tests.spark.model import ID
from tests.spark.protocol_reader import DeltaFolder
from tests.spark.table_audit import check_files
from tests.spark.windows import Windows
from tests.support.extent import FULL, cases, slow

SCHEMA = table_schema(column("id", 1, INT8, key=True), column("v", 2, INT4), column("big", 3, TEXT))
IDENTITY, VALUE, BIG = SCHEMA.columns
MORE = column("more", 4, INT4, missing="7")
RENAMED = replace(VALUE, name="w")
WAYS = [DIRECT, DISTRIBUTED, MERGE] if FULL else [DIRECT]
HISTORY = {"kind": "history"}
SOFT = {"kind": "mirror", "deletes": "soft"}
KINDS = {"history": HISTORY, "soft": SOFT}
keeping = pytest.mark.parametrize("target", cases(KINDS.values(), quick=[HISTORY]), ids=KINDS)


def _row(key: int, value: int, **more: object) -> dict[str, object]:
    return {"id": key, "v": value, "big": f"b{key}", **more}


def _kept(key: int, value: int, name: str = "v", **more: object) -> Change:
    """An update that does not send the large value."""
    return Change("u", {"id": key, name: value, **more}, unchanged=("big",))


def _versions(pipeline: Pipeline) -> list[tuple[Any, ...]]:
    """(key, value, from, to) of every version, by key and time."""
    rows = pipeline.rows(metadata=True)
    for row in rows:
        assert (row["_sluice_to_lsn"] is None) == row["_sluice_is_current"] == (row["_sluice_valid_to"] is None)
    return sorted((row["id"], row["v"], row["_sluice_from_lsn"], row["_sluice_to_lsn"] or 0) for row in rows)


def _marked(pipeline: Pipeline) -> list[tuple[Any, ...]]:
    """(key, value, deleted at, LSN) of every row."""
    rows = pipeline.rows(metadata=True)
    at = [None if row["_sluice_deleted_at"] is None else _micros(row["_sluice_deleted_at"]) for row in rows]
    return sorted(
        ((row["id"], row["v"], when, row["_sluice_lsn"]) for row, when in zip(rows, at, strict=True)),
        key=lambda row: row[0],
    )


def _micros(when: Any) -> int:
    micros: int = round(when.timestamp() * 1_000_000)
    return micros


def _values(pipeline: Pipeline, target: dict[str, Any]) -> list[tuple[Any, ...]]:
    """(key, value, until) of all that is kept."""
    return [row[:3] for row in (_versions if target["kind"] == "history" else _marked)(pipeline)]


def _begun(pipeline: Pipeline, target: dict[str, Any], way: str = DIRECT) -> None:
    """Rows 1 to 4 at 100; at 110 row 1 changes and row 2 goes."""
    pipeline.begin(SCHEMA, *(_row(number, number) for number in range(1, 5)))
    pipeline.applied(target=target, way=way)
    pipeline.change(_kept(1, 10), Change("d", old={"id": 2}))
    pipeline.applied(target=target, way=way)


def _read_again(pipeline: Pipeline, *rows: tuple[int, int], generation: int = 2) -> None:
    pipeline.begin_again(SCHEMA, *(_row(*row) for row in rows), generation=generation)


@pytest.mark.parametrize("way", WAYS)
def test_a_resync_of_a_history_ends_and_begins_versions_only_where_rows_differ(pipeline: Pipeline, way: str) -> None:
    _begun(pipeline, HISTORY, way)
    _read_again(pipeline, (1, 10), (3, 33), (5, 5))
    pipeline.applied(target=HISTORY, way=way)
    kept = [(1, 1, 100, 110), (1, 10, 110, 0), (2, 2, 100, 110), (3, 3, 100, 150)]
    assert _versions(pipeline) == [*kept, (3, 33, 150, 0), (4, 4, 100, 150), (5, 5, 150, 0)]
    pipeline.change(_kept(3, 34))
    pipeline.applied(target=HISTORY, way=way)
    assert _versions(pipeline)[4:6] == [(3, 33, 150, 160), (3, 34, 160, 0)]


@pytest.mark.parametrize("way", WAYS)
def test_a_resync_marks_rows_that_went_and_leaves_those_that_were_deleted(pipeline: Pipeline, way: str) -> None:
    _begun(pipeline, SOFT, way)
    _read_again(pipeline, (1, 10), (3, 33), (5, 5))
    pipeline.applied(target=SOFT, way=way)
    living = [(1, 10, None, 150), (3, 33, None, 150), (5, 5, None, 150)]
    assert _marked(pipeline) == sorted([*living, (2, 2, 110, 110), (4, 4, 150, 150)])


@slow
@pytest.mark.parametrize("target", [HISTORY, SOFT], ids=["history", "soft"])
def test_what_somebody_else_did_to_past_rows_does_not_outlive_a_resync(
    pipeline: Pipeline, spark: SparkSession, target: dict[str, Any]
) -> None:
    _begun(pipeline, target)
    before = _values(pipeline, target)
    foreign = private(spark)
    for statement in ("UPDATE {t} SET v = v + 1000 WHERE id = 1", "OPTIMIZE {t}", "DELETE FROM {t} WHERE id = 2"):
        pipeline.sql(statement, session=foreign)
    assert "somebody else changed" in pipeline.applied(target=target, state="stale").reason
    _read_again(pipeline, (1, 10), (3, 3), (4, 4))
    pipeline.applied(target=target)
    assert _values(pipeline, target) == before
    # The commits of others are behind it now.
    pipeline.change(_kept(3, 34))
    pipeline.applied(target=target)
    _read_again(pipeline, (1, 10), (3, 34), (4, 4), generation=3)
    kept = _values(pipeline, target)
    pipeline.applied(target=target)
    assert _values(pipeline, target) == kept


@slow
@keeping
def test_a_property_that_was_set_is_no_change_of_rows_that_a_resync_passes_by(
    pipeline: Pipeline, spark: SparkSession, target: dict[str, Any]
) -> None:
    _begun(pipeline, target)
    target = {**target, "layout": {"properties": (("team", "shop"),)}}
    pipeline.change(_kept(3, 30))
    pipeline.applied(target=target)
    before = _values(pipeline, target)
    foreign = private(spark)
    assert pipeline.sql("SHOW TBLPROPERTIES {t} ('team')", session=foreign) == [("team", "shop")]
    # Files of the version before are not there any more.
    pipeline.sql("OPTIMIZE {t}", session=foreign)
    pipeline.sql("VACUUM {t} RETAIN 0 HOURS", session=foreign)
    _read_again(pipeline, (1, 10), (3, 30), (4, 4))
    pipeline.applied(target=target)
    assert _values(pipeline, target) == before


@keeping
def test_columns_that_were_renamed_before_a_resync_keep_their_values(
    pipeline: Pipeline, target: dict[str, Any]
) -> None:
    _begun(pipeline, target)
    after = table_schema(IDENTITY, RENAMED, MORE, version=2)
    pipeline.begin_again(after, *({"id": key, "w": number, "more": 7} for key, number in ((1, 10), (3, 33))), new=True)
    pipeline.applied(target=target)
    found = pipeline.rows(metadata=True)
    assert not {"v", "big"} & found[0].keys()
    before = {(1, 1), (1, 10), (2, 2), (3, 3), (4, 4)} if target is HISTORY else {(1, 10), (2, 2), (4, 4)}
    assert {(row["id"], row["w"]) for row in found} == before | {(3, 33)}
    assert {row["more"] for row in found} == {7}


@keeping
def test_a_column_of_another_type_stops_the_table_by_its_name_and_keeps_its_rows(
    pipeline: Pipeline, target: dict[str, Any]
) -> None:
    identity = column("id", 1, INT4, key=True)
    exact, cut = (
        table_schema(identity, column("n", 2, NUMERIC, typmod=(10 << 16 | scale) + 4), version=version)
        for version, scale in ((1, 2), (2, 1))
    )
    pipeline.begin(exact, {"id": 1, "n": Decimal("1.25")})
    pipeline.applied(target=target)
    pipeline.begin_again(cut, {"id": 1, "n": Decimal("1.3")}, new=True)
    assert "'n' is decimal(10,1) now and decimal(10,2)" in pipeline.applied(target=target, state="stale").reason
    assert pipeline.keys(column="n") == [Decimal("1.25")]


def test_columns_that_exchanged_their_names_before_a_resync_stop_the_table(pipeline: Pipeline) -> None:
    identity, a, b = column("id", 1, INT4, key=True), column("a", 2, INT4), column("b", 3, INT4)
    pipeline.begin(table_schema(identity, a, b), {"id": 1, "a": 1, "b": 2})
    pipeline.applied(target=HISTORY)
    after = table_schema(identity, replace(a, name="b"), replace(b, name="a"), version=2)
    pipeline.begin_again(after, {"id": 1, "a": 2, "b": 1}, new=True)
    assert "columns exchanged their names" in pipeline.applied(target=HISTORY, state="stale").reason


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "target",
    cases([{"kind": "mirror"}, HISTORY, SOFT, {"kind": "changelog"}], quick=[HISTORY]),
    ids=lambda one: len(str(one)),
)
def test_a_large_value_that_was_not_sent_of_a_column_that_is_dropped_later_in_a_window_is_nobodys(
    pipeline: Pipeline, target: dict[str, Any], way: str
) -> None:
    pipeline.begin(SCHEMA, _row(1, 1), _row(2, 2))
    pipeline.applied(target=target, way=way)
    dropped = table_schema(IDENTITY, VALUE, version=2)
    again = table_schema(IDENTITY, VALUE, column("big", 4, TEXT), version=3)
    for schema in (dropped, again):
        pipeline.evolve(schema)
    pipeline.manifest.entry(
        [([_kept(1, 10)], SCHEMA), ([Change("u", {"id": 2, "v": 20})], dropped), ([_kept(2, 21)], again)]
    )
    pipeline.applied(target=target, way=way)
    living = [
        row
        for row in pipeline.rows(metadata=True)
        if row.get("_sluice_is_current", True) and row.get("_sluice_op", "u") == "u"
    ]
    assert {(row["id"], row["v"], row["big"]) for row in living} - {(2, 20, None)} == {(1, 10, None), (2, 21, None)}


@slow
@keeping
def test_a_name_that_passed_to_a_new_column_before_a_resync_keeps_its_values_apart(
    pipeline: Pipeline, target: dict[str, Any]
) -> None:
    pipeline.begin(SCHEMA, _row(1, 1), _row(2, 2))
    pipeline.applied(target=target)
    again, renamed = (
        table_schema(IDENTITY, VALUE, column(name, 4, TEXT), version=version)
        for version, name in ((2, "big"), (3, "large"))
    )
    pipeline.evolve(again)
    pipeline.change(Change("u", {"id": 1, "v": 1, "big": "new"}), Change("d", old={"id": 2}))
    pipeline.applied(target=target)
    pipeline.begin_again(renamed, {"id": 1, "v": 1, "large": "new"}, new=True)
    pipeline.applied(target=target)
    found = [(row["id"], row["large"]) for row in pipeline.rows(metadata=True)]
    assert Counter(found) == Counter([(1, "new"), (2, None)] + ([(1, None)] if target is HISTORY else []))


@keeping
def test_rows_that_a_new_key_makes_one_live_once_after_a_resync(pipeline: Pipeline, target: dict[str, Any]) -> None:
    first, second, value = column("a", 1, INT4, key=True), column("b", 2, INT4, key=True), column("v", 3, INT4)
    pipeline.begin(table_schema(first, second, value), *({"a": 1, "b": b, "v": b} for b in (1, 2, 3)))
    pipeline.applied(target=target)
    after = table_schema(first, column("b", 2, INT4), value, version=2)
    pipeline.begin_again(after, {"a": 1, "b": 2, "v": 2}, new=True)
    pipeline.applied(target=target)
    rows = pipeline.rows(metadata=True)
    lives = "_sluice_is_current" if target is HISTORY else "_sluice_deleted_at"
    assert [(row["a"], row["b"]) for row in rows if row[lives] in (True, None)] == [(1, 2)]
    if target is HISTORY:
        ended = sorted(row["b"] for row in rows if not row[lives])
        assert ended in ([1, 3], [1, 2, 3]), "versions were lost or doubled"


@slow
@pytest.mark.parametrize("target", KINDS.values(), ids=KINDS)
def test_a_row_whose_key_is_minus_zero_now_is_the_one_that_had_zero_when_it_is_read_again(
    pipeline: Pipeline, target: dict[str, Any]
) -> None:
    """A deleted row and one that lives had the same key, and the next change of it stopped the table."""
    schema = table_schema(column("id", 1, FLOAT8, key=True), column("v", 2, INT4))
    pipeline.begin(schema, {"id": 0.0, "v": 1}, {"id": 1.0, "v": 1})
    pipeline.applied(target=target)
    pipeline.begin_again(schema, {"id": -0.0, "v": 2}, {"id": 1.0, "v": 1})
    pipeline.applied(target=target)
    pipeline.change(Change("u", {"id": -0.0, "v": 3}))
    pipeline.applied(target=target)
    rows = pipeline.rows(metadata=True)
    lives = "_sluice_is_current" if target is HISTORY else "_sluice_deleted_at"
    assert sorted((str(row["id"]), row["v"]) for row in rows if row[lives] in (True, None)) == [("-0.0", 3), ("1.0", 1)]
    assert len(rows) == (4 if target is HISTORY else 2)


@pytest.mark.parametrize("lsn", cases([100, 150], quick=[100]))
def test_a_history_goes_on_at_another_server_only_where_positions_are_later(pipeline: Pipeline, lsn: int) -> None:
    """As after a recovery to a point in time, or a move of the database: the pipeline is a new one over the lake."""
    _begun(pipeline, HISTORY)
    before = _versions(pipeline)
    for key in list(pipeline.store.list("")):
        pipeline.store.delete(key)
    pipeline.manifest = Manifest(pipeline.store, origin="none")
    pipeline.progress(lsn - pipeline.manifest.lsn)
    pipeline.begin(SCHEMA, _row(1, 11))
    if lsn > 110:
        pipeline.applied(target=HISTORY)
        assert _versions(pipeline)[1:3] == [(1, 10, 110, lsn), (1, 11, lsn, 0)]
    else:
        reason = pipeline.applied(target=HISTORY, state="stale").reason
        assert "0/6E, and the snapshot was read at 0/64" in reason
        assert _versions(pipeline) == before


def test_deleted_rows_stay_marked_when_a_new_pipeline_takes_over_the_lake_table(pipeline: Pipeline) -> None:
    _begun(pipeline, SOFT)
    before = _marked(pipeline)
    assert (2, 2, 110, 110) in before
    for key in list(pipeline.store.list("")):
        pipeline.store.delete(key)
    pipeline.manifest = Manifest(pipeline.store, origin="none")
    pipeline.begin(SCHEMA, _row(1, 11))
    pipeline.applied(target=SOFT)
    after = _marked(pipeline)
    assert (2, 2, 110, 110) in after, after
    assert [one[0] for one in after if one[2] is None] == [1], after


def test_a_lake_table_with_another_name_begins_with_the_newest_snapshot_only(pipeline: Pipeline) -> None:
    """Before the table is read again, it is built from the snapshot and the changes that the spool still has."""
    _begun(pipeline, HISTORY)
    pipeline.apply(tables={"public.items": {"targets": [{**HISTORY, "name": "early"}]}})
    assert {row["id"] for row in pipeline.rows("early")} == {1, 2, 3, 4}
    _read_again(pipeline, (1, 10), (3, 3))
    pipeline.apply(tables={"public.items": {"targets": [{**HISTORY, "name": "late"}]}})
    assert [(row["id"], row["v"]) for row in pipeline.rows("late")] == [(1, 10), (3, 3)]


@slow
def test_a_resync_that_finds_no_row_keeps_all_that_were_there(pipeline: Pipeline) -> None:
    _begun(pipeline, HISTORY)
    _read_again(pipeline)
    pipeline.applied(target=HISTORY)
    assert [version[3] for version in _versions(pipeline)] == [110, 150, 110, 150, 150]


@keeping
def test_rows_that_are_read_again_change_only_what_differs(pipeline: Pipeline, target: dict[str, Any]) -> None:
    _begun(pipeline, target)
    manifest = pipeline.manifest
    pipeline.progress(10)
    changes = [Change(op, _row(key, value)) for op, key, value in (("u", 1, 10), ("u", 3, 30), ("u", 6, 6))]
    changes += [Change("d", old={"id": key}) for key in (2, 4)]
    for place, change in enumerate(changes):
        change.lsn, change.ordinal = manifest.lsn, REPAIR_ORDINAL + place
    manifest.append(Repair(ID, 1, 1, manifest.lsn, manifest.lsn, (manifest.segment(changes, SCHEMA),)))
    pipeline.applied(target=target)
    if target is HISTORY:
        kept = [(1, 1, 100, 110), (1, 10, 110, 0), (2, 2, 100, 110), (3, 3, 100, 120), (3, 30, 120, 0)]
        assert _versions(pipeline) == [*kept, (4, 4, 100, 120), (6, 6, 120, 0)]
    else:
        living = [(1, 10, None, 120), (3, 30, None, 120), (6, 6, None, 120)]
        assert _marked(pipeline) == sorted([*living, (2, 2, 110, 110), (4, 4, 120, 120)])


@keeping
def test_a_table_without_a_key_is_refused_with_what_to_do(pipeline: Pipeline, target: dict[str, Any]) -> None:
    pipeline.begin(table_schema(column("v", 1, INT4), identity="f"), {"v": 1})
    reason = pipeline.applied(target=target, state="stale").reason
    assert "needs a key" in reason
    assert "primary key" in reason


def test_a_history_that_tracks_an_unknown_column_is_refused_by_its_name(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, {"id": 1})
    assert "'status'" in pipeline.applied(target={**HISTORY, "track": ["status"]}, state="stale").reason


def _tracked(pipeline: Pipeline, name: str, after: TableSchema, *changes: Change) -> list[dict[str, Any]]:
    """A history that tracks `name`, of a row in which first v becomes 2, and then the rest after a change of columns:
    the applier comes late, to one window for each.
    """
    pipeline.begin(SCHEMA, {"id": 1, "v": 1, "big": "b"})
    pipeline.change(_kept(1, 2))
    pipeline.evolve(after)
    for change in changes:
        pipeline.change(change)
    pipeline.applied(max_window_bytes=1, target={**HISTORY, "track": [name]})
    return pipeline.rows(metadata=True)


@pytest.mark.parametrize("name", cases(["v", "w"], quick=["v"]))
def test_a_tracked_column_is_known_by_its_number_when_its_name_changes(pipeline: Pipeline, name: str) -> None:
    changes = [Change("u", {"id": 1, "w": number, "big": "other"}) for number in (2, 3)]
    rows = _tracked(pipeline, name, table_schema(IDENTITY, RENAMED, BIG, version=2), *changes)
    assert sorted((row["w"], row["big"]) for row in rows) == [(1, "b"), (2, "other"), (3, "other")]


@slow
def test_a_tracked_name_means_each_column_that_had_it_also_when_the_applier_is_late(pipeline: Pipeline) -> None:
    after = table_schema(IDENTITY, replace(VALUE, name="before"), BIG, column("v", 4, INT4), version=2)
    rows = _tracked(pipeline, "v", after, *(_kept(1, now, before=before) for before, now in ((2, 5), (2, 6), (3, 6))))
    assert sorted((row["before"], row["v"] or 0) for row in rows) == [(1, 0), (2, 0), (2, 5), (2, 6), (3, 6)]


@slow
def test_a_history_is_made_from_before_the_column_that_it_tracks_was_added(pipeline: Pipeline) -> None:
    rows = _tracked(pipeline, "more", table_schema(*SCHEMA.columns, MORE, version=2), _kept(1, 3, more=8))
    assert sorted((row["v"], row["more"]) for row in rows) == [(2, 7), (3, 8)]


@slow
def test_versions_keep_the_values_of_a_renamed_column_and_have_the_default_of_a_later_one(pipeline: Pipeline) -> None:
    _begun(pipeline, HISTORY)
    pipeline.evolve(table_schema(IDENTITY, RENAMED, BIG, MORE, version=2))
    pipeline.change(_kept(1, 10, "w", more=8))
    pipeline.applied(target=HISTORY)
    rows = [(row["id"], row["w"], row["more"], row["big"]) for row in pipeline.rows(metadata=True)]
    first = [(number, number, 7, f"b{number}") for number in range(1, 5)]
    assert sorted(rows) == sorted([*first, (1, 10, 7, "b1"), (1, 10, 8, "b1")])


def test_rows_that_were_deleted_long_enough_ago_go_and_no_others(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiring, "SHORTEST_TURN_SECONDS", 0.001)
    _begun(pipeline, {**SOFT, "soft_delete_retention": 0.01})
    assert pipeline.keys() == [1, 3, 4]
    pipeline.change(Change("i", {"id": 2, "v": 5}))
    pipeline.applied(target=SOFT)
    assert pipeline.keys() == [1, 2, 3, 4]


@slow
def test_rows_go_under_a_retention_that_was_made_longer(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiring, "SHORTEST_TURN_SECONDS", 0.001)
    monkeypatch.setattr(expiring, "LONGEST_TURN_SECONDS", 0.05)
    _begun(pipeline, {**SOFT, "soft_delete_retention": 0.01})
    pipeline.change(Change("d", old={"id": 3}))
    pipeline.applied(target={**SOFT, "soft_delete_retention": 1000.0})
    assert pipeline.keys() == [1, 4]


def test_the_other_kinds_of_tables_are_recognised_by_their_columns(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, {"id": 1})
    pipeline.applied(target=SOFT)
    for target, held in ((HISTORY, "history"), ({"kind": "mirror"}, "mirror")):
        assert held in pipeline.applied(target=target, state="stale").reason
    pipeline.applied(target=SOFT)


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
    cases(product(("history", "soft"), (DIRECT, DISTRIBUTED, MERGE)), quick=[]),
)
def test_readers_of_changes_see_which_versions_came_and_went(pipeline: Pipeline, way: str, kind: str) -> None:
    windows = Windows(pipeline, way=way, tables={"public.items": {"targets": [KINDS[kind]]}})
    pipeline.begin(SCHEMA, *(_row(number, number) for number in range(1, 30)))
    windows.apply()
    session = windows.session
    pipeline.set(enableRowTracking="true", enableChangeDataFeed="true")
    first = DeltaFolder(pipeline.path()).versions()[-1]
    for turn in range(2):
        keys = range(1 + turn, 20, 2)
        changes = [_kept(key, 100 * turn + key) for key in keys if key % 3]
        changes += [Change("d", old={"id": 20 + turn}), Change("i", {"id": 40 + turn, "v": 1, "big": "new"})]
        applied = windows.change(*changes)
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

"""What a history and a mirror with soft deletes keep when rows are read again, columns change or time passes."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from sluice.contract.entries import REPAIR_ORDINAL, Progress, Repair
from sluice_spark.lake import table
from sluice_spark.lake.commit_way import DIRECT, DISTRIBUTED, MERGE
from tests.spark import lake
from tests.spark.changes import INT4, INT8, TEXT, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.support.extent import FULL

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


def _read_again(pipeline: Pipeline, rows: Iterable[tuple[int, int]]) -> None:
    pipeline.manifest.append(Progress(), through_lsn=pipeline.manifest.lsn + 40)
    pipeline.begin(SCHEMA, *({"id": key, "v": value, "big": f"b{key}"} for key, value in rows), generation=2)


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
    monkeypatch.setattr(table, "SHORTEST_TURN_SECONDS", 0.001)
    _begun(pipeline, {**SOFT, "soft_delete_retention": 0.01}, DIRECT)
    assert [row[0] for row in _marked(pipeline)] == [1, 3, 4]
    pipeline.manifest.transaction([Change("i", {"id": 2, "v": 5})], SCHEMA)
    _apply(pipeline, SOFT)
    assert [row[0] for row in _marked(pipeline)] == [1, 2, 3, 4]


def test_the_other_kinds_of_tables_are_recognised_by_their_columns(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, {"id": 1})
    _apply(pipeline, SOFT)
    for target, held in ((HISTORY, "history"), ({"kind": "mirror"}, "mirror")):
        assert held in _apply(pipeline, target, state="stale")
    _apply(pipeline, SOFT)

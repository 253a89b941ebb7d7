"""The fold compared with a dict: the lake ends as the table did, for any history of a window."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from sluice.errors import UnsupportedChange
from sluice_spark.fold.fold import fold
from sluice_spark.read.changes import unite
from tests.spark.changes import INT8, TEXT, Change, column, segment_table, table_schema
from tests.spark.model import SCHEMA, Lake, histories, keyed_by_what_was_sent, merged, windows
from tests.support.extent import FULL


@settings(max_examples=400 if FULL else 100, deadline=None)
@given(history=histories(), cuts=st.lists(st.integers(0, 30), max_size=3))
def test_any_history_in_any_windows_leaves_the_lake_equal_to_the_table(
    history: list[tuple[Change, Lake]], cuts: list[int]
) -> None:
    lake: Lake = {}
    done = 0
    for window in windows(history, cuts):
        lake = merged(lake, fold(segment_table(window, SCHEMA), SCHEMA))
        done += len(window)
        assert lake == history[done - 1][1]


def _fold(*changes: Change, lake: Lake, identity: str = "d", removals_sent: bool = True) -> Lake:
    schema = table_schema(*SCHEMA.columns, identity=identity)
    for place, change in enumerate(changes):
        change.lsn, change.ordinal = 1000, place
    return merged(lake, fold(segment_table(list(changes), schema), schema, removals_sent=removals_sent))


def _row(key: int, v: int = 0, big: str | None = "B") -> dict[str, object]:
    return {"id": key, "v": v, "big": big, "at": None}


def test_G04_a_swap_through_a_third_key_moves_both_rows_with_their_values() -> None:
    swap = [
        Change("u", {"id": new, "v": 1}, old={"id": old}, unchanged=("big", "at"))
        for old, new in ((1, 9), (2, 1), (9, 2))
    ]
    assert _fold(*swap, lake={1: _row(1, big="one"), 2: _row(2, big="two")}) == {
        1: _row(1, 1, "two"),
        2: _row(2, 1, "one"),
    }


def test_G04_a_swap_under_a_deferred_constraint_is_resolved_by_whole_rows() -> None:
    one, two = _row(1, big="one"), _row(2, big="two")
    swap = [Change("u", {**one, "id": 2}, old=one), Change("u", {**two, "id": 1}, old=two)]
    assert _fold(*swap, lake={1: one, 2: two}, identity="f") == {1: {**two, "id": 1}, 2: {**one, "id": 2}}


def test_a_row_inserted_before_its_keys_old_row_is_removed_stays_under_a_deferred_constraint() -> None:
    old, new = _row(1, big="old"), _row(1, big="new")
    changes = [Change("i", new), Change("u", {**old, "v": 7}, old=old), Change("d", old={**old, "v": 7})]
    assert _fold(*changes, lake={1: old}, identity="f") == {1: new}


def test_G07_a_change_from_before_the_identity_was_full_names_its_row_by_key() -> None:
    by_key, whole = table_schema(*SCHEMA.columns, identity="d"), table_schema(*SCHEMA.columns, identity="f")
    before = [Change("i", _row(1), lsn=1), Change("u", _row(2), old={"id": 1}, lsn=2), Change("u", _row(2, 5), lsn=3)]
    after = [Change("u", _row(2, 7), old=_row(2, 5), lsn=4)]
    rows = unite([(segment_table(before, by_key), by_key), (segment_table(after, whole), whole)], whole)
    assert merged({}, fold(rows, whole)) == {2: _row(2, 7)}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("an inserted row lacks a value", [Change("i", {"id": 1, "v": 1}, unchanged=("big",))]),
        ("a value is missing behind a truncate", [Change("t"), Change("u", {"id": 1, "v": 1}, unchanged=("big",))]),
        ("a delete without a key", [Change("d")]),
        ("a key without a value", [Change("u", {"v": 1})]),
        (
            "an update of a key that moved away",
            [Change("u", {"id": 2, "v": 1}, old={"id": 1}), Change("u", {"id": 1, "v": 1})],
        ),
        ("a move onto a living row", [Change("u", _row(2)), Change("u", {"id": 2, "v": 1}, old={"id": 1})]),
        ("an unknown operation", [Change("x", _row(1))]),
    ],
)
def test_a_history_that_cannot_be_is_refused(name: str, changes: list[Change]) -> None:
    with pytest.raises(UnsupportedChange):
        _fold(*changes, lake={})


def test_two_changes_with_one_position_are_refused() -> None:
    with pytest.raises(UnsupportedChange, match="same position"):
        fold(segment_table([Change("i", _row(1)), Change("i", _row(2))], SCHEMA), SCHEMA)


def test_rows_are_folded_in_commit_order_whatever_the_order_of_segments() -> None:
    late, early = Change("u", _row(1, 2), lsn=20), Change("i", _row(1, 1), lsn=10)
    assert merged({}, fold(segment_table([late, early], SCHEMA), SCHEMA))[1]["v"] == 2


def test_an_insert_only_window_is_an_append() -> None:
    assert fold(segment_table([Change("i", _row(1))], SCHEMA), SCHEMA).append


def test_keys_of_several_columns_are_compared_by_all_of_them() -> None:
    schema = table_schema(column("a", 1, INT8, key=True), column("b", 2, TEXT, key=True), column("v", 3, INT8))
    changes = [
        Change("u", {"a": a, "b": b, "v": v}, ordinal=v)
        for v, (a, b) in enumerate([(1, "x"), (1, "y"), (2, "x"), (1, "x")])
    ]
    rows = fold(segment_table(changes, schema), schema).rows.to_pylist()
    assert {(row["a"], row["b"]): row["v"] for row in rows} == {(1, "x"): 3, (1, "y"): 1, (2, "x"): 2}


@settings(max_examples=400 if FULL else 100, deadline=None)
@given(history=histories(), cuts=st.lists(st.integers(0, 30), max_size=3), hidden=st.sets(st.integers(0, 30)))
def test_a_row_takes_the_place_of_one_whose_removal_was_not_sent(
    history: list[tuple[Change, Lake]], cuts: list[int], hidden: set[int]
) -> None:
    lake: Lake = {}
    for window in windows(history, cuts):
        sent = [change for change in window if change.op != "d" or (change.lsn or 0) - 1000 not in hidden]
        if sent:
            folded = fold(segment_table(sent, SCHEMA), SCHEMA, removals_sent=False)
            lake, expected = merged(lake, folded), keyed_by_what_was_sent(lake, sent)
            assert lake == expected


@pytest.mark.parametrize("identity", ["d", "f"])
def test_a_moved_row_takes_the_place_of_one_whose_removal_was_not_sent(identity: str) -> None:
    changes = [
        Change("u", _row(2, 5), old={**_row(1), "v": 0}),
        Change("i", _row(1, 7)),
        Change("i", _row(2, 8)),
        Change("u", _row(3, 9), old=_row(9)),
    ]
    assert _fold(*changes, lake={key: _row(key) for key in (1, 2, 3, 4)}, identity=identity, removals_sent=False) == {
        1: _row(1, 7), 2: _row(2, 8), 3: _row(3, 9), 4: _row(4),
    }  # fmt: skip


def test_a_value_of_a_removed_row_is_never_the_one_of_the_next_row_with_its_key() -> None:
    changes = [
        Change("u", _row(1, 1, "first")),
        Change("d", old={"id": 1}),
        Change("u", {"id": 1, "v": 2}, unchanged=("big",)),
    ]
    with pytest.raises(UnsupportedChange, match="attribute 3"):
        _fold(*changes, lake={1: _row(1)}, removals_sent=False)

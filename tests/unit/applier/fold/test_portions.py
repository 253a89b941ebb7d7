"""A window in portions has the effect of the window, wherever it is cut, and no portion is too large."""

import contextlib
import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings

from sluice.contract.entries import REPAIR_ORDINAL
from sluice.contract.schema import TableSchema
from sluice.errors import ManifestCorrupt, UnsupportedChange
from sluice_spark.fold.condense import END, InTurn, condensed, first_place
from sluice_spark.fold.counted import count
from sluice_spark.fold.fold import fold
from sluice_spark.fold.partition import Cutter, Links, cutter_for, hash_rows, spaced, weight
from sluice_spark.fold.ranges import KeyRanges
from sluice_spark.fold.row_identity import Numbers, number_rows
from sluice_spark.fold.spill import Versioned, coalesced, portions
from sluice_spark.read.changes import unite
from tests.spark.changes import (
    FLOAT8,
    INT4,
    INT4_ARRAY,
    INT8,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    Change,
    column,
    segment_table,
    table_schema,
)
from tests.spark.model import SCHEMA, Lake, histories, keyed_by_what_was_sent, merged, windows
from tests.support.extent import FULL


def _cut(changes: list[Versioned], *, limit: int) -> list[pa.Table]:
    """As the applier does it: links first, then portions."""
    versions = [version for _, version in changes]
    cutter = cutter_for(versions)
    if versions[-1].key_columns:
        links = Links()
        for rows, _ in changes:
            links.add(*cutter.moves(rows))
        cutter = cutter_for(versions, links.groups())
    return [unite(portion, versions[-1]) for portion in portions(coalesced(changes, limit=limit), cutter, limit=limit)]


def _merged_in_portions(lake: Lake, tables: list[pa.Table], schema: TableSchema, *, removals_sent: bool = True) -> Lake:
    """What one MERGE of all portions together does: every match is found before anything changes."""
    folded = [fold(rows, schema, keyed=True, removals_sent=removals_sent) for rows in tables]
    replaces = {part.replaces for part in folded}
    assert len(replaces) == 1, "a TRUNCATE is in every portion or in none"
    base = {} if replaces == {True} else lake
    origins = Counter(
        row["_sluice_key_0"]
        for part in folded
        for row in part.rows.to_pylist()
        if not part.replaces and row["_sluice_match"]
    )
    assert not [key for key, times in origins.items() if times > 1], "two portions touch one row of the lake"
    gone, added = dict(base), []
    for part in folded:
        after = merged(lake, part)
        untouched = {key for key, row in base.items() if after.get(key) is row}
        mine = {row["_sluice_key_0"] for row in part.rows.to_pylist()} if not part.replaces else set()
        added += [row for key, row in after.items() if key not in untouched and base.get(key) is not row]
        for key in mine:
            gone.pop(key, None)
    for row in added:
        assert row["id"] not in gone, "two rows with one key"
        gone[row["id"]] = row
    return gone


@settings(max_examples=100 if FULL else 25, deadline=None)
@given(
    history=histories(keys=12, length=40),
    cuts=st.lists(st.integers(0, 40), max_size=3),
    limit=st.sampled_from([1500, 4000, 1 << 30]),
)
def test_any_history_in_portions_leaves_the_lake_equal_to_the_table(
    history: list[tuple[Change, Lake]], cuts: list[int], limit: int
) -> None:
    lake: Lake = {}
    done = 0
    for window in windows(history, cuts):
        done += len(window)
        try:
            tables = _cut([(segment_table(window, SCHEMA), SCHEMA)], limit=limit)
        except UnsupportedChange:
            # Only a group of moved rows that weighs more than the limit may be refused.
            assert limit < weight(segment_table(window, SCHEMA), SCHEMA)
            assert any(change.old and change.unchanged for change in window)
        else:
            assert _merged_in_portions(lake, tables, SCHEMA) == history[done - 1][1]
        lake = history[done - 1][1]


def test_rows_that_are_repaired_behind_a_transaction_are_as_the_repair_says_in_portions() -> None:
    """The transaction ended at the very position of the repair: behind the repair, it would exchange the keys back."""
    lake: Lake = {key: {"id": key, "v": 1, "big": f"b{key}", "at": None} for key in (1, 2)}
    exchanged = ((-1, 1), (1, 2), (2, -1))
    sent = [Change("u", {"id": to, "v": 2}, old={"id": key}, unchanged=("big",)) for to, key in exchanged]
    repaired: Lake = {key: {**lake[3 - key], "id": key, "v": 3} for key in lake}
    sent += [Change("u", dict(row)) for row in repaired.values()]
    for change, ordinal in zip(sent, (0, 1, 2, REPAIR_ORDINAL, REPAIR_ORDINAL + 1), strict=True):
        change.lsn, change.ordinal = 500, ordinal
    tables = _cut([(segment_table(sent, SCHEMA), SCHEMA)], limit=1 << 30)
    assert _merged_in_portions(lake, tables, SCHEMA) == repaired


@settings(max_examples=100 if FULL else 25, deadline=None)
@given(
    history=histories(keys=12, length=40),
    hidden=st.sets(st.integers(0, 40)),
    limit=st.sampled_from([1500, 4000, 1 << 30]),
)
def test_a_row_takes_the_place_of_one_whose_removal_was_not_sent_in_portions(
    history: list[tuple[Change, Lake]], hidden: set[int], limit: int
) -> None:
    sent = [change for change in windows(history, [])[0] if change.op != "d" or (change.lsn or 0) - 1000 not in hidden]
    assume(sent)
    lake: Lake = {key: {"id": key, "v": -1, "big": "before", "at": None} for key in range(12)}
    with contextlib.suppress(UnsupportedChange):
        tables = _cut([(segment_table(sent, SCHEMA), SCHEMA)], limit=limit)
        assert _merged_in_portions(lake, tables, SCHEMA, removals_sent=False) == keyed_by_what_was_sent(lake, sent)


def _placed(changes: list[Change]) -> list[Change]:
    return [replace(change, lsn=1000, ordinal=place) for place, change in enumerate(changes)]


@st.composite
def deferred(draw: st.DrawFn) -> tuple[Lake, list[Change], Lake]:
    """Whole-row updates that permute keys at once: the table before, the changes, the table after."""
    keys = draw(st.permutations(range(20)))
    before = {key: {"id": key, "v": 0, "big": f"b{key}", "at": None} for key in range(20)}
    order = draw(st.permutations(range(20)))
    changes = _placed([Change("u", {**before[key], "id": keys[key]}, old=before[key]) for key in order])
    return before, changes, {keys[key]: {**before[key], "id": keys[key]} for key in before}


@settings(max_examples=15, deadline=None)
@given(case=deferred())
def test_a_permutation_of_keys_under_a_deferred_constraint_is_exact_in_portions(
    case: tuple[Lake, list[Change], Lake],
) -> None:
    before, changes, after = case
    schema = table_schema(*SCHEMA.columns, identity="f")
    table = segment_table(changes, schema)
    limit = table.nbytes // 2
    tables = _cut([(table, schema)], limit=limit)
    assert len(tables) > 1
    assert _merged_in_portions(before, tables, schema) == after


ROWS = table_schema(column("a", 1, INT4), column("f", 2, FLOAT8), identity="f")
_row = st.fixed_dictionaries({"a": st.sampled_from([None, 1, 2]), "f": st.sampled_from([None, 0.0, -0.0, 1.5])})


@settings(max_examples=100 if FULL else 25, deadline=None)
@given(
    changes=st.lists(st.tuples(st.sampled_from("iud"), _row, _row), min_size=1, max_size=40),
    truncate=st.integers(0, 80),
)
def test_the_number_of_each_whole_row_is_the_same_in_portions(
    changes: list[tuple[str, dict[str, object], dict[str, object]]], truncate: int
) -> None:
    written = [Change(op, {} if op == "d" else new, old=None if op == "i" else old) for op, new, old in changes]
    if truncate < len(written):
        later = [one if one.op == "i" else Change("i", one.values or {"a": 1}) for one in written[truncate + 1 :]]
        written[truncate:] = [Change("t"), *later]
    written = _placed(written)
    table = segment_table(written, ROWS)
    whole = count(table, ROWS)
    parts = [count(rows, ROWS) for rows in _cut([(table, ROWS)], limit=max(1500, weight(table, ROWS) // 3))]
    assert {part.replaces for part in parts} == {whole.replaces}
    assert sorted(item for part in parts for item in _numbers(part.rows, part.net)) == sorted(
        _numbers(whole.rows, whole.net)
    )
    assert sum(len(part.rows) for part in parts) == len(whole.rows), "one row is in two portions"


def _numbers(rows: pa.Table, net: Numbers) -> list[tuple[str, str, int]]:
    return [(str(row["a"]), str(row["f"]), int(number)) for row, number in zip(rows.to_pylist(), net, strict=True)]


def test_no_portion_weighs_more_than_the_limit_and_a_part_that_is_too_large_is_cut_again() -> None:
    schema = table_schema(column("id", 1, INT8, key=True), column("s", 2, TEXT))
    table = segment_table(_placed([Change("u", {"id": key % 5_000, "s": "x" * 50}) for key in range(10_000)]), schema)
    limit = weight(table, schema) // 100
    pieces = list(portions([(table, schema)], cutter_for([schema]), limit=limit))
    assert max(sum(weight(rows, schema) for rows, _ in piece) for piece in pieces) <= limit
    assert sorted(place for piece in pieces for rows, _ in piece for place in rows["id"].to_pylist()) == [*range(5_000)]


def _ending(changes: list[Change], lake: Lake, schema: TableSchema, *, limit: int) -> Lake:
    placed = _placed(changes)
    starts = range(0, len(placed), 50)
    tables = _cut([(segment_table(placed[start : start + 50], schema), schema) for start in starts], limit=limit)
    assert max(weight(rows, schema) for rows in tables) <= limit
    return _merged_in_portions(lake, tables, schema)


def _moved(old: int, new: int) -> Change:
    return Change("u", {"id": new, "v": 1}, old={"id": old}, unchanged=("big",))


HOT = 400
"""Changes of one row, each of them half as large as what may be folded at once."""


@pytest.mark.parametrize("identity", ["d", "f"])
def test_a_row_that_changes_all_the_time_weighs_what_its_last_state_does(identity: str) -> None:
    schema = table_schema(*SCHEMA.columns, identity=identity)
    states = [{"id": 1, "v": place, "big": f"{place:06}" * 500, "at": None} for place in range(HOT + 1)]
    changes = [Change("u", new, old=old if identity == "f" else None) for old, new in pairwise(states)]
    assert _ending(changes, {1: states[0]}, schema, limit=12_000) == {1: states[-1]}


def test_a_row_that_changes_all_the_time_keeps_its_large_value_that_was_never_sent() -> None:
    lake: Lake = {1: {"id": 1, "v": 0, "big": "large", "at": "infinity"}}
    changes = [Change("u", {"id": 1, "v": place}, unchanged=("big", "at")) for place in range(1, HOT)]
    assert _ending(changes, lake, SCHEMA, limit=8_000) == {1: {**lake[1], "v": HOT - 1}}


@pytest.mark.parametrize("identity", ["d", "f"])
def test_a_row_that_comes_and_goes_and_moves_all_the_time_ends_as_it_is(identity: str) -> None:
    schema = table_schema(*SCHEMA.columns, identity=identity)
    row: dict[str, object] = {"id": 1, "v": 0, "big": "x" * 200, "at": None}
    changes: list[Change] = []
    for place in range(HOT):
        moved = {**row, "id": 3 - int(str(row["id"])), "v": place}
        changes += [Change("u", moved, old=row), Change("d", {}, old=moved), Change("i", row)]
    assert _ending(changes, {1: row}, schema, limit=12_000) == {1: row}


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(("identity", "copies"), [("d", 1000), ("f", 200)])
def test_a_row_that_changes_all_the_time_ends_as_it_is_in_whatever_order_its_changes_come(
    identity: str, copies: int, *, mixed: bool
) -> None:
    """Files of one entry overlap: a streamed transaction has its own, behind the one of those that ended before and
    after it. To executors they come `mixed`.
    """
    schema = table_schema(*SCHEMA.columns, identity=identity)
    row: dict[str, object] = {"id": 1, "v": 0, "big": "0", "at": None}
    changes: list[Change] = []
    for place in range(1, 206):
        new = {**row, "v": place, "big": f"{place:06}" * copies if place % 7 == 0 else row["big"]}
        if identity == "f":
            again = [Change("d", {}, old=new), Change("i", new)] if place % 5 == 0 else []
            changes += [Change("u", new, old=row), *again]
        else:
            changes.append(Change("u", new, unchanged=() if place % 7 == 0 else ("big",)))
        row = new
    ends = Change("d", {}, old=row) if identity == "f" else Change("u", {**row, "v": -1}, unchanged=("big",))
    placed = _placed([*changes, ends])
    tables = [segment_table(placed[start : start + 3], schema) for start in range(0, len(placed), 3)]
    files: list[pa.Table] = []
    for start in range(0, len(tables), 3):
        around, between = tables[start : start + 3 : 2], tables[start + 1 : start + 2]
        files += [pa.concat_tables(around), *between]
    if mixed:
        random.Random(0).shuffle(files)
    cut = portions([(table, schema) for table in files], cutter_for([schema]), limit=20_000)
    parts = [unite(portion, schema) for portion in cut]
    lake: Lake = {1: {"id": 1, "v": 0, "big": "0", "at": None}}
    assert _merged_in_portions(lake, parts, schema) == ({} if identity == "f" else {1: {**row, "v": -1}})


def test_equal_rows_that_come_and_go_all_the_time_are_counted_within_the_limit() -> None:
    row = {"a": 1, "f": 1.5}
    changes = [Change("i", row) if place % 2 else Change("d", old=row) for place in range(4 * HOT)]
    table = segment_table(_placed([*changes, *[Change("i", row)] * 3]), ROWS)
    counted = [count(rows, ROWS) for rows in _cut([(table, ROWS)], limit=4_000)]
    assert [number for part in counted for number in part.net.tolist()] == [3]


@pytest.mark.parametrize(
    ("says", "schema", "changes"),
    [
        ("moved to other keys", SCHEMA, [_moved(1 + at % 2, 2 - at % 2) for at in range(300)]),
        ("equal rows of a table without a key", ROWS, [Change("i", {"a": 1}) for _ in range(300)]),
        ("changes of one row", SCHEMA, [Change("d", old={"id": 1}), Change("i", {"id": 1, "big": "x" * 20_000})]),
    ],
)
def test_what_cannot_be_followed_within_the_limit_is_refused_with_the_true_reason(
    says: str, schema: TableSchema, changes: list[Change]
) -> None:
    with pytest.raises(UnsupportedChange, match=says):
        _cut([(segment_table(_placed(changes), schema), schema)], limit=10_000)


@settings(max_examples=300 if FULL else 75, deadline=None)
@given(
    history=histories(keys=4, length=40),
    identity=st.sampled_from("df"),
    size=st.integers(1, 9),
    at_once=st.sampled_from([1, 2_000, 1 << 30]),
)
def test_what_is_left_of_any_history_has_the_effect_of_all_of_it(
    history: list[tuple[Change, Lake]], identity: str, size: int, at_once: int
) -> None:
    schema = table_schema(*SCHEMA.columns, identity=identity)
    windows(history, [])
    steps = list(zip([{}, *(table for _, table in history)], history, strict=False))
    begins = max((place + 1 for place, (_, (change, _)) in enumerate(steps) if change.op == "t"), default=0)
    assume(begins < len(steps))
    changes = [
        _whole(change, before, after) if identity == "f" else change for before, (change, after) in steps[begins:]
    ]
    starts = range(0, len(changes), size)
    batches = [(spaced(segment_table(changes[start : start + size], schema)), schema) for start in starts]
    cutter = cutter_for([schema])
    half = len(batches) // 2
    for parts in ([batches], [batches[:half], batches[half:]]):  # and beside changes that it never saw
        left = [one for part in parts for one in condensed(_in_turn(part), cutter, at_once=at_once)]
        lake = steps[begins][0]
        if sum(len(rows) for rows, _ in left):
            lake = merged(lake, fold(unite(left, schema), schema, keyed=True))
        assert lake == history[-1][1]


def _in_turn(tables: list[Versioned]) -> list[InTurn]:
    begins = [first_place(rows) for rows, _ in tables]
    return [InTurn(*table, until) for table, until in zip(tables, [*begins, END][1:], strict=True)]


def _whole(change: Change, before: Lake, after: Lake) -> Change:
    old = before[(change.old or change.values)["id"]] if change.op in "ud" else None
    new = after[change.values["id"]] if change.op in "iu" else {}
    typed = {name: value for name, value in new.items() if name != "at"}
    marks = {"at": new["at"]} if new.get("at") else None
    old_typed = {name: value for name, value in old.items() if name != "at"} if old else None
    old_marks = {"at": old["at"]} if old and old["at"] else None
    return replace(change, values=typed, old=old_typed, unchanged=(), special=marks, old_special=old_marks)


def test_one_change_that_is_larger_than_the_limit_is_a_portion_of_its_own() -> None:
    schema = table_schema(column("id", 1, INT8, key=True), column("s", 2, TEXT))
    table = segment_table(_placed([Change("u", {"id": key, "s": "x" * 50_000}) for key in range(4)]), schema)
    cut = portions([(table, schema)], cutter_for([schema]), limit=10_000)
    assert [sum(len(rows) for rows, _ in piece) for piece in cut] == [1, 1, 1, 1]


def test_a_key_change_without_all_values_that_was_not_linked_is_refused() -> None:
    moved = [_moved(key, key + 100) for key in range(50)]
    with pytest.raises(ManifestCorrupt, match="without all its values"):
        list(portions([(segment_table(_placed(moved), SCHEMA), SCHEMA)], cutter_for([SCHEMA]), limit=1 << 30))


@pytest.mark.parametrize(
    ("kind", "bits", "values"),
    [
        (pa.int64(), False, [1, -1, None, 2**63 - 1, 1]),
        (pa.float64(), False, [0.0, -0.0, float("nan"), float("nan"), None, 1.5]),
        (pa.float32(), True, [0.0, -0.0, float("nan"), None, 1.5, 0.0]),
        (pa.string(), False, ["", None, "a", "ä", "a", "a" * 100]),
        (pa.binary(), False, [b"", None, b"\0", b"\0"]),
        (pa.bool_(), False, [True, False, None, True]),
        (pa.decimal128(10, 2), False, [1, 1, None, 2]),
        (pa.timestamp("us", tz="UTC"), False, [1, 1, None, 2]),
        (pa.date32(), False, [1, 1, None, 2]),
        (pa.list_(pa.int32()), True, [[1, None], [1, None], [], None]),
    ],
)
def test_equal_rows_have_equal_hashes_and_others_mostly_not(
    kind: pa.DataType, bits: bool, values: list[object]
) -> None:
    array = pa.array(values, kind)
    for column_ in (array, array.slice(1)):
        numbers, hashes = number_rows([column_], len(column_), bits=bits), hash_rows([column_], len(column_), bits=bits)
        assert [[int(a == b) for b in numbers] for a in numbers] == [[int(a == b) for b in hashes] for a in hashes]


def test_marked_keys_meet_by_their_text() -> None:
    schema = table_schema(column("at", 1, TIMESTAMP, key=True), column("v", 2, INT4))
    changes = [
        Change("u", {"v": place}, special={"at": ("infinity", "-infinity")[place % 2]}, lsn=1, ordinal=place)
        for place in range(10)
    ]
    parts = [
        {part for part, _ in Cutter(schema.key_columns).cut(segment_table(changes[start::2], schema))}
        for start in (0, 1)
    ]
    assert [len(found) for found in parts] == [1, 1]
    assert parts[0] != parts[1]


def test_rows_without_a_key_meet_across_schema_versions_by_the_columns_that_both_have() -> None:
    first = table_schema(column("a", 1, INT4), column("n", 2, NUMERIC, typmod=(10 << 16 | 2) + 4), identity="f")
    second = table_schema(*first.columns, column("l", 3, INT4_ARRAY), identity="f", version=2)
    old = segment_table([Change("i", {"a": 1}, lsn=1, ordinal=0)], first)
    new = segment_table([Change("d", old={"a": 1}, lsn=2, ordinal=0)], second)
    tables = _cut([(old, first), (new, second)], limit=1 << 30)
    assert [len(count(rows, second).rows) for rows in tables] == [0]
    cutter = cutter_for([first, second])
    assert [part for part, _ in cutter.cut(old)] == [part for part, _ in cutter.cut(new)]


@settings(deadline=None)
@given(sets=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=60), min_size=1, max_size=6))
def test_ranges_of_portions_together_hold_every_key(sets: list[list[int]]) -> None:
    schema = table_schema(column("id", 1, INT8, key=True))
    ranges = [KeyRanges.of(pa.table({"_sluice_key_0": pa.array(keys, pa.int64())}), schema) for keys in sets]
    together = ranges[0]
    for other in ranges[1:]:
        together = together.plus(other)
    starts, ends = (bounds.tolist() for bounds in together.integers["id"])
    assert len(starts) <= 24
    assert all(any(low <= key <= high for low, high in zip(starts, ends, strict=True)) for keys in sets for key in keys)
    assert starts[0] == min(map(min, sets))
    assert ends[-1] == max(map(max, sets))


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [(INT4, 1, 2), (TEXT, "a", "b"), (NUMERIC, None, None), (INT4_ARRAY, [1, None], [1, 2]), (TIMESTAMP, None, None)],
)
def test_a_change_of_a_key_of_any_type_is_weighed(kind: int, before: object, after: object) -> None:
    schema = table_schema(column("k", 1, kind, key=True), column("v", 2, TEXT))
    moved = segment_table([Change("u", {"k": after, "v": "x"}, old={"k": before})], schema)
    stayed = segment_table([Change("u", {"k": after, "v": "x"}, old={"k": after})], schema)
    assert (weight(moved, schema) > weight(stayed, schema)) == (before != after)

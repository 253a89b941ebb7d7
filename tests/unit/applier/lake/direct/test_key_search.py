"""The search for keys compared with two nested loops, over every kind of key."""

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from sluice.errors import UnsupportedChange
from sluice_spark.fold.fold import KEY, KEY_SPECIAL
from sluice_spark.lake.commit_way import NotDirect
from sluice_spark.lake.direct.key_search import FileKeys, KeyColumns, WindowKeys
from sluice_spark.lake.direct.statistics import statistics
from sluice_spark.lake.layout import read_layout
from tests.spark.changes import FLOAT8, INT4_ARRAY, MAP, column, table_schema
from tests.support.extent import FULL
from tests.unit.applier.lake.test_layout import delta_array, delta_field, delta_schema

EPOCH = datetime.fromisoformat("1970-01-01")
MARKS = "col-special"
INT64 = 2**63
FEW: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int16(): st.sampled_from([-(2**15), -1, 0, 1, 2**15 - 1]),
    pa.int32(): st.integers(-3, 3),
    pa.int64(): st.sampled_from([-INT64, -1, 0, 1, 2, 3, INT64 - 1]),
    pa.string(): st.sampled_from(["", "a", "A", "a ", "\u00e9", "e\u0301", "x" * 40, "x" * 40 + "\U0001f600"]),
    pa.decimal128(38, 10): st.sampled_from(
        [Decimal(0), Decimal("1.0000000001"), Decimal(-1), Decimal("9999999999999999999999999999.9999999999")]
    ),
    pa.bool_(): st.booleans(),
    pa.binary(): st.sampled_from([b"", b"\0", b"\0\0", b"a"]),
    pa.date32(): st.sampled_from([date(1, 1, 1), date(2026, 7, 1), date(9999, 12, 31)]),
    pa.timestamp("us"): st.sampled_from([EPOCH, EPOCH + timedelta(microseconds=1)]),
    pa.timestamp("us", tz="UTC"): st.sampled_from([datetime(2026, 7, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)]),
}
Key = tuple[tuple[Any, str | None], ...]
"""Per column its value and its marked text."""


@st.composite
def _searches(draw: st.DrawFn) -> tuple[KeyColumns, list[Key], list[Key]]:
    kinds = draw(st.lists(st.sampled_from(list(FEW)), min_size=1, max_size=3))
    # Whole numbers are never marked.
    marked = [draw(st.booleans()) and not pa.types.is_integer(kind) for kind in kinds]
    one = st.tuples(
        *(
            st.tuples(FEW[kind], st.none()) | st.tuples(st.none(), st.sampled_from(["infinity", "NaN"]))
            if mark
            else st.tuples(FEW[kind], st.none())
            for kind, mark in zip(kinds, marked, strict=True)
        )
    )
    key = KeyColumns(
        tuple(f"k{place}" for place in range(len(kinds))),
        tuple(pa.field(f"col-{place}", kind) for place, kind in enumerate(kinds)),
        tuple(marked),
        pa.field(MARKS, MAP) if any(marked) else None,
    )
    return key, draw(st.lists(one, max_size=8, unique=True)), draw(st.lists(one, max_size=20))


def _window(key: KeyColumns, found: list[Key]) -> pa.Table:
    arrays: dict[str, pa.Array] = {"other": pa.array(range(len(found)), pa.int64())}
    for place, field in enumerate(key.fields):
        arrays[f"{KEY}{place}"] = pa.array([one[place][0] for one in found], field.type)
        arrays[f"{KEY_SPECIAL}{place}"] = pa.array([one[place][1] for one in found], pa.string())
    return pa.table(arrays)


def _file(key: KeyColumns, found: list[Key]) -> pa.Table:
    arrays = {
        field.name: pa.array([one[place][0] for one in found], field.type) for place, field in enumerate(key.fields)
    }
    if key.special is not None:
        marks = [
            [(name, text) for name, (_, text) in zip(key.names, one, strict=True) if text is not None] or None
            for one in found
        ]
        arrays[MARKS] = pa.array(marks, MAP)
    return pa.table(arrays)


def _pairs(keys: WindowKeys, file: FileKeys) -> list[tuple[int, int]]:
    positions, ordinals = keys.find(file)
    return sorted(zip(positions.tolist(), ordinals.tolist(), strict=True))


@settings(max_examples=500 if FULL else 200, deadline=None)
@given(search=_searches(), data=st.data())
def test_the_search_finds_what_a_naive_join_finds(
    search: tuple[KeyColumns, list[Key], list[Key]], data: st.DataObject
) -> None:
    key, window, stored = search
    chosen = [place for place in range(len(window)) if data.draw(st.booleans())]
    rows, file = _window(key, window), _file(key, stored)
    keys = WindowKeys(rows, np.array(chosen, dtype=np.int64), key)
    expected = sorted(
        (position, place) for position, one in enumerate(stored) for place in chosen if one == window[place]
    )
    assert _pairs(keys, FileKeys.read(file, key)) == expected
    if stored:
        stated = json.loads(statistics(file, leading=-1))
        assert keys.may_be_in(stated["minValues"], stated["maxValues"]) or not expected
    assert keys.may_be_in({}, {}) == bool(chosen)


def _one(kind: pa.DataType) -> KeyColumns:
    return KeyColumns(("k",), (pa.field("col-0", kind),), (False,), None)


def _plain(values: list[Any]) -> list[Key]:
    return [((value, None),) for value in values]


def _keys(kind: pa.DataType, values: list[Any]) -> WindowKeys:
    key = _one(kind)
    return WindowKeys(_window(key, _plain(values)), np.arange(len(values)), key)


@pytest.mark.parametrize("kind", [pa.int64(), pa.string()])
def test_two_net_changes_of_one_key_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedChange, match="two net changes"):
        _keys(kind, [pa.scalar(7).cast(kind).as_py()] * 2)


def test_a_file_without_a_key_column_is_refused() -> None:
    with pytest.raises(UnsupportedChange, match="no key column"):
        FileKeys.read(pa.table({"other": [1]}), _one(pa.int64()))


def test_removed_rows_from_before_their_column_was_the_key_may_have_no_value_in_it() -> None:
    key = _one(pa.int64())
    keys = FileKeys.read(pa.table({"col-0": pa.array([None, 7, None, 3, 9], pa.int64())}), key)
    assert sorted(_pairs(_keys(pa.int64(), [3, 7, 0]), keys)) == [(1, 1), (3, 0)]
    none = FileKeys.read(pa.table({"col-0": pa.array([None, None], pa.int64())}), key)
    assert _pairs(_keys(pa.int64(), [0, 3]), none) == []


def test_a_file_older_than_the_column_of_marks_holds_none() -> None:
    key = KeyColumns(("k",), (pa.field("col-0", pa.timestamp("us")),), (True,), pa.field(MARKS, MAP))
    window: list[Key] = [((EPOCH, None),), ((None, "infinity"),)]
    keys = WindowKeys(_window(key, window), np.arange(2), key)
    assert _pairs(keys, FileKeys.read(pa.table({"col-0": pa.array([None, EPOCH], pa.timestamp("us"))}), key)) == [
        (1, 0)
    ]


@pytest.mark.parametrize(
    ("values", "low", "high", "expected"),
    [
        (pa.int64(), 10, 20, False),
        (pa.int64(), 7, 7, True),
        (pa.int64(), 8, None, True),
        (pa.int64(), "8", "9", True),
        (pa.string(), "b", "c", False),
        (pa.string(), None, None, True),
    ],
)
def test_bounds_exclude_a_file_only_where_they_say_so(values: pa.DataType, low: Any, high: Any, expected: bool) -> None:
    keys = _keys(values, [pa.scalar(number).cast(values).as_py() for number in (1, 7)])
    assert keys.may_be_in({"col-0": low}, {"col-0": high}) is expected


@pytest.mark.parametrize(("oid", "kind"), [(FLOAT8, "double"), (INT4_ARRAY, delta_array("integer"))])
def test_keys_that_are_not_compared_byte_for_byte_are_left_to_spark(oid: int, kind: Any) -> None:
    on = {"delta.enableDeletionVectors": "true"}
    layout = read_layout(delta_schema(delta_field("k", kind)), properties=on, partitions=[], features=[])
    with pytest.raises(NotDirect, match="floating-point number or nested"):
        KeyColumns.of(table_schema(column("k", 1, oid, key=True)), layout)

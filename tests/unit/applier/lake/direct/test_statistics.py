"""Statistics that exclude a value are read as "not in this file": bounds may be wide, never narrow."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from sluice_spark.lake.direct.statistics import statistics

GREATEST = "\U0010ffff"
TEXTS = st.one_of(
    st.text(),
    st.text(st.sampled_from(["a", "\x00", '"', "\u00e9", "\uffff", "\U0001f600", GREATEST]), min_size=30, max_size=36),
    st.builds(lambda end: "a" * 32 + end, st.text(max_size=2)),
)
DECIMALS = st.integers(-(10**38) + 1, 10**38 - 1)


def _stated(column: pa.Array, **options: Any) -> dict[str, Any]:
    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    text = statistics(pa.table({"c": column}), **{"leading": -1, **options})
    found: dict[str, Any] = json.loads(text, parse_float=Decimal, parse_constant=refuse)
    return found


def _micros(text: str) -> int:
    return int(np.datetime64(text.removesuffix("Z"), "us").astype(np.int64))


def _days(text: str) -> int:
    return int(np.datetime64(text, "D").astype(np.int64))


def _holds(column: pa.Array, values: list[Any], read: Callable[[Any], Any]) -> None:
    stated = _stated(column)
    assert stated["numRecords"] == len(values)
    assert stated["nullCount"] == {"c": sum(value is None for value in values)}
    assert stated["minValues"].keys() == stated["maxValues"].keys()
    if "c" in stated["minValues"]:
        low, high = read(stated["minValues"]["c"]), read(stated["maxValues"]["c"])
        assert all(low <= value <= high for value in values if value is not None)


def _some(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.none() | values, min_size=1, max_size=8)


@settings(max_examples=300, deadline=None)
@given(_some(TEXTS))
def test_texts_lie_within_their_bounds_byte_for_byte(values: list[str | None]) -> None:
    encoded = [None if value is None else value.encode() for value in values]
    _holds(pa.array(values, pa.string()), encoded, str.encode)


@settings(deadline=None)
@given(_some(DECIMALS), st.integers(0, 38))
def test_decimals_of_38_digits_lie_within_their_bounds(digits: list[int | None], scale: int) -> None:
    exact = [
        None if value is None else Decimal((value < 0, tuple(map(int, str(abs(value)))), -scale)) for value in digits
    ]
    _holds(pa.array(exact, pa.decimal128(38, scale)), exact, Decimal)


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_floats_have_no_bounds_whatever_they_are(kind: pa.DataType) -> None:
    stated = _stated(pa.array([1.5, None, 2.5], kind))
    assert (stated["minValues"], stated["maxValues"], stated["nullCount"]) == ({}, {}, {"c": 1})


@pytest.mark.parametrize(
    ("bits", "kind", "read"),
    [
        (64, pa.int64(), int),
        (64, pa.timestamp("us"), _micros),
        (64, pa.timestamp("us", tz="UTC"), _micros),
        (32, pa.date32(), _days),
    ],
    ids=["integers", "timestamps", "timestamps in UTC", "dates"],
)
@settings(deadline=None)
@given(data=st.data())
def test_numbers_times_and_dates_lie_within_their_bounds(
    bits: int, kind: pa.DataType, read: Callable[[Any], int], data: st.DataObject
) -> None:
    end = 1 << (bits - 1)
    near = min(end - 1, 10**15)
    values = data.draw(_some(st.integers(-end, end - 1) | st.integers(-near, near)))
    _holds(pa.array(values, pa.int64() if bits == 64 else pa.int32()).cast(kind), values, read)


@pytest.mark.parametrize(
    ("value", "bounds"),
    [
        ("0001-01-01T00:00:00", ("0001-01-01T00:00:00.000", "0001-01-01T00:00:00.000")),
        ("2026-07-01T12:00:00.000001", ("2026-07-01T12:00:00.000", "2026-07-01T12:00:00.001")),
        ("9999-12-31T23:59:59.999", ("9999-12-31T23:59:59.999", "9999-12-31T23:59:59.999")),
        ("9999-12-31T23:59:59.999001", None),
        ("0000-12-31T23:59:59.999999", None),
        ("10000-01-01T00:00:00", None),
    ],
)
def test_times_outside_of_the_years_1_to_9999_have_no_bounds(value: str, bounds: tuple[str, str] | None) -> None:
    us = np.datetime64(value, "us").astype(np.int64)
    for zone, suffix in ((None, ""), ("UTC", "Z")):
        stated = _stated(pa.array([us]).cast(pa.timestamp("us", tz=zone)))
        found = (stated["minValues"].get("c"), stated["maxValues"].get("c"))
        assert found == ((None, None) if bounds is None else tuple(bound + suffix for bound in bounds))


def test_a_text_is_cut_at_32_characters_not_at_bytes_or_utf16_units() -> None:
    stated = _stated(pa.array(["\U0001f600" * 33]))
    assert stated["minValues"]["c"] == "\U0001f600" * 32
    assert stated["maxValues"]["c"] == "\U0001f600" * 32 + GREATEST
    assert _stated(pa.array(["a" * 32]))["maxValues"]["c"] == "a" * 32


def test_a_text_above_which_there_is_no_short_one_has_no_bounds() -> None:
    assert _stated(pa.array(["a" * 32 + GREATEST + "b"]))["maxValues"] == {}


@pytest.mark.parametrize("column", [pa.array([True]), pa.array([b"x"]), pa.array([None], pa.int64())])
def test_what_has_no_order_or_no_value_has_no_bounds(column: pa.Array) -> None:
    stated = _stated(column)
    assert (stated["minValues"], stated["maxValues"], list(stated["nullCount"])) == ({}, {}, ["c"])


def test_leading_columns_and_keys_have_statistics_and_nested_ones_none() -> None:
    table = pa.table({"a": [1], "list": [[1]], 'k"\u00e9': [3], "z": [datetime(2026, 1, 1, tzinfo=UTC)]})
    stated = json.loads(statistics(table, leading=2, also={'k"\u00e9'}))
    assert stated["minValues"] == {"a": 1, 'k"\u00e9': 3}
    assert stated["nullCount"] == {"a": 0, 'k"\u00e9': 0}
    assert stated["tightBounds"] is True
    assert list(json.loads(statistics(table, leading=-1))["nullCount"]) == ["a", 'k"\u00e9', "z"]

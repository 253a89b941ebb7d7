"""A constant default as the rows have it that are older than the column: typed exactly, or marked whole."""

import math
import struct
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.contract.schema import ColumnSchema
from sluice.contract.types import lake_type
from sluice_spark.lake.evolution import _defaults
from sluice_spark.lake.sql import literal
from sluice_spark.read.column_defaults import elements, missing_value
from tools.local.rendering import array_text

INTS, TEXTS, FLOATS, DATES, TIMESTAMPS, BOOLS, BYTES, NUMERICS = 1007, 1009, 1021, 1182, 1115, 1000, 1001, 1231
REAL = 700
NUMERIC_6_2 = (6 << 16 | 2) + 4


def column(type_oid: int, missing: str, typmod: int = -1) -> ColumnSchema:
    return ColumnSchema("c", 2, type_oid, typmod, "x[]", lake_type(type_oid, typmod), missing=missing)


@given(st.lists(st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))))
def test_the_elements_are_those_that_the_server_wrote(items: list[str | None]) -> None:
    assert elements(array_text(items)) == items


@pytest.mark.parametrize(
    "text", ["", "{", "}", "{1", "1}", "{1}}", "{,}", "{1,}", '{"}', '{"a"b}', "{{1},{2}}", "[0:0]={1}"]
)
def test_what_is_no_plain_array_has_no_elements(text: str) -> None:
    with pytest.raises(ValueError, match="no array"):
        elements(text)


@pytest.mark.parametrize(
    ("type_oid", "text", "value"),
    [
        (INTS, "{}", []),
        (INTS, "{1,NULL,-3}", [1, None, -3]),
        (TEXTS, '{a,"NULL",NULL,"","x,\\"{}\\\\y"}', ["a", "NULL", None, "", 'x,"{}\\y']),
        (FLOATS, "{0.5,Infinity,-0}", [0.5, math.inf, -0.0]),
        (DATES, "{2024-02-29}", [date(2024, 2, 29)]),
        (TIMESTAMPS, '{"2024-02-29 01:02:03.000004"}', [datetime.fromisoformat("2024-02-29T01:02:03.000004")]),
        (BOOLS, "{t,f}", [True, False]),
        (BYTES, '{"\\\\x00ff"}', [b"\x00\xff"]),
        (NUMERICS, "{1.5,NULL}", ["1.5", None]),
    ],
)
def test_an_array_is_typed(type_oid: int, text: str, value: list[Any]) -> None:
    found, mark = missing_value(column(type_oid, text))
    assert (found.as_py(), mark) == (value, None)
    assert [math.copysign(1, item) for item in found.as_py() if isinstance(item, float)] == [
        math.copysign(1, item) for item in value if isinstance(item, float)
    ]


@pytest.mark.parametrize(
    ("text", "sent"),
    [("7.038531e-26", "15ae43fd"), ("1e-45", "00000001"), ("-0", "80000000"), ("-Infinity", "ff800000")],
)
def test_a_real_is_rounded_once_as_the_server_does(text: str, sent: str) -> None:
    (element,) = missing_value(column(FLOATS, f"{{{text}}}"))[0].as_py()
    assert struct.pack(">f", missing_value(column(REAL, text))[0].as_py()).hex() == sent
    assert struct.pack(">f", element).hex() == sent


def test_an_array_of_numerics_has_the_scale_of_its_column() -> None:
    assert missing_value(column(NUMERICS, "{1.50}", NUMERIC_6_2))[0].as_py() == [Decimal("1.50")]


@pytest.mark.parametrize(
    ("type_oid", "text"),
    [(INTS, "{{1},{2}}"), (INTS, "[0:1]={1,2}"), (DATES, "{2024-01-01,infinity}"), (NUMERICS, "{NaN}")],
)
def test_an_array_that_the_lake_type_cannot_hold_is_marked_whole(type_oid: int, text: str) -> None:
    found, mark = missing_value(column(type_oid, text, NUMERIC_6_2 if type_oid == NUMERICS else -1))
    assert (found.as_py(), mark) == (None, text)
    marked = column(type_oid, text, NUMERIC_6_2 if type_oid == NUMERICS else -1)
    assert _defaults([marked]) == ({}, [literal("c"), literal(text)])


def test_an_array_stands_in_a_statement_element_by_element() -> None:
    statements = {
        (INTS, "{}"): "CAST(array() AS array<int>)",
        (INTS, "{1,NULL}"): f"CAST(array(CAST({literal('1')} AS int), CAST(NULL AS int)) AS array<int>)",
        (TEXTS, "{it's}"): "CAST(array(" + literal("it's") + ") AS array<string>)",
        (BYTES, '{"\\\\x00ff"}'): "CAST(array(X'00ff') AS array<binary>)",
    }
    assert {of: _defaults([column(*of)])[0]["c"] for of in statements} == statements

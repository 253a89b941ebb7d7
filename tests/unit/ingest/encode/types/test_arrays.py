"""Arrays: lists where they are flat and their elements fit, the server's text where not."""

from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.contract.types import ARRAYS
from sluice.errors import DecodeError
from tests.support.spooled import array_out, column_of

TEXTS, INTS, BOOLS, BYTEAS, DOUBLES, DATES, NUMERICS = 1009, 1007, 1000, 1001, 1022, 1182, 1231
NUMERIC_12_2 = (12 << 16 | 2) + 4

HELD: list[tuple[int, str, list[object]]] = [
    (TEXTS, "{}", []),
    (TEXTS, '{""}', [""]),
    (TEXTS, '{"NULL"}', ["NULL"]),
    (TEXTS, '{"null",nul}', ["null", "nul"]),
    (TEXTS, r'{"a\"b","c\\","\\\\\"",d}', ['a"b', "c\\", '\\\\"', "d"]),
    (TEXTS, '{"{}","a,b"," x ","[0:1]={"}', ["{}", "a,b", " x ", "[0:1]={"]),
    (TEXTS, '{příliš,"žluťoučký kůň",🐎}', ["příliš", "žluťoučký kůň", "🐎"]),
    (INTS, "{1,NULL,-2147483648}", [1, None, -(2**31)]),
    (INTS, "{NULL,NULL}", [None, None]),
    (BOOLS, "{t,f,NULL}", [True, False, None]),
    (BYTEAS, r'{"\\x00ff","\\x",NULL}', [b"\x00\xff", b"", None]),
    (DOUBLES, "{Infinity,-0,5e-324}", [float("inf"), -0.0, 5e-324]),
    (DATES, "{2024-02-29,NULL}", [date(2024, 2, 29), None]),
    (NUMERICS, "{1.50,NULL}", [Decimal("1.50"), None]),
]

SPECIAL: dict[int, list[str]] = {
    INTS: ["[0:1]={1,2}", "[2:2]={1}", "{{1,2},{3,4}}"],
    TEXTS: ['{{a,"b,c"},{"}",NULL}}'],
    NUMERICS: ["{1.00,NaN}", "{12345678901.00,1.00}"],
    DATES: ["{infinity,2024-01-01}", '{"0044-03-15 BC"}'],
}


@pytest.mark.parametrize(("type_oid", "text", "value"), HELD)
def test_a_flat_array_is_a_list(type_oid: int, text: str, value: list[object]) -> None:
    encoded = text.encode()
    assert column_of(type_oid, [encoded, None, b"{}", encoded], typmod=NUMERIC_12_2) == (
        [value, None, [], value],
        [None] * 4,
    )


@pytest.mark.parametrize(("type_oid", "text"), [(of, text) for of in SPECIAL for text in SPECIAL[of]])
def test_any_other_array_is_its_whole_text_and_its_neighbours_stay_lists(type_oid: int, text: str) -> None:
    held, expected = next((held.encode(), value) for oid, held, value in HELD if oid == type_oid and value)
    assert column_of(type_oid, [held, text.encode(), b"{}", None, held], typmod=NUMERIC_12_2) == (
        [expected, None, [], None, expected],
        [None, text, None, None, None],
    )
    assert column_of(type_oid, [text.encode()], typmod=NUMERIC_12_2) == ([None], [text])


@pytest.mark.parametrize("text", ["", "1,2", "{1,2", '{"a}', "{1,x}", "{1}2"])
def test_text_that_is_no_array_stops(text: str) -> None:
    with pytest.raises(DecodeError, match=r"public\.t\.v"):
        column_of(INTS, [b"{1}", text.encode()])


ELEMENTS = st.none() | st.text(st.sampled_from('ab,{}"\\ \n\tNULnulé🐎[]=:'), max_size=8)


@given(st.lists(st.none() | st.lists(ELEMENTS, max_size=6), max_size=12))
def test_quoting_is_undone_exactly(arrays: list[list[str | None] | None]) -> None:
    texts = [None if array is None else array_out(array).encode() for array in arrays]
    assert column_of(TEXTS, texts) == (arrays, [None] * len(arrays))


@given(st.lists(st.lists(ELEMENTS, min_size=1, max_size=3), min_size=1, max_size=3), st.lists(ELEMENTS, max_size=4))
def test_a_nested_array_is_special_and_does_not_touch_the_next_row(
    nested: list[list[str | None]], flat: list[str | None]
) -> None:
    text = "{" + ",".join(map(array_out, nested)) + "}"
    assert column_of(TEXTS, [text.encode(), array_out(flat).encode()]) == ([None, flat], [text, None])


def test_many_arrays_past_the_width_of_the_quote_counter() -> None:
    """Quotes are counted in one byte that wraps: three hundred rows of odd lengths must not lose step."""
    arrays: list[list[str | None]] = [['"' * (row % 5), ",", None][: row % 4] for row in range(300)]
    assert column_of(TEXTS, [array_out(array).encode() for array in arrays])[0] == arrays


@pytest.mark.parametrize("type_oid", [*ARRAYS])
def test_columns_of_nothing_but_empty_arrays_or_null_elements_are_fine(type_oid: int) -> None:
    assert column_of(type_oid, [b"{}", b"{}"], typmod=NUMERIC_12_2) == ([[], []], [None, None])
    assert column_of(type_oid, [b"{NULL}"], typmod=NUMERIC_12_2) == ([[None]], [None])

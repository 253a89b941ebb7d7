"""Values in binary form come to the very column that their text comes to: typed values, special texts, key changes.

The bytes are written here from the manual's layouts; tests/integration compares with what servers send.
"""

import struct
from datetime import date, timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.contract.schema import ColumnSchema, TableSchema
from service.contract.types import lake_type, sent_form
from service.errors import DecodeError, UnsupportedChange
from service.spool.types.sent_times import date_text, timestamp_text
from tests.support.pgoutput_bytes import UNCHANGED, Binary, Field, update
from tests.support.spooled import OID, column_of, encoded, inserted

BOOL, BYTEA, INT8, INT2, INT4, TEXT, OID_TYPE, FLOAT4, FLOAT8, DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC, UUID, JSONB = (
    16, 17, 20, 21, 23, 25, 26, 700, 701, 1082, 1114, 1184, 1700, 2950, 3802,
)  # fmt: skip
DAY_US = 86_400_000_000


def sent_table(type_oid: int, typmod: int = -1, *, replica_identity: str = "d", key: bool = False) -> TableSchema:
    form = sent_form(type_oid, typmod, is_enum=False)
    identity = key or replica_identity == "f"
    column = ColumnSchema("v", 1, type_oid, typmod, "", lake_type(type_oid, typmod), key=key, identity=identity, sent=form)
    return TableSchema("7", 1, "public", "t", replica_identity, (column,))


def sent(type_oid: int, values: list[bytes | None], *, typmod: int = -1) -> tuple[list[object], list[str | None]]:
    fields: list[Field] = [None if value is None else Binary(value) for value in values]
    batch = inserted(sent_table(type_oid, typmod), *([field] for field in fields)).batch
    batch.validate(full=True)
    special = [None if marks is None else dict(marks)["v"] for marks in batch.column("_sluice_special").to_pylist()]
    return batch.column("v").to_pylist(), special


def numeric_typmod(precision: int, scale: int) -> int:
    return (precision << 16 | scale) + 4


def numeric_send(text: str, *, decimals: int | None = None) -> bytes:
    """As numeric_send writes it: no leading and no trailing zero groups."""
    words = {"NaN": (0, 0, 0xC000, 0), "Infinity": (0, 0, 0xD000, 32), "-Infinity": (0, 0, 0xF000, 32)}
    if text in words:
        return struct.pack(">hhHH", *words[text])
    sign, text = (0x4000, text[1:]) if text.startswith("-") else (0, text)
    whole, _, part = text.partition(".")
    shown = len(part) if decimals is None else decimals
    whole, part = "0" * (-len(whole) % 4) + whole, part + "0" * (-len(part) % 4)
    weight = len(whole) // 4 - 1
    digits = [int((whole + part)[at : at + 4]) for at in range(0, len(whole + part), 4)]
    while digits and digits[0] == 0:
        digits, weight = digits[1:], weight - 1
    while digits and digits[-1] == 0:
        digits = digits[:-1]
    if not digits:
        sign = weight = 0
    return struct.pack(f">hhHH{len(digits)}h", len(digits), weight, sign, shown, *digits)


def test_numbers_of_every_width_and_booleans_keep_their_bits() -> None:
    for type_oid, form, values in (
        (INT2, ">h", [-(2**15), 2**15 - 1, 0]),
        (INT4, ">i", [-(2**31), 2**31 - 1, 1]),
        (INT8, ">q", [-(2**63), 2**63 - 1, -1]),
        (OID_TYPE, ">I", [2**32 - 1, 0, 16384]),
        (FLOAT4, ">f", [0.0, -0.0, float("inf"), float("-inf"), 2.0**-149]),
        (FLOAT8, ">d", [0.1, -0.0, float("inf"), float("-inf"), 5e-324]),
        (BOOL, ">?", [True, False]),
    ):
        found, special = sent(type_oid, [*(struct.pack(form, value) for value in values), None])
        assert repr(found) == repr([*values, None])
        assert set(special) == {None}
    (nan,), _ = sent(FLOAT8, [struct.pack(">d", float("nan"))])
    assert nan != nan


def test_bytes_and_texts_are_what_was_sent() -> None:
    assert sent(BYTEA, [b"", b"\0\xff'\\", None])[0] == [b"", b"\0\xff'\\", None]
    assert sent(TEXT, [b"", "ü".encode(), None])[0] == ["", "ü", None]
    assert sent(JSONB, [b'\x01{"a": 1}', None])[0] == ['{"a": 1}', None]
    assert sent(UUID, [bytes.fromhex("a0eebc999c0b4ef8bb6d6bb9bd380a11"), None, bytes(16)])[0] == [
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        None,
        "00000000-0000-0000-0000-000000000000",
    ]


@settings(deadline=None, max_examples=120)
@given(st.data())
def test_numeric_sent_equals_numeric_printed(data: st.DataObject) -> None:
    precision = data.draw(st.integers(1, 38))
    scale = data.draw(st.integers(0, precision))
    numbers = (
        st.integers(-(10 ** (precision + 1)), 10 ** (precision + 1)) | st.integers(-(10**4), 10**4) | st.sampled_from([0, 10**precision - 1, 10**precision])
    )
    values = data.draw(st.lists(st.none() | numbers | st.sampled_from(["NaN", "Infinity", "-Infinity"]), max_size=12))
    texts = [_printed(value, scale) for value in values]
    typmod = numeric_typmod(precision, scale)
    assert sent(NUMERIC, [None if text is None else numeric_send(text) for text in texts], typmod=typmod) == column_of(
        NUMERIC, [None if text is None else text.encode() for text in texts], typmod=typmod
    )


def _printed(value: int | str | None, scale: int) -> str | None:
    if not isinstance(value, int):
        return value
    digits = f"{abs(value):0{scale + 1}d}"
    return ("-" if value < 0 else "") + (f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits)


def test_numeric_that_does_not_fit_its_type_is_special_with_its_text() -> None:
    texts = ["0.001", "1000.00", "-12345678901234567890123456789012345678901234567890.50", "0.10"]
    found, special = sent(NUMERIC, [numeric_send(text) for text in texts], typmod=numeric_typmod(5, 2))
    assert found == [None, None, None, Decimal("0.10")]
    assert special == [*texts[:3], None]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.none() | st.integers(-2_451_545, 2_145_031_948) | st.sampled_from([2**31 - 1, -(2**31)]), max_size=8))
def test_dates_are_held_or_special_as_their_texts_are(days: list[int | None]) -> None:
    texts = [None if day is None else date_text(day).encode() for day in days]
    assert sent(DATE, [None if day is None else struct.pack(">i", day) for day in days]) == column_of(DATE, texts)


@pytest.mark.parametrize(("type_oid", "zone"), [(TIMESTAMP, ""), (TIMESTAMPTZ, "+00")])
@settings(deadline=None, max_examples=50)
@given(st.lists(st.none() | st.integers(-211_813_488_000_000_000, 9_223_371_331_199_999_999) | st.sampled_from([2**63 - 1, -(2**63)]), max_size=8))
def test_times_are_held_or_special_as_their_texts_are(type_oid: int, zone: str, counts: list[int | None]) -> None:
    texts = [None if count is None else timestamp_text(count, zone).encode() for count in counts]
    assert sent(type_oid, [None if count is None else struct.pack(">q", count) for count in counts]) == column_of(type_oid, texts)


@given(st.integers(-730_119, 2_921_939))
def test_the_calendar_is_pythons_where_python_has_one(days: int) -> None:
    assert date_text(days) == (date(2000, 1, 1) + timedelta(days=days)).isoformat()


@pytest.mark.parametrize(
    ("days", "text"),
    [(-730_120, "0001-12-31 BC"), (-2_451_545, "4714-11-24 BC"), (2_921_940, "10000-01-01"), (2_145_031_948, "5874897-12-31"), (2**31 - 1, "infinity")],
)
def test_days_that_only_postgresql_has_are_spelled_as_it_does(days: int, text: str) -> None:
    assert date_text(days) == text


def test_a_value_left_out_is_taken_from_a_full_old_row_in_binary_form() -> None:
    schema = sent_table(INT4, replica_identity="f")
    batch = encoded(schema, update(OID, [UNCHANGED], old=[Binary(struct.pack(">i", 7))], marker=b"O")).batch
    assert batch.column("v").to_pylist() == [7]
    assert batch.column("_sluice_unchanged").to_pylist() == [None]


def test_a_value_left_out_stays_marked_in_binary_form() -> None:
    batch = encoded(sent_table(TEXT), update(OID, [UNCHANGED]), update(OID, [Binary(b"x")])).batch
    assert batch.column("v").to_pylist() == [None, "x"]
    assert batch.column("_sluice_unchanged").to_pylist() == [[1], None]


def test_a_key_change_is_counted_in_binary_form() -> None:
    schema = sent_table(UUID, key=True)
    one, other = Binary(bytes(16)), Binary(b"\1" * 16)
    rows = encoded(schema, update(OID, [one], old=[other]), update(OID, [one], old=[one]))
    assert rows.stats.key_changes == 1
    assert rows.stats.key_ranges == {"v": ("00000000-0000-0000-0000-000000000000", "01010101-0101-0101-0101-010101010101")}


@pytest.mark.parametrize(
    ("type_oid", "content"),
    [
        (BOOL, b"\2"), (BOOL, b""), (INT4, b"\0\0\1"), (INT8, b"\0\0\0\1"), (FLOAT8, b"\0"), (DATE, bytes(5)), (TIMESTAMP, bytes(4)), (UUID, bytes(15)),
        (JSONB, b""), (JSONB, b"\2{}"), (NUMERIC, bytes(7)), (NUMERIC, struct.pack(">hhHH", 1, 0, 0, 0)), (NUMERIC, struct.pack(">hhHH", 0, 0, 0x1234, 0)),
        (NUMERIC, struct.pack(">hhHHH", 1, 0, 0, 0, 10_000)),
    ],
)  # fmt: skip
def test_bytes_that_the_type_never_sends_are_refused_by_column(type_oid: int, content: bytes) -> None:
    with pytest.raises(DecodeError, match=r"public\.t\.v.*binary form"):
        sent(type_oid, [content, None], typmod=numeric_typmod(12, 2) if type_oid == NUMERIC else -1)


def test_a_column_in_two_forms_is_refused() -> None:
    with pytest.raises(DecodeError, match=r"public\.t\.v.*both"):
        inserted(sent_table(TEXT), [Binary(b"x")], [b"x"])
    with pytest.raises(DecodeError, match=r"public\.t\.v.*both"):
        encoded(
            sent_table(TEXT, replica_identity="f"),
            update(OID, [UNCHANGED], old=[b"x"], marker=b"O"),
            update(OID, [Binary(b"y")], old=[Binary(b"x")], marker=b"O"),
        )


@pytest.mark.parametrize("type_oid", [1007, 1186, 18, 142, 1033, 3904, 600, 1083, 1266, 790, 869, 16_999])
def test_types_that_cannot_be_read_so_have_no_form(type_oid: int) -> None:
    assert sent_form(type_oid, -1, is_enum=False) == ""
    with pytest.raises(UnsupportedChange, match=r"public\.t\.v"):
        sent(type_oid, [b"\0\0\0\0"])


def test_numeric_without_precision_has_no_form_and_enums_are_their_labels() -> None:
    assert sent_form(NUMERIC, -1, is_enum=False) == sent_form(NUMERIC, numeric_typmod(39, 0), is_enum=False) == ""
    assert sent_form(99_999, -1, is_enum=True) == "text"


def test_nothing_is_read_outside_the_values() -> None:
    """Rows without a value among rows with one: their places mean nothing."""
    values = [None, struct.pack(">q", 5), None]
    assert sent(INT8, values)[0] == [None, 5, None]
    assert sent(UUID, [None, None])[0] == [None, None]

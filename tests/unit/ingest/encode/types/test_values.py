"""Every type's values at their extremes: exact in the typed column, or exact text among the specials, never neither."""

import struct
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.contract.types import ARRAYS, SCALARS, lake_type
from sluice.errors import DecodeError, UnsupportedChange
from sluice.ingest.encode.types.families import arrow_type
from tests.support.extent import FULL
from tests.support.pgoutput_bytes import Binary
from tests.support.spooled import column_of, inserted, table

BOOL, BYTEA, INT8, INT2, INT4, OID, FLOAT4, FLOAT8 = 16, 17, 20, 21, 23, 26, 700, 701
TEXT, CHAR, DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC, UUID = 25, 1042, 1082, 1114, 1184, 1700, 2950
UTC = timezone.utc  # noqa: UP017 - reads better beside timedelta offsets


def numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


HELD: list[tuple[int, int, bytes, object]] = [
    (BOOL, -1, b"t", True),
    (BOOL, -1, b"f", False),
    (INT2, -1, b"-32768", -32768),
    (INT2, -1, b"32767", 32767),
    (INT4, -1, b"-2147483648", -(2**31)),
    (INT4, -1, b"2147483647", 2**31 - 1),
    (INT8, -1, b"-9223372036854775808", -(2**63)),
    (INT8, -1, b"9223372036854775807", 2**63 - 1),
    (OID, -1, b"4294967295", 2**32 - 1),
    (TEXT, -1, b"", ""),
    (TEXT, -1, b"NULL", "NULL"),
    (TEXT, -1, "žluťoučký 🐎 kůň přes dvanáct".encode(), "žluťoučký 🐎 kůň přes dvanáct"),
    (TEXT, -1, b"x" * 12, "x" * 12),
    (TEXT, -1, b"x" * 13, "x" * 13),
    (CHAR, 9, b"ab   ", "ab   "),
    (UUID, -1, b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    (FLOAT8, -1, b"1.7976931348623157e+308", 1.7976931348623157e308),
    (FLOAT8, -1, b"5e-324", 5e-324),
    (FLOAT4, -1, b"3.4028235e+38", struct.unpack("f", b"\xff\xff\x7f\x7f")[0]),
    (FLOAT4, -1, b"1e-45", struct.unpack("f", b"\x01\0\0\0")[0]),
    (NUMERIC, numeric(12, 2), b"-9999999999.99", Decimal("-9999999999.99")),
    (NUMERIC, numeric(38, 0), b"9" * 38, Decimal("9" * 38)),
    (NUMERIC, numeric(38, 0), b"-" + b"9" * 38, Decimal("-" + "9" * 38)),
    (NUMERIC, numeric(38, 38), b"-0." + b"9" * 38, Decimal("-0." + "9" * 38)),
    (NUMERIC, numeric(38, 10), b"-" + b"9" * 28 + b"." + b"9" * 10, Decimal("-" + "9" * 28 + "." + "9" * 10)),
    (NUMERIC, numeric(38, 37), b"9." + b"9" * 37, Decimal("9." + "9" * 37)),
    (NUMERIC, numeric(38, 28), b"1.5", Decimal("1.5")),
    (NUMERIC, numeric(38, 26), b"-1", Decimal(-1)),
    (NUMERIC, numeric(3, -2), b"99900", Decimal(99900)),
    (NUMERIC, numeric(2, 5), b"0.00099", Decimal("0.00099")),
    (DATE, -1, b"0001-01-01", date(1, 1, 1)),
    (DATE, -1, b"9999-12-31", date(9999, 12, 31)),
    (DATE, -1, b"2000-02-29", date(2000, 2, 29)),
    (TIMESTAMP, -1, b"0001-01-01 00:00:00", datetime(1, 1, 1)),  # noqa: DTZ001 - a timestamp without zone
    (TIMESTAMP, -1, b"9999-12-31 23:59:59.999999", datetime(9999, 12, 31, 23, 59, 59, 999999)),  # noqa: DTZ001 - as above
    (TIMESTAMP, -1, b"1582-10-10 12:00:00.1", datetime(1582, 10, 10, 12, 0, 0, 100000)),  # noqa: DTZ001 - as above
    (TIMESTAMPTZ, -1, b"0001-01-01 00:00:00+00", datetime(1, 1, 1, tzinfo=UTC)),
    (TIMESTAMPTZ, -1, b"9999-12-31 23:59:59.999999+00", datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
    (TIMESTAMPTZ, -1, b"2024-01-01 05:30:00.5+05:30", datetime(2024, 1, 1, 0, 0, 0, 500000, tzinfo=UTC)),
    (TIMESTAMPTZ, -1, b"2023-12-31 21:00:00-03", datetime(2024, 1, 1, tzinfo=UTC)),
    (TIMESTAMPTZ, -1, b"1880-01-01 00:00:00-00:01:15", datetime(1880, 1, 1, 0, 1, 15, tzinfo=UTC)),
    (TIMESTAMPTZ, -1, b"1880-01-01 00:57:44+00:57:44", datetime(1880, 1, 1, tzinfo=UTC)),
]

SPECIAL: dict[tuple[int, int], list[bytes]] = {
    (NUMERIC, numeric(12, 2)): [b"NaN", b"Infinity", b"-Infinity", b"12345678901.23", b"1.234"],
    (NUMERIC, numeric(38, 0)): [b"9" * 39, b"340282366920938463463374607431768211456", b"1" + b"0" * 80],
    (NUMERIC, numeric(38, 38)): [b"1." + b"0" * 38, b"170141183460469231731687303715884105727"],
    (NUMERIC, numeric(38, 37)): [b"-688662.91"],
    (NUMERIC, numeric(38, 28)): [b"9999999999999999999999999999999.99999"],
    (NUMERIC, numeric(38, 26)): [b"1111111111111111111"],
    (DATE, -1): [b"infinity", b"-infinity", b"0044-03-15 BC", b"10000-01-01", b"5874897-12-31"],
    (TIMESTAMP, -1): [
        b"infinity",
        b"-infinity",
        b"4713-01-01 00:00:00 BC",
        b"294276-12-31 23:59:59.999999",
        b"10000-01-01 00:00:00",
    ],
    (TIMESTAMPTZ, -1): [
        b"infinity",
        b"-infinity",
        b"4713-01-01 00:00:00+00 BC",
        b"10000-01-01 00:00:00+00",
        b"0001-01-01 00:00:00+01",
        b"9999-12-31 23:59:59-00:00:01",
    ],
}

UNREADABLE: dict[int, list[bytes]] = {
    BOOL: [b"true", b""],
    INT2: [b"32768"],
    INT4: [b"2147483648", b""],
    INT8: [b"9223372036854775808", b"1.0"],
    FLOAT8: [b"1e400", b"1e-400", b"one"],
    FLOAT4: [b"1e39"],
    BYTEA: [b"\\000", b"\\x0", b"\\x0g", b""],
    NUMERIC: [b"12x", b"1-2"],
    DATE: [b"15.03.2024", b"2024-02-30", b"soon"],
    TIMESTAMP: [b"2024-01-01", b"2024-01-01 00:00:00+00", b"2024-01-01 25:00:00"],
    TIMESTAMPTZ: [b"2024-01-01 00:00:00", b"2024-01-01 00:00:00 UTC"],
}


@pytest.mark.parametrize(("type_oid", "typmod", "text", "value"), HELD)
def test_a_value_that_the_type_holds_is_exact_and_unmarked(
    type_oid: int, typmod: int, text: bytes, value: object
) -> None:
    assert column_of(type_oid, [text, None, text], typmod=typmod) == ([value, None, value], [None, None, None])


@pytest.mark.parametrize(
    ("type_oid", "typmod", "text"), [(*of, text) for of, texts in SPECIAL.items() for text in texts]
)
def test_a_value_that_the_type_cannot_hold_is_null_and_its_text_kept(type_oid: int, typmod: int, text: bytes) -> None:
    ordinary = next(held for oid, mod, held, _ in HELD if (oid, mod) == (type_oid, typmod))
    values, special = column_of(type_oid, [ordinary, text, None, ordinary], typmod=typmod)
    assert [value is None for value in values] == [False, True, True, False]
    assert special == [None, text.decode(), None, None]


@pytest.mark.parametrize(("type_oid", "text"), [(of, text) for of in UNREADABLE for text in UNREADABLE[of]])
def test_text_that_the_type_never_prints_stops_without_showing_it(type_oid: int, text: bytes) -> None:
    with pytest.raises(DecodeError, match=r"^public\.t\.v: ") as caught:
        column_of(type_oid, [text], typmod=numeric(12, 2) if type_oid == NUMERIC else -1)
    assert len(text) < 5 or text.decode() not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("type_oid", [FLOAT4, FLOAT8])
def test_nan_and_minus_zero_are_values(type_oid: int) -> None:
    values, special = column_of(type_oid, [b"NaN", b"-0", b"0"])
    assert [str(value) for value in values] == ["nan", "-0.0", "0.0"]
    assert special == [None] * 3


@pytest.mark.parametrize("type_oid", [TEXT, UUID, 1009])
def test_text_that_is_not_utf8_is_refused_by_column_and_never_becomes_a_string(type_oid: int) -> None:
    text = b"{\xff\xfe}" if type_oid == 1009 else b"\xff\xfe"
    with pytest.raises(UnsupportedChange, match=r"public\.t\.v"):
        column_of(type_oid, [text])


def test_a_value_in_binary_form_is_refused_where_its_column_has_no_reader_for_it() -> None:
    with pytest.raises(UnsupportedChange, match=r"public\.t\.v.*binary form") as caught:
        inserted(table(("v", INT4, -1)), [Binary(b"\0\0\0\1")])
    assert "source.binary" in caught.value.hint


@pytest.mark.parametrize(
    ("type_oid", "typmod", "expected"),
    [
        (NUMERIC, -1, pa.string()),
        (NUMERIC, numeric(39, 0), pa.string()),
        (NUMERIC, numeric(12, 2), pa.decimal128(12, 2)),
        (TIMESTAMP, -1, pa.timestamp("us")),
        (TIMESTAMPTZ, -1, pa.timestamp("us", "UTC")),
        (BYTEA, -1, pa.binary()),
        (1231, numeric(12, 2), pa.list_(pa.field("element", pa.decimal128(12, 2)))),
    ],
)
def test_columns_have_the_arrow_type_of_their_lake_type(type_oid: int, typmod: int, expected: pa.DataType) -> None:
    batch = inserted(table(("v", type_oid, typmod)), [None]).batch
    assert batch.schema.field("v").type == expected
    assert batch.column("v").to_pylist() == [None]


@pytest.mark.parametrize("type_oid", [*SCALARS, *ARRAYS, NUMERIC, UUID])
@pytest.mark.parametrize("typmod", [-1, numeric(12, 2)])
def test_every_type_has_an_arrow_type_and_a_reader(type_oid: int, typmod: int) -> None:
    lake = lake_type(type_oid, typmod)
    plain = {
        "boolean": b"t",
        "bytea": b"\\x00",
        "date": b"2024-01-01",
        "timestamp": b"2024-01-01 00:00:00",
        "timestamptz": b"2024-01-01 00:00:00+00",
    }
    text = plain.get(lake.family.removesuffix("[]"), b"1")
    if lake.is_array:
        text = b'{"' + text.replace(b"\\", b"\\\\") + b'"}'
    column = inserted(table(("v", type_oid, typmod)), [text], [None]).batch.column("v")
    assert column.type == arrow_type(lake)
    assert pa.types.is_list(column.type) == lake.is_array
    assert [value.is_valid for value in column] == [True, False]


DIGITS = st.text("0123456789", min_size=1, max_size=45) | st.integers(1, 45).map(lambda count: "9" * count)
NUMBERS = st.builds(
    lambda sign, whole, fraction: sign + (whole.lstrip("0") or "0") + ("." + fraction if fraction else ""),
    st.sampled_from(["", "-"]),
    DIGITS,
    st.just("") | DIGITS,
)


@settings(max_examples=300 if FULL else 120)
@given(
    st.lists(st.none() | NUMBERS | st.sampled_from(["NaN", "Infinity", "-Infinity"]), min_size=1, max_size=5),
    st.integers(1, 38),
    st.data(),
)
def test_numeric_is_the_decimal_or_its_text(texts: list[str | None], precision: int, data: st.DataObject) -> None:
    scale = data.draw(st.integers(0, precision))
    values, special = column_of(
        NUMERIC, [None if text is None else text.encode() for text in texts], typmod=numeric(precision, scale)
    )
    for text, value, mark in zip(texts, values, special, strict=True):
        if value is None:
            assert mark == text
        else:
            assert isinstance(value, Decimal)
            assert (mark, value) == (None, Decimal(str(text)))
        if text is not None and text[-1].isdigit():
            whole, _, fraction = text.lstrip("-").partition(".")
            if len(fraction) <= scale:
                assert (value is not None) == (len(whole.lstrip("0")) <= precision - scale)


ZONES = st.integers(-15 * 3600, 15 * 3600).map(lambda seconds: timezone(timedelta(seconds=seconds)))


@given(st.lists(st.none() | st.datetimes(timezones=ZONES), max_size=20))
def test_timestamptz_is_the_instant_or_its_text(times: list[datetime | None]) -> None:
    texts = [None if time is None else _timestamptz_out(time) for time in times]
    values, special = column_of(TIMESTAMPTZ, [None if text is None else text.encode() for text in texts])
    for time, text, value, mark in zip(times, texts, values, special, strict=True):
        if time is not None and _in_spark_range(time):
            assert (value, mark) == (time, None)
        else:
            assert (value, mark) == (None, text)


def _timestamptz_out(time: datetime) -> str:
    """As PostgreSQL prints it: no trailing zeros in the fraction, no more of the offset than needed."""
    offset = time.utcoffset()
    assert offset is not None
    seconds = int(offset.total_seconds())
    sign, seconds = "-" if seconds < 0 else "+", abs(seconds)
    zone = f"{seconds // 3600:02d}"
    if seconds % 3600:
        zone += f":{seconds // 60 % 60:02d}"
    if seconds % 60:
        zone += f":{seconds % 60:02d}"
    return _timestamp_out(time) + sign + zone


def _timestamp_out(time: datetime) -> str:
    text = time.replace(tzinfo=None).isoformat(" ", "microseconds").rstrip("0")
    return text.rstrip(".") if text.endswith(".") else text


def _in_spark_range(time: datetime) -> bool:
    offset = time.utcoffset()
    assert offset is not None
    local = time.replace(tzinfo=None)
    first, last = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001 - local times
    return first + max(offset, timedelta(0)) <= local <= last + min(offset, timedelta(0))


@given(st.lists(st.none() | st.datetimes(), max_size=20))
def test_timestamp_and_date_are_exact(times: list[datetime | None]) -> None:
    texts = [None if time is None else _timestamp_out(time).encode() for time in times]
    assert column_of(TIMESTAMP, texts) == (times, [None] * len(times))
    days = [None if time is None else time.date() for time in times]
    assert column_of(DATE, [None if day is None else day.isoformat().encode() for day in days]) == (
        days,
        [None] * len(days),
    )


@given(st.lists(st.none() | st.binary(max_size=40), max_size=20))
def test_bytea_is_the_bytes(values: list[bytes | None]) -> None:
    texts = [None if value is None else b"\\x" + value.hex().encode() for value in values]
    assert column_of(BYTEA, texts) == (values, [None] * len(values))


@given(st.lists(st.none() | st.floats(allow_nan=False), max_size=20))
def test_double_precision_keeps_every_bit(values: list[float | None]) -> None:
    read, _ = column_of(FLOAT8, [None if value is None else _float_out(value).encode() for value in values])
    assert [None if value is None else struct.pack("d", value) for value in read] == [
        None if v is None else struct.pack("d", v) for v in values
    ]


def _float_out(value: float) -> str:
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return "0" if str(value) == "0.0" else "-0" if str(value) == "-0.0" else repr(value)


@given(
    st.sampled_from(
        [BOOL, BYTEA, INT2, INT4, INT8, TEXT, FLOAT4, FLOAT8, DATE, TIMESTAMP, TIMESTAMPTZ, 1007, 1009, 1182, 1231]
    ),
    st.lists(st.none() | st.text('0123456789-+.:eE BCxtf\\{},"NULinfityaé[]=', max_size=30), min_size=1, max_size=6),
)
def test_a_text_is_never_lost_whatever_it_is(type_oid: int, texts: list[str | None]) -> None:
    """NULL without a mark comes from NULL alone, and nothing but our own errors escapes."""
    try:
        values, special = column_of(
            type_oid, [None if text is None else text.encode() for text in texts], typmod=numeric(12, 2)
        )
    except (DecodeError, UnsupportedChange):
        return
    for text, value, mark in zip(texts, values, special, strict=True):
        assert (value is None and mark is None) == (text is None)
        assert mark is None or (mark == text and value is None)

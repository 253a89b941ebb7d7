"""Values that are easy to get wrong, by the type of their column. No two values of one pool are one key."""

import datetime as dt
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sluice.contract.schema import ColumnSchema
from tests.spark.changes import FLOAT8, INT4, INT4_ARRAY, INT8, TEXT, TIMESTAMP, column

BOOL, BYTEA, INT2, FLOAT4, DATE, TIMESTAMPTZ, NUMERIC, UUID = 16, 17, 21, 700, 1082, 1184, 1700, 2950
TEXT_ARRAY, NUMERIC_ARRAY, TIMESTAMP_ARRAY, BYTEA_ARRAY, FLOAT8_ARRAY = 1009, 1231, 1115, 1001, 1022


class Marked(str):
    """The text of a value that its column cannot hold."""

    __slots__ = ()


Value = Any
"""What a column holds, Marked, or None."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A column to be: its type, and values for it. `more` makes any number of further ones that differ from each other
    and from the pool; `large` says that the server may leave an unchanged one out.
    """

    oid: int
    pool: tuple[Value, ...]
    typmod: int = -1
    more: Callable[[int], Value] | None = None
    large: bool = False

    def column(self, name: str, attnum: int, *, key: bool = False, missing: str | None = None) -> ColumnSchema:
        return column(name, attnum, self.oid, typmod=self.typmod, key=key, missing=missing)

    def any(self, choice: random.Random) -> Value:
        """One value, NULL among them."""
        if choice.random() < 0.15:
            return None
        if self.more is not None and choice.random() < 0.4:
            return self.more(choice.randrange(1_000_000))
        return choice.choice(self.pool)

    def distinct(self, count: int) -> list[Value]:
        """At most `count` different values that are not NULL, the pool first."""
        found = list(self.pool[:count])
        if self.more is not None:
            found += [self.more(number) for number in range(count - len(found))]
        return found


def decimal_typmod(precision: int, scale: int) -> int:
    return (precision << 16 | scale) + 4


_FIRST_32 = "thirty-two characters, all equal"
assert len(_FIRST_32) == 32
_UTC = dt.UTC
_HOUR = dt.timedelta(hours=1)

TEXTS = (
    "",
    " ",
    "a",
    "A",
    "a ",
    "ä",
    "a\u0308",
    'it\'s \\ "${x}" `%_',
    "tab\tnew\nline\r",
    "\u017f",
    "\u0130",
    "\ue000",
    "\uffff",
    "\U0001f600",
    "\U0010ffff",
    _FIRST_32,
    _FIRST_32 + "\U0010ffff",
    _FIRST_32[:-1] + "\U0010ffff",
    _FIRST_32[:-1] + "\U0010ffffz",
    _FIRST_32 + "a",
    _FIRST_32 + "b" * 4000,
    "null",
    "NaN",
    "\x7f\x01",
)

INTEGER = Kind(INT4, (0, 1, -1, 2**31 - 1, -(2**31)), more=lambda n: 1000 + n)
BIGINT = Kind(INT8, (0, 1, -1, 2**63 - 1, -(2**63), 2**53 + 1), more=lambda n: 10_000_000_000 + n)
SMALLINT = Kind(INT2, (0, -1, 32767, -32768))
BOOLEAN = Kind(BOOL, (True, False))
STRING = Kind(TEXT, TEXTS, more=lambda n: f"text {n * 7919 % 1_000_003} ü", large=True)
UUIDS = Kind(
    UUID,
    ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    more=lambda n: str(uuid.UUID(int=(n + 1) * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128))),
)
BINARY = Kind(
    BYTEA,
    (b"", b"\0", b"\xff" * 40, b"\xff" * 39 + b"\xfe", b"text", b"\0\0"),
    more=lambda n: n.to_bytes(3, "big"),
    large=True,
)
_DAYS = ("0001-01-01", "1582-10-04", "1582-10-15", "1500-02-28", "1969-12-31", "9999-12-31")
DATES = Kind(
    DATE,
    (
        *map(dt.date.fromisoformat, _DAYS),
        *map(Marked, ("infinity", "-infinity", "4713-01-01 BC", "5874897-12-31")),
    ),
    more=lambda n: dt.date(2000, 1, 1) + dt.timedelta(days=n % 300_000),
)
TIMESTAMPS = Kind(
    TIMESTAMP,
    (
        dt.datetime(1, 1, 1),  # noqa: DTZ001 - timestamp without time zone
        *(dt.datetime.fromisoformat(f"{day}T23:59:59.999999") for day in ("1582-10-04", "1969-12-31", "9999-12-31")),
        *map(Marked, ("infinity", "-infinity", "4713-01-01 00:00:00 BC", "294276-12-31 23:59:59.999999")),
    ),
    more=lambda n: dt.datetime(2020, 2, 29) + n * _HOUR + dt.timedelta(microseconds=n),  # noqa: DTZ001
)
INSTANTS = Kind(
    TIMESTAMPTZ,
    (
        dt.datetime(1, 1, 1, tzinfo=_UTC),
        dt.datetime(1883, 11, 18, 17, 3, 58, 1, tzinfo=_UTC),
        dt.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=_UTC),
        Marked("infinity"),
        Marked("4713-01-01 00:00:00+00 BC"),
    ),
    more=lambda n: dt.datetime(2020, 2, 29, tzinfo=_UTC) + n * _HOUR + dt.timedelta(microseconds=999 * n % 1000),
)
MONEY = Kind(
    NUMERIC,
    (
        *map(Decimal, ("0.00", "-0.01", "9999999999.99", "-9999999999.99")),
        *map(Marked, ("NaN", "Infinity", "-Infinity")),
    ),
    decimal_typmod(12, 2),
    more=lambda n: Decimal(n + 100).scaleb(-2),
)
WIDE_DECIMAL = Kind(
    NUMERIC,
    (*map(Decimal, ("9" * 38, "-" + "9" * 38, "9" * 37 + "8", "0", "1")), Marked("NaN")),
    decimal_typmod(38, 0),
    more=lambda n: Decimal((n + 2) * 10**30),
)
FINE_DECIMAL = Kind(
    NUMERIC, (Decimal("0." + "9" * 38), Decimal("-0." + "0" * 37 + "1"), Marked("NaN")), decimal_typmod(38, 38)
)
DOUBLE = Kind(
    FLOAT8,
    (0.0, float("nan"), float("inf"), float("-inf"), 5e-324, 1.7976931348623157e308, 0.1, -0.1),
    more=lambda n: n / 7 + 1,
)
DOUBLES = Kind(FLOAT8, (*DOUBLE.pool, -0.0), more=DOUBLE.more)
"""Both zeros, which are one key and two values."""
FLOATS = Kind(FLOAT4, (0.0, -0.0, float("nan"), float("inf"), 0.5, 1.0000001192092896, -3.4028234663852886e38))
INTEGERS = Kind(
    INT4_ARRAY, ([], [None], [1, None, 3], [2**31 - 1], Marked("{{1,2},{3,4}}"), Marked("[2:3]={1,2}")), large=True
)
STRINGS = Kind(TEXT_ARRAY, ([], ["", None, "NULL", 'a,"b"\\'], ["\U0001f600", "ä"], Marked("{{a},{b}}")), large=True)
DECIMALS = Kind(
    NUMERIC_ARRAY,
    ([Decimal("1.50"), None], [], Marked("{NaN}"), [Decimal("-9999999999.99")]),
    decimal_typmod(12, 2),
    large=True,
)
MOMENTS = Kind(TIMESTAMP_ARRAY, ([dt.datetime(1, 1, 1), None], Marked("{infinity}"), []), large=True)  # noqa: DTZ001
BINARIES = Kind(BYTEA_ARRAY, ([b"", b"\0\xff", None], []), large=True)
REALS = Kind(FLOAT8_ARRAY, ([-0.0, 0.0, float("nan"), None], [float("-inf")], []), large=True)
NUMBER_TEXT = Kind(NUMERIC, ("1e100", "NaN", "0.000", "1.10"), more=lambda n: f"{n}.50", large=True)
"""Without a declared precision, which the lake keeps as text."""

EVERY_KIND = (
    INTEGER, BIGINT, SMALLINT, BOOLEAN, STRING, UUIDS, BINARY, DATES, TIMESTAMPS, INSTANTS, MONEY, WIDE_DECIMAL,
    FINE_DECIMAL, DOUBLES, FLOATS, INTEGERS, STRINGS, DECIMALS, MOMENTS, BINARIES, REALS, NUMBER_TEXT,
)  # fmt: skip

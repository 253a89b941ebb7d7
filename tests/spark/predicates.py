"""Every predicate on edge values, asked of a lake table twice: as a condition, which an engine may push down to the
statistics and dictionaries of data files, and as a column that it computes for each row of a full scan.
"""

import datetime as dt
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from sluice.contract.types import decimal_parts
from tests.spark import pools
from tests.spark.pools import Kind, Marked

AT_ONCE = 40
"""Conditions in one statement."""
_PREFIX = "thirty-two characters, all equal"


def nan(bits: int) -> float:
    """The NaN with these 64 bits."""
    (value,) = struct.unpack("<d", struct.pack("<Q", bits))
    return float(value)


_EDGES = (float("nan"), 0.0, -0.0, 1.5, float("inf"), float("-inf"), -2.5)
KINDS: dict[str, Kind] = {
    "double": Kind(
        701,
        (*_EDGES, 5e-324, -5e-324, 1.7976931348623157e308, -1.7976931348623157e308, nan(0xFFF8000000000001)),
    ),
    "real": Kind(700, (*_EDGES, 1.401298464324817e-45, 3.4028234663852886e38, -3.4028234663852886e38)),
    "text": Kind(25, (*pools.TEXTS[:1], *pools.TEXTS[9:20], _PREFIX + "\U0001f600", _PREFIX[:-1] + "\uffff")),
    "bytea": pools.BINARY,
    "boolean": pools.BOOLEAN,
    "smallint": pools.SMALLINT,
    "integer": pools.INTEGER,
    "bigint": pools.BIGINT,
    "date": pools.DATES,
    "timestamp": pools.TIMESTAMPS,
    "timestamptz": pools.INSTANTS,
    "numeric(12,2)": pools.MONEY,
    "numeric(38,0)": pools.WIDE_DECIMAL,
    "numeric(38,38)": pools.FINE_DECIMAL,
    "numeric": pools.NUMBER_TEXT,
    "uuid": Kind(2950, pools.UUIDS.pool),
    "double precision[]": pools.REALS,
    "real[]": Kind(1021, ([-0.0], [0.0], [float("nan"), None], [])),
    "integer[]": pools.INTEGERS,
    "text[]": pools.STRINGS,
    "numeric(12,2)[]": pools.DECIMALS,
    "timestamp[]": pools.MOMENTS,
    "bytea[]": pools.BINARIES,
}


def name_of(kind: str) -> str:
    return f"c{list(KINDS).index(kind)}"


def rows() -> list[list[dict[str, Any]]]:
    """What each data file is to hold: of every kind one value and the next of its pool, and a NULL; and NULLs only.
    Each value is thus alone with NULL in a column, or beside one other.
    """
    longest = max(len(kind.pool) for kind in KINDS.values())
    files = []
    for first in range(longest):
        chosen = [{name_of(n): kind.pool[first % len(kind.pool)] for n, kind in KINDS.items()}]
        if first % 2:
            chosen.append({name_of(n): kind.pool[(first + 1) % len(kind.pool)] for n, kind in KINDS.items()})
        files.append([*chosen, dict.fromkeys(chosen[0])])
    return [*files, [dict.fromkeys(files[0][0])] * 2]


@dataclass(frozen=True, slots=True)
class Engine:
    """Literals and null-safe equality as one engine spells them."""

    name: str

    def literal(self, value: Any, sql: str) -> str:
        if isinstance(value, list):
            element = sql.removeprefix("array<").removesuffix(">")
            made = ", ".join(self.literal(item, element) for item in value)
            if self.name == "spark":
                return f"CAST(array({made}) AS {sql})"
            return f"arrow_cast(make_array({made}), 'List({_ARROW[element.split('(')[0]]})')"
        if value is None:
            return (
                f"CAST(NULL AS {sql})" if self.name == "spark" else f"arrow_cast(NULL, '{_ARROW[sql.split('(')[0]]}')"
            )
        if isinstance(value, bool):
            return str(value).upper()
        if isinstance(value, bytes):
            return f"X'{value.hex()}'"
        if isinstance(value, str):
            quoted = value.replace("'", "''")
            return f"CAST(X'{value.encode().hex()}' AS STRING)" if self.name == "spark" else f"'{quoted}'"
        text = _text(value)
        if self.name == "spark":
            return f"CAST('{text}' AS {sql})"
        return f"CAST('{text}' AS {sql})" if decimal_parts(sql) else f"arrow_cast('{text}', '{_ARROW[sql]}')"

    def same(self, column: str, value: str) -> str:
        return f"{column} <=> {value}" if self.name == "spark" else f"{column} IS NOT DISTINCT FROM {value}"


SPARK, DELTA_RS = Engine("spark"), Engine("delta-rs")
_ARROW = {
    "double": "Float64",
    "float": "Float32",
    "smallint": "Int16",
    "int": "Int32",
    "bigint": "Int64",
    "date": "Date32",
    "timestamp_ntz": "Timestamp(Microsecond, None)",
    "timestamp": 'Timestamp(Microsecond, Some("UTC"))',
    "string": "Utf8",
    "binary": "Binary",
    "decimal": "Decimal128(12, 2)",
}


def _text(value: Any) -> str:
    if isinstance(value, float):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(str(value), repr(value))
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ").replace("+00:00", "Z")
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def predicates(kind: str, engine: Engine, *, every: bool = True) -> list[str]:
    """Conditions on the column of `kind`; without `every` those that skip files."""
    column, sql = f"`{name_of(kind)}`" if engine is SPARK else name_of(kind), KINDS[kind].column("x", 1).lake.sql
    values = [value for value in KINDS[kind].pool if not isinstance(value, Marked)]
    texts = [engine.literal(value, sql) for value in values]
    found = [f"{column} IS NULL", f"{column} IS NOT NULL"]
    nested = sql.startswith("array<")
    for place, text in enumerate(texts):
        following = texts[(place + 1) % len(texts)]
        found.append(f"{column} = {text}")
        if nested:
            continue
        found += [f"{column} {sign} {text}" for sign in ("<", ">=", *(("<=", ">", "<>") if every else ()))]
        if every:
            found += [
                engine.same(column, text),
                f"{column} IN ({text}, {following})",
                f"{column} NOT IN ({text}, {following})",
                f"{column} BETWEEN {text} AND {following}",
            ]
        if sql == "string":
            found += [f"{column} LIKE '{prefix}%'" for prefix in _prefixes(str(values[place]))]
    return found


def _prefixes(value: str) -> Iterator[str]:
    for size in (1, 31, 32, 33):
        if len(value) >= size and not set(value[:size]) & set("'\\%_\"$`\r\n\t\0"):
            yield value[:size]


def differences(spark: SparkSession, path: Path, kinds: Iterable[str], *, every: bool) -> list[str]:
    """Where an engine finds other rows by a condition than by a full scan. With `every` all conditions are asked, but
    Spark, which takes its time for each, is asked all of them only where its own answers depend on the engine.
    """
    asked = {
        engine: [
            one
            for kind in kinds
            for one in predicates(kind, engine, every=every and (engine is DELTA_RS or kind in ("double", "text")))
        ]
        for engine in (SPARK, DELTA_RS)
    }
    wrong = []
    for engine, conditions in asked.items():
        run = _by_spark(spark, path) if engine is SPARK else _by_delta_rs(path)
        for start in range(0, len(conditions), AT_ONCE):
            some = conditions[start : start + AT_ONCE]
            columns = ", ".join(f"({condition}) AS p{place}" for place, condition in enumerate(some))
            scanned = run(f"SELECT id, {columns} FROM lake")
            pushed = run(" UNION ALL ".join(_branch(place, condition) for place, condition in enumerate(some)))
            found = {(row["p"], row["id"]) for row in pushed}
            true = {(place, row["id"]) for row in scanned for place in range(len(some)) if row[f"p{place}"]}
            wrong += [
                f"{engine.name}: {some[place]!r} leaves out row {number}" for place, number in sorted(true - found)
            ]
            wrong += [f"{engine.name}: {some[place]!r} finds row {number}" for place, number in sorted(found - true)]
    return wrong


def _branch(place: int, condition: str) -> str:
    return f"SELECT {place} AS p, id FROM lake WHERE {condition}"


def _by_spark(spark: SparkSession, path: Path) -> Any:
    session = spark.newSession()
    session.read.format("delta").load(str(path)).createOrReplaceTempView("lake")
    return lambda text: session.sql(text).collect()


def _by_delta_rs(path: Path) -> Any:
    builder = QueryBuilder().register("lake", DeltaTable(path))
    return lambda text: pa.table(builder.execute(text).read_all()).to_pylist()


def with_ids(files: Sequence[Sequence[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    number = 0
    made = []
    for rows_of_file in files:
        made.append([{"id": number + place, **row} for place, row in enumerate(rows_of_file)])
        number += len(rows_of_file)
    return made

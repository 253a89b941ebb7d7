"""Conditions on edge values, asked of a lake table twice by each engine: as a condition, which it may push down to the
statistics and dictionaries of data files, and as a column that it computes for each row of a full scan.
"""

import datetime as dt
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
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
_WITHIN_MS = tuple(dt.datetime(2026, 7, 1, 12, 0, 0, us) for us in (1, 998_999, 999_001, 999_999))  # noqa: DTZ001
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
    "timestamp": Kind(1114, (*pools.TIMESTAMPS.pool, *_WITHIN_MS)),
    "timestamptz": Kind(1184, (*pools.INSTANTS.pool, *(one.replace(tzinfo=dt.UTC) for one in _WITHIN_MS))),
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
    Each value is thus alone with NULL in a column, or beside one other, and often enough for a dictionary.
    """
    longest = max(len(kind.pool) for kind in KINDS.values())
    files = []
    for first in range(longest):
        chosen = [{name_of(n): kind.pool[first % len(kind.pool)] for n, kind in KINDS.items()}]
        if first % 2:
            chosen.append({name_of(n): kind.pool[(first + 1) % len(kind.pool)] for n, kind in KINDS.items()})
        files.append([*chosen * 4, dict.fromkeys(chosen[0])])
    return [*files, [dict.fromkeys(files[0][0])] * 2]


@dataclass(frozen=True, slots=True)
class Condition:
    """A question about the column of `kind`: `sign` with `values`, such as "IN" and two of them."""

    kind: str
    sign: str
    values: tuple[Any, ...] = ()


def conditions(kind: str, *, every: bool) -> Iterator[Condition]:
    """Those on the column of `kind`; without `every` the ones by which most engines leave out files."""
    sql = _sql(kind)
    values = [value for value in KINDS[kind].pool if not isinstance(value, Marked)]
    yield Condition(kind, "IS NULL")
    yield Condition(kind, "IS NOT NULL")
    for place, value in enumerate(values):
        following = values[(place + 1) % len(values)]
        yield Condition(kind, "=", (value,))
        if sql.startswith("array<"):
            continue
        for sign in ("<", ">=", *(("<=", ">", "<>", "IS NOT DISTINCT FROM") if every else ())):
            yield Condition(kind, sign, (value,))
        for sign in ("IN", "NOT IN", "BETWEEN") if every else ():
            yield Condition(kind, sign, (value, following))
        if sql == "string":
            for size in (1, 31, 32, 33):
                if len(value) >= size and not set(value[:size]) & set("'\\%_\"$`\r\n\t\0"):
                    yield Condition(kind, "LIKE", (value[:size],))


def _sql(kind: str) -> str:
    return KINDS[kind].column("x", 1).lake.sql


Found = set[tuple[int, object]]
"""Number of a condition, and a row for which it is true."""


class Engine(ABC):
    """Something that reads the lake."""

    name: str

    @abstractmethod
    def found(self, asked: Sequence[Condition]) -> Found:
        """The rows that each of `asked` finds as a condition."""

    @abstractmethod
    def true(self, asked: Sequence[Condition]) -> Found:
        """The same as computed for each row, whatever files say of themselves."""

    def extremes(self, kinds: Iterable[str]) -> Iterator[str]:
        """Where the least, greatest and number of a column's values are not those of a full scan."""
        yield from ()


class SqlEngine(Engine):
    """One that is asked in SQL. The row of the view `scanned` are those of `lake`."""

    scanned = "lake"
    null_safe = "IS NOT DISTINCT FROM"
    typed, listed, binary = "{}::{}", "[{}]", "X'{}'"
    """How a value of a type, a list and bytes are spelled."""

    @abstractmethod
    def rows(self, text: str) -> list[dict[str, Any]]:
        """What a statement answers."""

    @abstractmethod
    def type_of(self, sql: str) -> str:
        """What the engine calls the type that Spark calls `sql`."""

    def literal(self, value: Any, sql: str) -> str:
        """`value` as a constant of the type that Spark calls `sql`."""
        if isinstance(value, bytes):
            return self.binary.format(value.hex())
        if isinstance(value, list):
            made = self.listed.format(", ".join(self.literal(item, sql[6:-1]) for item in value))
        else:
            made = _quoted(value)
        return self.typed.format(made, self.type_of(sql))

    def found(self, asked: Sequence[Condition]) -> Found:
        branches = (f"SELECT {place} AS p, id FROM lake WHERE {self._text(one)}" for place, one in enumerate(asked))
        return {(row["p"], row["id"]) for row in self.rows(" UNION ALL ".join(branches))}

    def true(self, asked: Sequence[Condition]) -> Found:
        columns = ", ".join(f"({self._text(one)}) AS p{place}" for place, one in enumerate(asked))
        answer = self.rows(f"SELECT id, {columns} FROM {self.scanned}")
        return {(place, row["id"]) for row in answer for place in range(len(asked)) if row[f"p{place}"]}

    def extremes(self, kinds: Iterable[str]) -> Iterator[str]:
        for kind in kinds:
            name = name_of(kind)
            wanted = f"SELECT count({name}) AS n" + (
                "" if _sql(kind).startswith("array<") else f", min({name}) AS low, max({name}) AS high"
            )
            stated = self.rows(f"{wanted} FROM lake")
            scanned = self.rows(f"{wanted} FROM (SELECT * FROM {self.scanned} WHERE abs(number) >= 0)")
            if repr(stated) != repr(scanned):
                yield f"{self.name}: {kind} has {stated} by itself, and {scanned} in a full scan"

    def _text(self, one: Condition) -> str:
        name, made = name_of(one.kind), [self.literal(value, _sql(one.kind)) for value in one.values]
        match one.sign:
            case "IS NULL" | "IS NOT NULL":
                return f"{name} {one.sign}"
            case "IN" | "NOT IN":
                return f"{name} {one.sign} ({', '.join(made)})"
            case "BETWEEN":
                return f"{name} BETWEEN {made[0]} AND {made[1]}"
            case "LIKE":
                return f"{name} LIKE '{one.values[0]}%'"
            case "IS NOT DISTINCT FROM":
                return f"{name} {self.null_safe} {made[0]}"
            case _:
                return f"{name} {one.sign} {made[0]}"


class Spark(SqlEngine):
    """Spark with Delta. It plans each condition by itself, for half a second: compiling what it planned would double
    that.
    """

    name = "Spark"
    null_safe = "<=>"
    typed, listed = "CAST({} AS {})", "array({})"

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self._session = spark.newSession()
        read = self._session.read.format("delta").load(str(path))
        read.withColumn("number", read["id"]).createOrReplaceTempView("lake")

    def rows(self, text: str) -> list[dict[str, Any]]:
        return list(self._session.sql(text).toArrow().to_pylist())

    def type_of(self, sql: str) -> str:
        return sql

    def literal(self, value: Any, sql: str) -> str:
        if isinstance(value, str):
            return f"CAST(X'{value.encode().hex()}' AS STRING)"
        return super().literal(value, sql)


class DataFusion(SqlEngine):
    """delta-rs, asked through its SQL."""

    name = "delta-rs"
    typed, listed = "arrow_cast({}, '{}')", "make_array({})"

    def __init__(self, path: Path) -> None:
        self._builder = QueryBuilder().register("lake", DeltaTable(path))

    def rows(self, text: str) -> list[dict[str, Any]]:
        answer = pa.table(self._builder.execute(text.replace("number", "id")).read_all())
        return list(answer.to_pylist())

    def type_of(self, sql: str) -> str:
        if sql.startswith("array<"):
            return f"List({self.type_of(sql[6:-1])})"
        parts = decimal_parts(sql)
        return f"Decimal128({parts[0]}, {parts[1]})" if parts else _ARROW[sql]


class DuckDb(SqlEngine):
    """DuckDB over the data files that delta-rs names; removed rows are rows to it. It answers from statistics in the
    output of a scan as well, so that the full scan is of a copy.
    """

    name = "DuckDB"
    scanned = "whole"
    binary = "from_hex('{}')"

    def __init__(self, path: Path) -> None:
        self._files = DataFiles.of(path)
        self._base = duckdb.connect()
        self._base.execute("SET TimeZone = 'UTC'")
        listed = ", ".join(f"'{file}'" for file in self._files.paths)
        named = ", ".join(f'"{stored}" AS {name}' for name, stored in self._files.names.items() if name != "id")
        self._base.execute(
            f'CREATE VIEW lake AS SELECT filename || file_row_number AS id, "{self._files.names["id"]}" AS number, '
            f"{named} FROM read_parquet([{listed}], filename = true, file_row_number = true, union_by_name = true)"
        )
        self._base.execute("CREATE TABLE whole AS SELECT * FROM lake")

    def rows(self, text: str) -> list[dict[str, Any]]:
        return list(self._base.sql(text).to_arrow_table().to_pylist())

    def type_of(self, sql: str) -> str:
        return f"{self.type_of(sql[6:-1])}[]" if sql.startswith("array<") else _DUCK.get(sql, sql)


class Datasets(Engine):
    """pyarrow over the data files that delta-rs names; removed rows are rows to it. It does not compare lists."""

    name = "pyarrow"

    def __init__(self, path: Path) -> None:
        self._files = DataFiles.of(path)
        self._parts = [(file, ds.dataset(file)) for file in self._files.paths]
        self._whole = [(file, ds.dataset(part.to_table())) for file, part in self._parts]

    def found(self, asked: Sequence[Condition]) -> Found:
        found: Found = set()
        for file, part in self._parts:
            for place, one in enumerate(asked):
                ids = part.to_table([self._files.names["id"]], filter=self._expression(one))
                found |= {(place, (file, row)) for row in ids.column(0).to_pylist()}
        return found

    def true(self, asked: Sequence[Condition]) -> Found:
        columns = {f"p{place}": self._expression(one) for place, one in enumerate(asked)}
        found: Found = set()
        for file, part in self._whole:
            for row in part.to_table({"id": pc.field(self._files.names["id"]), **columns}).to_pylist():
                found |= {(place, (file, row["id"])) for place in range(len(asked)) if row[f"p{place}"]}
        return found

    def _expression(self, one: Condition) -> Any:
        field, kind = pc.field(self._files.names[name_of(one.kind)]), self._files.types[name_of(one.kind)]
        values = [pa.scalar(value, kind) for value in one.values]
        if pa.types.is_list(kind) and values:
            return pc.scalar(False)
        made: dict[str, Callable[[], Any]] = {
            "IS NULL": field.is_null,
            "IS NOT NULL": field.is_valid,
            "=": lambda: field == values[0],
            "<>": lambda: field != values[0],
            "<": lambda: field < values[0],
            "<=": lambda: field <= values[0],
            ">": lambda: field > values[0],
            ">=": lambda: field >= values[0],
            "IN": lambda: field.isin(pa.array(one.values, kind)),
            "NOT IN": lambda: ~field.isin(pa.array(one.values, kind)),
            "BETWEEN": lambda: (field >= values[0]) & (field <= values[1]),
            "LIKE": lambda: pc.starts_with(field, one.values[0]),
            "IS NOT DISTINCT FROM": lambda: (field == values[0]) & field.is_valid(),
        }
        return made[one.sign]()


@dataclass(frozen=True, slots=True)
class DataFiles:
    """Those of the newest version, with the name and type of each column in them."""

    paths: list[str]
    names: dict[str, str]
    types: dict[str, pa.DataType]

    @staticmethod
    def of(path: Path) -> "DataFiles":
        lake = DeltaTable(path)
        names = {
            field.name: str(field.metadata.get("delta.columnMapping.physicalName", field.name))
            for field in lake.schema().fields
            if not field.name.startswith("_sluice")
        }
        paths = [uri.removeprefix("file://") for uri in lake.file_uris()]
        arrow = pa.schema(lake.schema().to_arrow())
        return DataFiles(paths, names, {name: arrow.field(name).type for name in names})


_ARROW = {
    "double": "Float64",
    "float": "Float32",
    "smallint": "Int16",
    "int": "Int32",
    "bigint": "Int64",
    "boolean": "Boolean",
    "date": "Date32",
    "timestamp_ntz": "Timestamp(Microsecond, None)",
    "timestamp": 'Timestamp(Microsecond, Some("UTC"))',
    "string": "Utf8",
    "binary": "Binary",
}


_DUCK = {"timestamp": "TIMESTAMPTZ", "timestamp_ntz": "TIMESTAMP", "string": "VARCHAR", "binary": "BLOB"}


def _quoted(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return f"'{ {'nan': 'NaN', 'inf': 'Infinity', '-inf': '-Infinity'}.get(str(value), repr(value)) }'"
    if isinstance(value, dt.datetime):
        return f"'{value.isoformat(sep=' ').replace('+00:00', 'Z')}'"
    text = format(value, "f") if isinstance(value, Decimal) else str(value)
    return "'" + text.replace("'", "''") + "'"


def differences(engine: Engine, kinds: Iterable[str], *, every: bool, only: Collection[str] = ()) -> list[str]:
    """Where `engine` finds other rows by a condition than by a full scan. Signs are those in `only`, if any."""
    asked = [one for kind in kinds for one in conditions(kind, every=every) if not only or one.sign in only]
    wrong = []
    for start in range(0, len(asked), AT_ONCE):
        some = asked[start : start + AT_ONCE]
        found, true = engine.found(some), engine.true(some)
        wrong += [f"{engine.name}: {some[place]} leaves out row {row}" for place, row in true - found]
        wrong += [f"{engine.name}: {some[place]} finds row {row}" for place, row in found - true]
    return [*sorted(wrong), *engine.extremes(kinds)]


def with_ids(files: Sequence[Sequence[dict[str, Any]]]) -> list[list[dict[str, Any]]]:
    number = 0
    made = []
    for rows_of_file in files:
        made.append([{"id": number + place, **row} for place, row in enumerate(rows_of_file)])
        number += len(rows_of_file)
    return made

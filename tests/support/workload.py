"""A seeded random workload over tables of every identity and many types, in short transactions.

The same seed on an empty database gives the same statements, so a failure can be run again. Each
transaction leaves one row in `w_log`: what committed is known even when the connection died at
COMMIT. One connection only; the source itself is the oracle.
"""

import random
import string
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

import psycopg
from psycopg import sql

from tests.support import canary

Value = Callable[[random.Random], str | None]
_SMALL = 40
"""Rows a table shrinks back to, so that keys meet again and again."""


def _one_of(*values: str | None) -> Value:
    return lambda choice: choice.choice(values)


def _text(choice: random.Random) -> str | None:
    noise = "".join(choice.choices(string.printable, k=20))
    return choice.choice(
        ["", "NULL", canary.ROW, "a,b", "q\"uo'te", "back\\slash", "tab\there\nline", "ünï çødé 🦆", None, noise]
    )


def _large(choice: random.Random) -> str:
    """Past the TOAST threshold, and not compressible."""
    return "".join(choice.choices(string.ascii_letters, k=choice.choice([3000, 9000])))


def _integer(choice: random.Random) -> str:
    return str(choice.choice([0, 1, -1, 2**31 - 1, -(2**31), choice.randrange(10**6)]))


def _numeric(choice: random.Random) -> str | None:
    return choice.choice([None, "NaN", "0", "-0.0001", "99999999.9999", f"{choice.uniform(-1000, 1000):.4f}"])


def _float(choice: random.Random) -> str:
    return choice.choice(["NaN", "Infinity", "-Infinity", "-0", "1e-30", repr(choice.uniform(-1, 1))])


def _date(choice: random.Random) -> str | None:
    return choice.choice(
        [None, "infinity", "-infinity", "0044-03-15 BC", "10000-01-01", f"20{choice.randrange(10, 30)}-02-28"]
    )


def _time(choice: random.Random) -> str | None:
    return choice.choice(
        [
            None,
            "infinity",
            "1969-12-31 23:59:59.999999",
            f"2024-05-0{choice.randint(1, 9)} 12:00:00.{choice.randrange(10**6):06}",
        ]
    )


_BOOLEAN = _one_of("t", "f", None)
_JSON = _one_of(None, "{}", '{"a": [1, null, "x"], "b": {"c": 1.50}}', f'"{canary.ROW}"', "null", '["\\u00e9"]')
_INTEGERS = _one_of(None, "{}", "{1,NULL,-3}", "{{1,2},{3,4}}", "[0:1]={7,8}")
_TEXTS = _one_of(None, "{}", '{NULL,"NULL","",a}', '{"a,b","q\\"","\\\\"}')
_BYTES = _one_of(None, "\\x", "\\x00ff5c27", "\\xdeadbeef")
_RANGE = _one_of(None, "empty", "[1,5)", "(,3]")


def _uuid(choice: random.Random) -> str:
    return str(uuid.UUID(int=choice.getrandbits(128), version=4))


def _few_letters(choice: random.Random) -> str:
    return "".join(choice.choices("ab'é.\\ ", k=choice.randint(1, 4)))


def _few_numbers(choice: random.Random) -> str:
    return str(choice.randrange(300))


@dataclass(frozen=True)
class Table:
    """`key` columns identify a row at the source; one that is not `mutable` is only inserted into and truncated."""

    name: str
    columns: dict[str, tuple[str, Value]]
    key: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    after: tuple[str, ...] = field(default=())
    large: tuple[str, ...] = ()
    mutable: bool = True

    @property
    def statements(self) -> list[str]:
        columns = [f"{name} {kind}" for name, (kind, _) in self.columns.items()]
        storage = [f"ALTER TABLE {self.name} ALTER COLUMN {name} SET STORAGE EXTERNAL" for name in self.large]
        return [f"CREATE TABLE {self.name} ({', '.join([*columns, *self.constraints])})", *storage, *self.after]


TABLES = (
    Table(
        "w_int",
        {
            "id": ("int", _few_numbers),
            "amount": ("numeric(12,4)", _numeric),
            "note": ("text", _text),
            "body": ("text", _large),
            "doc": ("jsonb", _JSON),
            "wide": ("numeric", _numeric),
        },
        key=("id",),
        constraints=("PRIMARY KEY (id)",),
        large=("body",),
    ),
    Table(
        "w_pair",
        {
            "a": ("int", _few_numbers),
            "b": ("text", _few_letters),
            "v": ("float8", _float),
            "at": ("timestamptz", _time),
            "span": ("int4range", _RANGE),
        },
        key=("a", "b"),
        constraints=("PRIMARY KEY (b, a)",),
    ),
    Table(
        "w_uuid",
        {
            "id": ("uuid", _uuid),
            "numbers": ("int[]", _INTEGERS),
            "labels": ("text[]", _TEXTS),
            "day": ("date", _date),
            "raw": ("bytea", _BYTES),
        },
        key=("id",),
        constraints=("PRIMARY KEY (id)",),
    ),
    Table(
        "w_text",
        {
            "id": ("text", _few_letters),
            "v": ("real", _float),
            "flag": ("boolean", _BOOLEAN),
            "at": ("timestamp", _time),
            "padded": ("char(5)", _few_letters),
        },
        key=("id",),
        constraints=("PRIMARY KEY (id)",),
    ),
    Table(
        "w_index",
        {
            "code": ("text NOT NULL", _few_letters),
            "n": ("bigint", _integer),
            "note": ("varchar(200)", _text),
            "body": ("text", _large),
        },
        key=("code",),
        constraints=("CONSTRAINT w_index_code UNIQUE (code)",),
        after=("ALTER TABLE w_index REPLICA IDENTITY USING INDEX w_index_code",),
        large=("body",),
    ),
    Table(
        "w_full",
        {
            "id": ("int", _few_numbers),
            "body": ("text", _large),
            "doc": ("json", _JSON),
            "n": ("smallint", _few_numbers),
        },
        key=("id",),
        constraints=("PRIMARY KEY (id)",),
        after=("ALTER TABLE w_full REPLICA IDENTITY FULL",),
        large=("body",),
    ),
    Table(
        "w_bag",
        {"a": ("int", _one_of("1", "2", None)), "b": ("text", _one_of("x", "", None))},
        after=("ALTER TABLE w_bag REPLICA IDENTITY FULL",),
    ),
    Table("w_append", {"a": ("int", _integer), "b": ("text", _text)}, mutable=False),
)
LOG = "w_log"
TABLE_NAMES = (*(table.name for table in TABLES), LOG)


class Workload:
    """`create` once, then `transact` as often as wanted. A context manager, for its connection."""

    def __init__(self, dsn: str, *, seed: int, truncates: bool = True) -> None:
        self._dsn = dsn
        self._choice = random.Random(seed)
        self._truncates = truncates
        self._number = 0
        self._connection = psycopg.connect(dsn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def create(self, *, rows: int = 20) -> None:
        """The tables, each with about `rows` rows."""
        with self._connection.transaction():
            for table in TABLES:
                for statement in table.statements:
                    self._connection.execute(statement.encode())
                for _ in range(rows):
                    self._insert(table)
            self._connection.execute(f"CREATE TABLE {LOG} (number bigint PRIMARY KEY, steps int NOT NULL)".encode())

    def transact(self, count: int = 1) -> None:
        """`count` random transactions. psycopg.OperationalError passes through; then `reconnect` before the next."""
        for _ in range(count):
            self._number += 1
            steps = self._choice.randint(1, 6)
            with self._connection.transaction():
                self._connection.execute(f"INSERT INTO {LOG} VALUES (%s, %s)".encode(), (self._number, steps))
                for _ in range(steps):
                    self._step()

    def add_column(self, name: str, *, default: str | None = None) -> None:
        """Adds a text column to w_int, which inserts and updates fill from now on only by its default."""
        clause = sql.SQL(" DEFAULT {}").format(sql.Literal(default)) if default is not None else sql.SQL("")
        with self._connection.transaction():
            self._connection.execute(
                sql.SQL("ALTER TABLE w_int ADD COLUMN {} text{}").format(sql.Identifier(name), clause)
            )

    def reconnect(self) -> None:
        self._connection.close()
        self._connection = psycopg.connect(self._dsn)

    def committed(self) -> int:
        """How many transactions of `transact` are in the source."""
        with self._connection.transaction():
            row = self._connection.execute(f"SELECT count(*) FROM {LOG}".encode()).fetchone()
        return int(row[0]) if row else 0

    def position(self) -> int:
        """A WAL position behind everything committed so far; the commit of one more transaction follows it."""
        with self._connection.transaction():
            row = self._connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
        self.transact()
        return int(row[0]) if row else 0

    def _step(self) -> None:
        table = self._choice.choice(TABLES)
        if not table.mutable:
            self._choice.choices([self._insert, self._truncate], [30, 1])[0](table)
            return
        act = self._choice.choices(
            [
                self._insert,
                self._update,
                self._delete,
                self._shrink,
                self._change_key,
                self._swap_keys,
                self._replace,
                self._undone,
                self._truncate,
            ],
            [30, 30, 10, 1, 8, 4, 5, 4, 1],
        )[0]
        act(table)

    def _value(self, table: Table, column: str) -> str | None:
        return table.columns[column][1](self._choice)

    def _insert(self, table: Table, key: dict[str, str] | None = None) -> None:
        names = list(table.columns)
        values = [key[name] if key and name in key else self._value(table, name) for name in names]
        self._connection.execute(
            (
                f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join(['%s'] * len(names))}) "
                "ON CONFLICT DO NOTHING"
            ).encode(),
            values,
        )

    def _some_row(self, table: Table) -> str:
        """A condition for one random row: for a bag one of its equal rows."""
        order = ", ".join(table.key or table.columns)
        offset = self._choice.random()
        return (
            f"ctid = (SELECT ctid FROM {table.name} ORDER BY {order}, ctid LIMIT 1 OFFSET (SELECT "
            f"floor({offset} * count(*)) FROM {table.name}))"
        )

    def _update(self, table: Table) -> None:
        """Columns at random; a large value is left alone more often than not."""
        candidates = [
            name
            for name in table.columns
            if name not in table.key and (name not in table.large or self._choice.random() < 0.3)
        ]
        names = self._choice.sample(candidates, self._choice.randint(1, len(candidates))) if candidates else []
        if names:
            values = [self._value(table, name) for name in names]
            self._connection.execute(
                f"UPDATE {table.name} SET {', '.join(f'{name} = %s' for name in names)} "
                f"WHERE {self._some_row(table)}".encode(),
                values,
            )

    def _delete(self, table: Table) -> None:
        self._connection.execute(f"DELETE FROM {table.name} WHERE {self._some_row(table)}".encode())

    def _shrink(self, table: Table) -> None:
        self._connection.execute(
            f"DELETE FROM {table.name} WHERE ctid IN "
            f"(SELECT ctid FROM {table.name} ORDER BY ctid OFFSET {_SMALL})".encode()
        )

    def _change_key(self, table: Table) -> None:
        """To a new key if it is free; everything else, large values too, stays as it is."""
        for column in table.key[-1:]:
            value = self._value(table, column)
            others = "".join(f" AND o.{name} = {table.name}.{name}" for name in table.key[:-1])
            free = f"NOT EXISTS (SELECT FROM {table.name} o WHERE o.{column} = %s{others})"
            self._connection.execute(
                f"UPDATE {table.name} SET {column} = %s WHERE {self._some_row(table)} AND {free}".encode(),
                (value, value),
            )

    def _swap_keys(self, table: Table) -> None:
        """Two rows exchange their keys over a third one, in one transaction."""
        if table.key not in (("id",), ("code",)) or table.columns[table.key[0]][0] == "uuid":
            return
        key = table.key[0]
        spare = "-1" if table.columns[key][0] == "int" else "spare"
        found = self._connection.execute(
            f"SELECT {key}::text FROM {table.name} ORDER BY {key}::text".encode()
        ).fetchall()
        if len(found) < 2:
            return
        (first,), (second,) = self._choice.sample(found, 2)
        for old, new in ((first, spare), (second, first), (spare, second)):
            self._connection.execute(f"UPDATE {table.name} SET {key} = %s WHERE {key} = %s".encode(), (new, old))

    def _replace(self, table: Table) -> None:
        """Deletes a row and inserts one with the same key."""
        if not table.key:
            return
        keys = ", ".join(f"{name}::text" for name in table.key)
        row = self._connection.execute(
            f"DELETE FROM {table.name} WHERE {self._some_row(table)} RETURNING {keys}".encode()
        ).fetchone()
        if row is not None:
            self._insert(table, key=dict(zip(table.key, row, strict=True)))

    def _undone(self, table: Table) -> None:
        with self._connection.transaction(force_rollback=True):
            self._insert(table)
            self._delete(table)

    def _truncate(self, table: Table) -> None:
        if self._truncates:
            self._connection.execute(f"TRUNCATE {table.name}".encode())

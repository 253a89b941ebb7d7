"""Columns with constant arrays as defaults, added in the middle of streamed transactions while others write."""

import itertools
import random
import threading
from functools import partial

import psycopg
import pytest

from tests.e2e.mirror import LAKES, Mirror
from tests.support.beside import beside
from tests.support.extent import slow
from tests.support.ingesting import IMMEDIATELY
from tests.support.source_setup import since

COLUMNS = (
    "int[] DEFAULT '{1,2}'",
    "text[] DEFAULT ARRAY['a,b', NULL, '']",
    "numeric(6,2)[] DEFAULT '{1.5,NULL}'",
    "date[] DEFAULT '{2024-01-01,infinity}'",
    "int[] DEFAULT '{}'",
)
TABLES = ("keyed", "bag")


def write(connection: psycopg.Connection, table: str, numbers: "itertools.count[int]", seed: random.Random) -> None:
    """Rows that come, change and go, some of them in a savepoint that is undone."""
    for _ in range(5):
        connection.execute(f"INSERT INTO {table} (id, v) VALUES (%s, 0)".encode(), (next(numbers),))
        connection.execute(f"UPDATE {table} SET v = v + 1 WHERE id %% 7 = %s".encode(), (seed.randrange(7),))
        connection.execute(f"DELETE FROM {table} WHERE id %% 97 = %s".encode(), (seed.randrange(97),))
        if seed.random() < 0.3:
            with connection.transaction(force_rollback=True):
                connection.execute(f"UPDATE {table} SET v = -1".encode())


@pytest.fixture(scope="module")
def loaded(mirror: Mirror) -> Mirror:
    since(mirror.database, 16, "streaming at once")
    mirror.pipeline.dsn = mirror.database.dsn + IMMEDIATELY
    mirror.execute(
        "CREATE TABLE keyed (id int PRIMARY KEY, v int)",
        "CREATE TABLE bag (id int, v int)",
        "ALTER TABLE bag REPLICA IDENTITY FULL",
        *(f"INSERT INTO {table} SELECT -i, i FROM generate_series(1, 300) i" for table in TABLES),
    )
    mirror.follow()
    numbers = itertools.count(1)

    def others(table: str, seed: int, ended: threading.Event) -> None:
        with mirror.database.connect() as connection:
            while not ended.is_set():
                with connection.transaction():
                    write(connection, table, numbers, random.Random(seed))

    works = [partial(others, table, seed) for seed, table in enumerate(TABLES)]
    with mirror.pipeline.running(watch_interval_s=0.1, stop_s=100.0), beside(*works):
        for place, table in itertools.product(range(len(COLUMNS)), TABLES):
            add(mirror, table, f"c{place} {COLUMNS[place]}", numbers)
    mirror.follow()
    mirror.rebuild()
    return mirror


def add(mirror: Mirror, table: str, column: str, numbers: "itertools.count[int]") -> None:
    """The column, in a transaction that writes before and after it, and another one that is undone."""
    seed = random.Random(column)
    with mirror.database.connect() as connection, connection.transaction():
        connection.execute(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE".encode())
        write(connection, table, numbers, seed)
        with connection.transaction(force_rollback=True):
            connection.execute(f"ALTER TABLE {table} ADD COLUMN undone int[] DEFAULT '{{7}}'".encode())
            write(connection, table, numbers, seed)
        connection.execute(f"ALTER TABLE {table} ADD COLUMN {column}".encode())
        write(connection, table, numbers, seed)


@slow
@pytest.mark.parametrize("lake", LAKES)
@pytest.mark.parametrize("table", TABLES)
def test_arrays_as_defaults_are_exact_when_columns_come_in_streamed_transactions_under_load(
    loaded: Mirror, table: str, lake: str
) -> None:
    assert loaded.pipeline.table(f"public.{table}").state == "live"
    applied = loaded.applied(lake)[f"public.{table}"]
    assert applied.state == "live", applied.reason
    loaded.assert_equal(table, lake=lake)

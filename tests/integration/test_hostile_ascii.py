"""Bytes that are no UTF-8, committed in a database that takes any: one table's trouble stops no other."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_ingest_conditions import encoded_in
from tests.support.ingesting import Pipeline
from tools.local.postgres import PostgresServer


@pytest.fixture
def ascii_only(postgres: PostgresServer, tmp_path: Path) -> Iterator[Pipeline]:
    with encoded_in(postgres, tmp_path, "SQL_ASCII") as pipeline:
        yield pipeline


@pytest.mark.parametrize("undone", [False, True])
def test_a_value_without_a_utf_8_form_stops_its_table_only(ascii_only: Pipeline, undone: bool) -> None:
    d = ascii_only.database
    d.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        f"ALTER DATABASE {d.name} SET logical_decoding_work_mem = '64kB'",
    )
    ascii_only.run(streaming="on")
    with d.connect() as connection:
        connection.execute(b"BEGIN")
        connection.execute(b"INSERT INTO t SELECT i, repeat('y', 100) FROM generate_series(10, 3000) i")
        connection.execute(b"SAVEPOINT s")
        connection.execute(b"INSERT INTO t VALUES (1, E'\\xff')")
        connection.execute(b"INSERT INTO t SELECT i, repeat('y', 100) FROM generate_series(4000, 6000) i")
        if undone:
            connection.execute(b"ROLLBACK TO SAVEPOINT s")
        connection.execute(b"COMMIT")
    d.execute("INSERT INTO other VALUES (7)")
    ascii_only.run(streaming="on")
    assert [row["id"] for row in ascii_only.rows("public.other")] == [7]
    assert ascii_only.table("public.t").state == ("live" if undone else "stale")

"""The end of the WAL, for which drains and bounded runs wait, is a position that the stream comes to."""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from sluice.source.catalog import Catalog
from sluice.source.sessions import open_query
from sluice.source.slot_facts import server_facts
from tests.support.source_setup import options_of
from tests.support.sources import Database, fresh_database
from tools.local.postgres import temporary_server

PAGE = 8192
FEW = 300
"""Bytes of a message that is shorter than what it takes to come to the end of a page."""


@pytest.fixture
def quiet() -> Iterator[Database]:
    """On a server of its own, where nobody else writes."""
    with temporary_server(settings={"autovacuum": "off"}) as server, fresh_database(server) as database:
        yield database


def _inserted(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::int8").fetchone()
    assert row is not None
    return int(row[0])


def _write(connection: psycopg.Connection, nbytes: int) -> int:
    """How much longer the WAL is, with a message of so many bytes."""
    before = _inserted(connection)
    connection.execute("SELECT pg_logical_emit_message(false, 'x', repeat('y', %s))", (nbytes,))
    return _inserted(connection) - before


def _end_with_a_page(connection: psycopg.Connection) -> int:
    """Writes a record that ends with its page, and returns where."""
    for _ in range(100):
        start = _inserted(connection)
        around = _write(connection, FEW) - FEW
        left = PAGE - _inserted(connection) % PAGE - around
        if start // PAGE == _inserted(connection) // PAGE and left > FEW:
            _write(connection, left)
            if _inserted(connection) % PAGE == 24:
                return _inserted(connection) - 24
        _write(connection, PAGE // 2)
    raise AssertionError("no record ended with its page")


def test_where_a_record_ends_with_its_page_the_end_of_the_wal_is_where_it_ends(quiet: Database) -> None:
    options = options_of(quiet)
    with quiet.connect() as writing, closing(open_query(options)) as asking:
        end = _end_with_a_page(writing)
        found = Catalog(asking).wal_end(), server_facts(asking, options).wal_end_lsn
        assert _inserted(writing) == end + 24
        assert found == (end, end)
        _write(writing, FEW)
        assert Catalog(asking).wal_end() == _inserted(writing)

"""The proxy that judges acknowledgements sees each of them first, and breaks connections exactly
where a test asks for it.
"""

import select
import struct
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import pq

from tests.support.pgproxy import Cut, Message, PgProxy, Status
from tests.support.sources import Database


@pytest.fixture
def slot(database: Database) -> str:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE PUBLICATION {p} FOR TABLE t")
    database.execute(f"SELECT pg_create_logical_replication_slot('{database.slot}', 'pgoutput')")
    return database.slot


def start_stream(proxy: PgProxy, database: Database) -> psycopg.Connection:
    connection = psycopg.connect(f"{proxy.dsn(dbname=database.name)}?replication=database", autocommit=True)
    options = f"proto_version '1', publication_names '{database.publication}'"
    outcome = connection.pgconn.exec_(f"START_REPLICATION SLOT {database.slot} LOGICAL 0/0 ({options})".encode())
    assert outcome.status == pq.ExecStatus.COPY_BOTH
    return connection


def send(connection: psycopg.Connection, message: bytes) -> None:
    connection.pgconn.put_copy_data(message)
    connection.pgconn.flush()


def status_message(lsn: int) -> bytes:
    return struct.pack(">cQQQqB", b"r", lsn, lsn, lsn, 0, 0)


def received(connection: psycopg.Connection) -> Iterator[bytes]:
    """The pgoutput part of XLogData messages until the connection ends."""
    stream = connection.pgconn
    while True:
        try:
            # Never the blocking form: it holds the interpreter, and the proxy with it.
            length, payload = stream.get_copy_data(1)
            if length == 0:
                select.select([stream.socket], [], [])
                stream.consume_input()
        except psycopg.OperationalError:
            return
        if length < 0:
            return
        if length and bytes(payload[:1]) == b"w":
            yield bytes(payload[25:])


def test_a_status_message_that_the_oracle_refuses_never_reaches_the_server(database: Database, slot: str) -> None:
    def refuse(status: Status) -> None:
        raise AssertionError(f"flush {status.flush} is beyond what the store holds")

    with PgProxy(database.server.port, on_status=refuse) as proxy:
        connection = start_stream(proxy, database)
        send(connection, status_message(1 << 40))
        assert list(received(connection)) == []
        connection.close()
        with pytest.raises(AssertionError, match="beyond what the store holds"):
            proxy.check()
        assert proxy.statuses == []


@pytest.mark.parametrize(("where", "seen"), [(Cut.BEFORE, "BRII"), (Cut.INSIDE, "BRII"), (Cut.AFTER, "BRIIC")])
def test_a_connection_is_cut_exactly_at_the_chosen_message(
    database: Database, slot: str, where: Cut, seen: str
) -> None:
    def commits(message: Message) -> bool:
        return message.tag == "C"

    with PgProxy(database.server.port) as proxy:
        fired = proxy.cut(where, matches=commits)
        database.execute("INSERT INTO t VALUES (1), (2)")
        connection = start_stream(proxy, database)
        assert "".join(chr(body[0]) for body in received(connection)) == seen
        connection.close()
        assert fired.is_set()

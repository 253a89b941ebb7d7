"""The servers of tools.local that every other test stands on do what they promise."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from tests.support.sources import Database
from tools.local.postgres import PostgresServer, temporary_server


def test_a_committed_row_survives_a_crash_of_the_server() -> None:
    with temporary_server() as server:
        with server.superuser() as connection:
            connection.execute("CREATE TABLE t (id int)")
            connection.execute("INSERT INTO t VALUES (1)")
        server.crash()
        assert server.pid is None
        server.start()
        with server.superuser() as connection:
            assert connection.execute("SELECT id FROM t").fetchall() == [(1,)]


def test_a_stopped_server_is_gone_and_its_port_refuses() -> None:
    with temporary_server() as server:
        dsn = server.dsn()
        server.stop()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(dsn, connect_timeout=5)


def test_each_test_has_a_database_that_can_make_logical_slots(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (database.slot,))
        assert connection.execute(
            "SELECT database FROM pg_replication_slots WHERE slot_name = %s", (database.slot,)
        ).fetchall() == [(database.name,)]


def test_no_slot_is_left_by_an_earlier_test(postgres: PostgresServer) -> None:
    with postgres.superuser() as connection:
        assert (
            connection.execute("SELECT slot_name FROM pg_replication_slots WHERE database LIKE 't\\_%'").fetchall()
            == []
        )


def test_a_server_does_not_outlive_an_owner_that_was_killed() -> None:
    program = (
        "import sys; from tools.local.postgres import temporary_server\n"
        "with temporary_server() as server:\n"
        "    print(server.dsn(), server.data_dir.parent, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        dsn, directory = owner.stdout.readline().split()
        with psycopg.connect(dsn, autocommit=True) as connection:
            owner.kill()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT pg_sleep(60)")
    deadline = time.monotonic() + 30
    while (Path(directory) / "data" / "postmaster.pid").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    shutil.rmtree(directory)

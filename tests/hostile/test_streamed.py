"""Streamed and prepared transactions with savepoints, TRUNCATE and DDL inside."""

import time
from pathlib import Path
from typing import Any

import pytest

from service import lsn
from service.protocol.messages import Truncate
from service.runtime.builder import BuilderLimits
from service.transaction.assembler import Assembler
from tests.support.ingesting import Pipeline
from tests.support.oracle import Spool

IMMEDIATELY = "?options=-c%20debug_logical_replication_streaming%3Dimmediate"
WAYS: dict[str, dict[str, Any]] = {
    "off": {"streaming": "off"},
    "on": {"streaming": "on"},
    "parallel": {"streaming": "auto"},
    "on_stored": {"streaming": "on", "builder": BuilderLimits(body_bytes=1)},
    "stored": {"streaming": "auto", "builder": BuilderLimits(body_bytes=1)},
}
BODIES = {
    "truncate_rolled_back": "INSERT INTO t VALUES (10, 'a'); SAVEPOINT s; TRUNCATE t; INSERT INTO t VALUES (11, 'b'); ROLLBACK TO s; INSERT INTO t VALUES (12, 'c');",
    "truncate_kept_in_subtransaction": "INSERT INTO t VALUES (10, 'a'); SAVEPOINT s; TRUNCATE t; INSERT INTO t VALUES (11, 'b'); RELEASE s; INSERT INTO t VALUES (12, 'c');",
    "ddl_rolled_back": "INSERT INTO t VALUES (10, 'a'); SAVEPOINT s; ALTER TABLE t ADD COLUMN c int DEFAULT 7; INSERT INTO t VALUES (11, 'b', 1); ROLLBACK TO s; INSERT INTO t VALUES (12, 'c');",
    "ddl_kept": "INSERT INTO t VALUES (10, 'a'); SAVEPOINT s; ALTER TABLE t ADD COLUMN c int DEFAULT 7; INSERT INTO t VALUES (11, 'b', 1); RELEASE s; INSERT INTO t VALUES (12, 'c', 3); UPDATE t SET v = 'z' WHERE id = 1;",
    "ddl_twice_one_rolled_back": "INSERT INTO t VALUES (10, 'a'); ALTER TABLE t ADD COLUMN c int DEFAULT 7; INSERT INTO t VALUES (11, 'b', 1); SAVEPOINT s; ALTER TABLE t ADD COLUMN d text; INSERT INTO t VALUES (12, 'c', 1, 'x'); ROLLBACK TO s; INSERT INTO t VALUES (13, 'd', 2);",
    "truncate_after_ddl": "INSERT INTO t VALUES (10, 'a'); ALTER TABLE t ADD COLUMN c int DEFAULT 7; TRUNCATE t; INSERT INTO t VALUES (11, 'b', 1);",
    "ddl_after_truncate_rolled_back": "SAVEPOINT s; TRUNCATE t; ALTER TABLE t ADD COLUMN c int DEFAULT 7; INSERT INTO t VALUES (11, 'b', 1); ROLLBACK TO s; DELETE FROM t WHERE id = 1;",
}


@pytest.fixture
def kept(pipeline: Pipeline) -> Pipeline:
    database = pipeline.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 5) i", f"CREATE PUBLICATION {database.publication} FOR TABLE t"
    )
    return pipeline


def compare(pipeline: Pipeline, tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool" / "test")
    spool.read()
    with pipeline.database.connect() as connection:
        for verdict in spool.verdicts(connection, pipeline.database.publication):
            print("VERDICT", verdict)
        spool.assert_equal(connection, pipeline.database.publication)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("body", BODIES)
def test_streamed(kept: Pipeline, tmp_path: Path, way: str, body: str) -> None:
    kept.run(tables=(), **WAYS[way])
    kept.dsn = kept.database.dsn + IMMEDIATELY
    kept.database.execute(f"BEGIN; {BODIES[body]} COMMIT", "INSERT INTO t (id, v) VALUES (99, 'after')")
    kept.run(tables=(), **WAYS[way])
    compare(kept, tmp_path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("body", BODIES)
def test_prepared(kept: Pipeline, tmp_path: Path, way: str, body: str) -> None:
    options = {**WAYS[way], "two_phase": True, "tables": ()}
    kept.run(**options)
    kept.dsn = kept.database.dsn + IMMEDIATELY
    kept.database.execute(f"BEGIN; {BODIES[body]} PREPARE TRANSACTION 'g'")
    kept.run(**options)
    kept.database.execute("COMMIT PREPARED 'g'", "INSERT INTO t (id, v) VALUES (99, 'after')")
    kept.run(**options)
    compare(kept, tmp_path)


@pytest.mark.parametrize("way", ["on", "parallel", "stored", "on_stored"])
@pytest.mark.parametrize("body", BODIES)
def test_live(kept: Pipeline, tmp_path: Path, way: str, body: str) -> None:
    """Each statement is decoded while its subtransaction is still open."""
    kept.run(tables=(), **WAYS[way])
    kept.dsn = kept.database.dsn + IMMEDIATELY
    with kept.running(tables=(), **WAYS[way]) as running:
        running.wait_until(lambda: running.ingest.view.connected)
        with kept.database.connect() as connection:
            connection.execute("BEGIN")
            for statement in filter(None, (part.strip() for part in BODIES[body].split(";"))):
                connection.execute(statement.encode())
                # A flushed record, so that the server decodes what was written so far.
                with kept.database.connect() as other:
                    other.execute("SELECT pg_logical_emit_message(true, 'x', '')")
                time.sleep(0.3)
            connection.execute("COMMIT")
        end = lsn.parse(kept.wal_end())
        running.wait_until(lambda: running.ingest.view.flushed_lsn >= end)
    kept.database.execute("INSERT INTO t (id, v) VALUES (99, 'after')")
    kept.run(tables=(), **WAYS[way])
    compare(kept, tmp_path)


@pytest.fixture
def truncates(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every Truncate message as it came, and whether inside a stream block."""
    seen: list[Any] = []
    real = Assembler._truncate

    def heard(self: Assembler, message: Truncate, position: int) -> None:
        seen.append((message.stream_xid, self._owner().xid))
        real(self, message, position)

    monkeypatch.setitem(Assembler._HANDLERS, Truncate, heard)
    return seen


@pytest.mark.parametrize("way", ["on", "parallel", "on_stored", "stored"])
def test_truncate_of_a_savepoint_that_is_rolled_back_later(kept: Pipeline, tmp_path: Path, truncates: list[Any], way: str) -> None:
    kept.run(tables=(), **WAYS[way])
    kept.dsn = kept.database.dsn + IMMEDIATELY
    with kept.running(tables=(), **WAYS[way]) as running:
        running.wait_until(lambda: running.ingest.view.connected)
        with kept.database.connect() as connection:
            connection.execute("BEGIN")
            connection.execute("INSERT INTO t VALUES (10, 'a')")
            connection.execute("SAVEPOINT s")
            connection.execute("TRUNCATE t")
            connection.execute("INSERT INTO t VALUES (11, 'b')")
            kept.wal_end()
            running.wait_until(lambda: bool(truncates), seconds=10)
            connection.execute("ROLLBACK TO s")
            connection.execute("INSERT INTO t VALUES (12, 'c')")
            connection.execute("COMMIT")
        end = lsn.parse(kept.wal_end())
        # Left earlier, all of it would come again, and without what was rolled back.
        running.wait_until(lambda: running.ingest.view.flushed_lsn >= end)
    kept.run(tables=(), **WAYS[way])
    print("TRUNCATES (stream_xid of the message, xid of the transaction)", truncates)
    compare(kept, tmp_path)


def test_rolled_back_truncate_in_an_ordinary_large_transaction(kept: Pipeline, tmp_path: Path, truncates: list[Any]) -> None:
    """No debugging option: a transaction that is larger than logical_decoding_work_mem, here the smallest allowed."""
    kept.run(tables=())
    kept.dsn = kept.database.dsn + "?options=-c%20logical_decoding_work_mem%3D64kB"
    with kept.running(tables=()) as running:
        running.wait_until(lambda: running.ingest.view.connected)
        with kept.database.connect() as connection:
            connection.execute("BEGIN")
            connection.execute("INSERT INTO t SELECT i, repeat('a', 100) FROM generate_series(1000, 3000) i")
            connection.execute("SAVEPOINT s")
            connection.execute("TRUNCATE t")
            connection.execute("INSERT INTO t SELECT i, repeat('b', 100) FROM generate_series(1000, 3000) i")
            connection.execute("SELECT pg_logical_emit_message(false, 'x', '', true)")
            kept.wal_end()
            running.wait_until(lambda: bool(truncates), seconds=20)
            connection.execute("ROLLBACK TO s")
            connection.execute("INSERT INTO t SELECT i, repeat('c', 100) FROM generate_series(4000, 5000) i")
            connection.execute("COMMIT")
        end = lsn.parse(kept.wal_end())
        # Left earlier, all of it would come again, and without what was rolled back.
        running.wait_until(lambda: running.ingest.view.flushed_lsn >= end)
    kept.run(tables=())
    print("TRUNCATES (stream_xid of the message, xid of the transaction)", truncates)
    compare(kept, tmp_path)

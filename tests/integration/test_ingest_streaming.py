"""Streamed transactions give the very rows that unstreamed ones give."""

from typing import Any

import psycopg
import pytest

from sluice import lsn
from sluice.errors import UsageError
from sluice.ingest.assemble import assembler
from sluice.ingest.encode.builder import BuilderLimits
from sluice.protocol.decoder import decode_control
from sluice.protocol.frames import FrameTable
from sluice.protocol.messages import ControlMessage, Truncate
from tests.integration.test_protocol_traps import GROW
from tests.support.extent import STREAMS_SOON, cases, slow
from tests.support.ingesting import IMMEDIATELY, SMALLEST, IngestPipeline
from tests.support.source_setup import server_major


def _plain(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Rows without what only streaming changes: ids of subtransactions and gaps in ordinals."""
    hidden = ("_sluice_xid", "_sluice_ordinal")
    return [tuple((name, str(value)) for name, value in row.items() if name not in hidden) for row in rows]


def grow(connection: psycopg.Connection, *, immediate: bool) -> None:
    """Before 16 only size makes the server stream."""
    if not immediate:
        connection.execute(GROW.encode())


@pytest.mark.parametrize(
    "streaming", cases(["on", "parallel"], quick=["parallel"] if STREAMS_SOON else ["on", "parallel"])
)
@pytest.mark.parametrize(
    "body_bytes", [1, pytest.param(32 << 20, marks=slow)], ids=["stored at once", "kept in memory"]
)
def test_the_same_log_read_streamed_and_unstreamed_gives_the_same_rows(
    pipeline: IngestPipeline, streaming: Any, body_bytes: int
) -> None:
    database = pipeline.database
    immediate = server_major(database) >= 16
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY, t text)", "CREATE TABLE b (id int PRIMARY KEY)")
    if streaming == "parallel" and not immediate:
        with pytest.raises(UsageError, match=r"source.streaming is parallel, which PostgreSQL 1\d does not have"):
            pipeline.run(streaming=streaming)
        return
    database.execute("CREATE TABLE unpublished (t text)")
    other = pipeline.twin()
    with database.connect() as connection:
        with connection.transaction():
            connection.execute("INSERT INTO a SELECT i, 'x' FROM generate_series(1, 50) i")
            with connection.transaction(force_rollback=True):
                connection.execute("INSERT INTO a SELECT i, 'gone' FROM generate_series(100, 120) i")
                with connection.transaction():
                    connection.execute("INSERT INTO b VALUES (9)")
                grow(connection, immediate=immediate)
            with connection.transaction():
                connection.execute("INSERT INTO a VALUES (200, 'kept')")
            connection.execute("UPDATE a SET t = 'y' WHERE id <= 10")
            connection.execute("INSERT INTO b VALUES (1)")
            grow(connection, immediate=immediate)
        with connection.transaction(force_rollback=True):
            connection.execute("INSERT INTO b VALUES (2)")
            grow(connection, immediate=immediate)
        with connection.transaction():
            connection.execute("ALTER TABLE b ADD COLUMN v int DEFAULT 4")
            with connection.transaction(force_rollback=True):
                connection.execute("ALTER TABLE b ADD COLUMN w int")
                connection.execute("INSERT INTO b VALUES (3, 3, 3)")
                grow(connection, immediate=immediate)
            connection.execute("INSERT INTO b VALUES (4, 5)")
            connection.execute("TRUNCATE a")
            connection.execute("INSERT INTO a VALUES (1, 'again')")
        connection.execute("INSERT INTO b VALUES (5, 6)")
    pipeline.run()
    other.dsn = database.dsn + (IMMEDIATELY if immediate else SMALLEST)
    other.run(streaming=streaming, builder=BuilderLimits(body_bytes=body_bytes))
    assert other.commits() == pipeline.commits()
    for name in ("public.a", "public.b"):
        assert other.table(name).state == "live"
        assert _plain(other.rows(name)) == _plain(pipeline.rows(name))
    streamed = [part for name in ("public.a", "public.b") for part in other.segments(name) if part.body is not None]
    assert bool(streamed) == (body_bytes == 1) or any(part.body and part.body.aborted_xids for part in streamed)


@pytest.fixture
def truncates(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The (sub)transaction of every Truncate message, as it is decoded."""
    seen: list[int | None] = []

    def decode(table: FrameTable, index: int, *, in_stream: bool) -> ControlMessage:
        message = decode_control(table, index, in_stream=in_stream)
        if isinstance(message, Truncate):
            seen.append(message.stream_xid)
        return message

    monkeypatch.setattr(assembler, "decode_control", decode)
    return seen


@pytest.mark.parametrize("body_bytes", cases([1, 32 << 20], quick=[1]), ids=["stored at once", "kept in memory"])
def test_a_truncate_that_a_savepoint_rolls_back_after_it_was_streamed_never_happened(
    pipeline: IngestPipeline, truncates: list[int | None], body_bytes: int
) -> None:
    """The server sends it while the savepoint is still open, and says later that the subtransaction
    was rolled back.
    """
    database = pipeline.database
    options: dict[str, Any] = {"builder": BuilderLimits(body_bytes=body_bytes)}
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 5) i"
    )
    pipeline.run(**options)
    pipeline.dsn = database.dsn + SMALLEST
    many = "INSERT INTO t SELECT i, repeat('a', 100) FROM generate_series(%s::int, %s::int) i"
    with pipeline.running(**options) as running:
        with database.connect() as connection, connection.transaction():
            connection.execute(many, (1000, 3000))
            connection.execute("SAVEPOINT s")
            connection.execute("TRUNCATE t")
            connection.execute(many, (1000, 3000))
            pipeline.wal_end()
            running.wait_until(lambda: bool(truncates))
            connection.execute("ROLLBACK TO s")
            connection.execute(many, (4000, 5000))
        end = lsn.parse(pipeline.wal_end())
        # Left earlier, all of it would come again, and without what was rolled back.
        running.wait_until(lambda: running.status.flushed_lsn >= end)
    pipeline.run(**options)
    assert truncates[0] is not None
    assert pipeline.silent_differences() == []

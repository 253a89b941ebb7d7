"""Shapes that a transaction gives its tables while it is open: written in one schema version or
kept as they came, and decided by rows that exist.
"""

import io
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest

from sluice.contract import keys
from sluice.contract.entries import Prepared
from sluice.errors import StoreRefused
from sluice.ingest.encode.builder import BuilderLimits
from sluice.ingest.encode.rows import segment_schema
from tests.support.extent import STREAMS_SOON, cases, slow
from tests.support.forwarding import Forwarding
from tests.support.ingesting import IMMEDIATELY, IngestPipeline, Running
from tests.support.source_setup import since

KEPT: dict[str, Any] = {"streaming": "parallel"}
STORED: dict[str, Any] = {"streaming": "parallel", "builder": BuilderLimits(body_bytes=1)}
TABLES = ("CREATE TABLE a (id int PRIMARY KEY, t text)", "CREATE TABLE beat (n int)")
WIDE = "repeat(md5(i::text), 100)"
"""3.2 KB that compress to little, so that a value is stored out of line only where the column says
so.
"""


@pytest.fixture(params=cases([KEPT, STORED], quick=[STORED]), ids=["kept in memory", "stored at once"])
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


@pytest.fixture
def streamed(pipeline: IngestPipeline) -> IngestPipeline:
    """A pipeline with table `a`, live, from a server that streams every change at once."""
    since(pipeline.database, 16, "streaming of small transactions")
    pipeline.run(
        *TABLES,
        "CREATE DOMAIN amount AS numeric(12,2)",
        "CREATE TYPE mood AS ENUM ('sad', 'glad')",
    )
    pipeline.dsn = pipeline.database.dsn + IMMEDIATELY
    return pipeline


class RefusesFiles(Forwarding):
    """The pipeline's store as it is while the right to write row files is missing: entries are
    taken, files are not.
    """

    def put(self, key: str, data: bytes | memoryview) -> None:
        if key.startswith((keys.DATA, keys.STAGE)):
            raise StoreRefused("no right to write row files")
        super().put(key, data)


def arrived(running: Running) -> None:
    """Returns when all that open transactions have written is here: it is in the log before a
    commit that is in the manifest.
    """
    known = len(running.pipeline.commits())
    running.pipeline.execute("INSERT INTO beat VALUES (1)")
    running.wait_until(lambda: len(running.pipeline.commits()) > known)


def ended(running: Running, commits: int) -> None:
    """Returns when `commits` transactions more than beats are in the manifest."""
    pipeline = running.pipeline
    running.wait_until(lambda: len(pipeline.commits()) - len(pipeline.rows("public.beat")) >= commits)


def readable(pipeline: IngestPipeline, name: str) -> None:
    """Every published file of the table has the columns of the schema version that its entry names,
    with their types and numbers.
    """
    versions = pipeline.table(name).schemas
    for segment in pipeline.segments(name):
        found = pq.read_schema(io.BytesIO(pipeline.store.get(segment.key)))
        expected = segment_schema(versions[segment.schema_version])
        assert found.names == expected.names
        assert found.types == expected.types
        numbers = [int(field.metadata[b"PARQUET:field_id"]) for field in found if not field.name.startswith("_sluice")]
        assert numbers == [column.attnum for column in versions[segment.schema_version].columns]
        assert set(segment.unchanged) <= {str(number) for number in numbers}


def own(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """(operation, own values...) of each row, as text."""
    return [
        (row["_sluice_op"], *(str(value) for name, value in row.items() if not name.startswith("_sluice")))
        for row in rows
    ]


def add_columns(connection: psycopg.Connection) -> None:
    """A transaction's first part: columns of types that the wire alone does not tell, and rows of
    them, one with a value that is not sent again.
    """
    connection.execute("INSERT INTO a VALUES (1, 'before')")
    connection.execute("ALTER TABLE a ADD COLUMN price amount, ADD COLUMN how mood, ADD COLUMN big text")
    connection.execute("ALTER TABLE a ALTER COLUMN big SET STORAGE EXTERNAL")
    connection.execute(f"INSERT INTO a SELECT i, 'new', i, 'glad', {WIDE} FROM generate_series(2, 4) i")
    connection.execute("UPDATE a SET price = price + 0.5 WHERE id = 2")


ADDED = [
    ("i", "1", "before"),
    *(("i", str(number), "new", f"{number}.00", "glad") for number in (2, 3, 4)),
    ("u", "2", "new", "2.50", "glad"),
]


def added(pipeline: IngestPipeline) -> None:
    """What `add_columns` comes to in the spool."""
    assert pipeline.table("public.a").state == "live", pipeline.table("public.a").reason
    assert pipeline.table("public.a").schema_version == 2
    rows = pipeline.rows("public.a")
    assert [row[:5] for row in own(rows)] == ADDED
    assert [row["_sluice_unchanged"] for row in rows] == [None, None, None, None, [5]]
    readable(pipeline, "public.a")


def test_columns_added_in_a_transaction_that_is_still_open_keep_their_types_and_numbers(
    streamed: IngestPipeline, way: dict[str, Any]
) -> None:
    with streamed.running(**way) as running:
        with streamed.database.connect() as connection, connection.transaction():
            add_columns(connection)
            arrived(running)
        ended(running, 1)
    added(streamed)


def test_a_table_made_and_filled_in_a_transaction_that_is_still_open_comes_whole(
    streamed: IngestPipeline, way: dict[str, Any]
) -> None:
    with streamed.running(watch_interval_s=0.2, **way) as running:
        with streamed.database.connect() as connection, connection.transaction():
            connection.execute("CREATE TABLE b (id int PRIMARY KEY, price amount)")
            connection.execute(f"ALTER PUBLICATION {streamed.database.publication} ADD TABLE b".encode())
            connection.execute("INSERT INTO b SELECT i, i FROM generate_series(1, 50) i")
            connection.execute("TRUNCATE b")
            connection.execute("INSERT INTO b SELECT i, i FROM generate_series(51, 99) i")
            arrived(running)
        running.wait_until(
            lambda: any(one.table_name == "b" and one.state == "live" for one in streamed.state().tables.values())
        )
        streamed.execute("INSERT INTO b VALUES (100, 100)")
    streamed.run(**way)
    assert streamed.table("public.b").state == "live"
    assert streamed.ids("public.b") == list(range(51, 101))
    readable(streamed, "public.b")


@pytest.mark.parametrize(
    "restarted", cases([False, True], quick=[False]), ids=["in one session", "ingest started again in between"]
)
def test_columns_added_in_a_prepared_transaction_keep_their_types_and_numbers(
    pipeline: IngestPipeline, way: dict[str, Any], restarted: bool
) -> None:
    since(pipeline.database, 16, "streaming of small transactions")
    database, way = pipeline.database, {**way, "two_phase": True}
    pipeline.run(*TABLES, "CREATE DOMAIN amount AS numeric(12,2)", "CREATE TYPE mood AS ENUM ('sad', 'glad')", **way)
    pipeline.dsn = database.dsn + IMMEDIATELY

    def prepared() -> list[Prepared]:
        return list(pipeline.state().prepared.values())

    with pipeline.running(**way) as running:
        with database.connect() as connection:
            connection.execute("BEGIN")
            add_columns(connection)
            arrived(running)
            connection.execute("PREPARE TRANSACTION 'open'")
        running.wait_until(prepared)
        assert pipeline.table("public.a").schema_version == 1
        if not restarted:
            database.execute("COMMIT PREPARED 'open'")
            ended(running, 1)
    if restarted:
        pipeline.run("COMMIT PREPARED 'open'", **way)
    added(pipeline)


def rolled_back(connection: psycopg.Connection, running: Running) -> None:
    """A transaction with a savepoint that adds a column and rows of it, streams them, and rolls
    back.
    """
    connection.execute("INSERT INTO a VALUES (1, 'kept')")
    connection.execute("SAVEPOINT s")
    connection.execute("ALTER TABLE a ADD COLUMN gone mood")
    connection.execute("INSERT INTO a VALUES (2, 'gone', 'sad')")
    arrived(running)
    connection.execute("ROLLBACK TO s")
    connection.execute("INSERT INTO a VALUES (3, 'kept')")
    arrived(running)


def test_a_column_of_a_rolled_back_savepoint_leaves_the_table_live(
    streamed: IngestPipeline, way: dict[str, Any]
) -> None:
    with streamed.running(**way) as running:
        with streamed.database.connect() as connection, connection.transaction():
            rolled_back(connection, running)
        ended(running, 1)
    streamed.run("INSERT INTO a VALUES (4, 'after')", **way)
    assert (streamed.table("public.a").state, streamed.table("public.a").schema_version) == ("live", 1)
    assert own(streamed.rows("public.a")) == [("i", "1", "kept"), ("i", "3", "kept"), ("i", "4", "after")]
    readable(streamed, "public.a")


@slow
def test_a_column_of_a_rolled_back_savepoint_of_a_prepared_transaction_leaves_the_table_live(
    pipeline: IngestPipeline, way: dict[str, Any]
) -> None:
    since(pipeline.database, 16, "streaming of small transactions")
    database, way = pipeline.database, {**way, "two_phase": True}
    pipeline.run(*TABLES, "CREATE TYPE mood AS ENUM ('sad', 'glad')", **way)
    pipeline.dsn = database.dsn + IMMEDIATELY
    with pipeline.running(**way) as running, database.connect() as connection:
        connection.execute("BEGIN")
        rolled_back(connection, running)
        connection.execute("PREPARE TRANSACTION 'open'")
    pipeline.run("COMMIT PREPARED 'open'", "INSERT INTO a VALUES (4, 'after')", **way)
    assert (pipeline.table("public.a").state, pipeline.table("public.a").schema_version) == ("live", 1)
    assert own(pipeline.rows("public.a")) == [("i", "1", "kept"), ("i", "3", "kept"), ("i", "4", "after")]


MEGABYTES = (
    "INSERT INTO a SELECT i, (SELECT string_agg(md5(i::text || j), '') FROM generate_series(1, 32) "
    "j) FROM generate_series({first}, {last}) i"
)
"""A thousand bytes and more a row."""


def wide_ids(pipeline: IngestPipeline) -> list[int]:
    return [row["id"] for row in pipeline.rows("public.a")]


@pytest.mark.parametrize("streaming", cases(["off", "auto"], quick=["auto"]))
def test_rows_a_new_column_and_rows_in_one_transaction_of_25_megabytes_leave_the_table_live(
    pipeline: IngestPipeline, streaming: str
) -> None:
    database = pipeline.database
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY, t text)")
    database.transact(
        MEGABYTES.format(first=1, last=12_000),
        "SELECT pg_logical_emit_message(true, 'test', 'between')",
        "ALTER TABLE a ADD COLUMN v int",
        MEGABYTES.format(first=12_001, last=24_000),
    )
    pipeline.run("INSERT INTO a VALUES (24001, 'after', 7)", streaming=streaming, messages=True)
    assert (pipeline.table("public.a").state, pipeline.table("public.a").reason) == ("live", "")
    assert wide_ids(pipeline) == list(range(1, 24_002))
    readable(pipeline, "public.a")


@pytest.mark.parametrize("first", cases(["off", "on"], quick=["on"]))
def test_what_came_half_in_one_way_may_come_again_in_the_other(pipeline: IngestPipeline, first: Any) -> None:
    """A schema change whose transaction was not stored is not recorded either, and comes by the other way after
    the restart.
    """
    since(pipeline.database, 16, "streaming of small transactions")
    database = pipeline.database
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY, t text)")
    database.transact(
        MEGABYTES.format(first=1, last=9_000),
        "ALTER TABLE a ADD COLUMN v int",
        MEGABYTES.format(first=9_001, last=9_010),
    )
    plain, immediate = database.dsn, database.dsn + IMMEDIATELY
    pipeline.dsn = plain if first == "off" else immediate
    with pytest.raises(StoreRefused):
        IngestPipeline(database, RefusesFiles(pipeline.store), pipeline.dsn).run(streaming=first)
    assert pipeline.table("public.a").schema_version == 1
    assert pipeline.commits() == []
    database.execute("INSERT INTO a VALUES (24001, 'after', 7)")
    pipeline.dsn = immediate if first == "off" else plain
    pipeline.run(streaming="on" if first == "off" else "off")
    assert (pipeline.table("public.a").state, pipeline.table("public.a").reason) == ("live", "")
    assert wide_ids(pipeline) == [*range(1, 9_011), 24_001]


@pytest.mark.parametrize("streaming", cases(["off", "on"], quick=["on" if STREAMS_SOON else "off"]))
def test_two_transactions_that_each_add_a_column_are_followed_in_commit_order(
    pipeline: IngestPipeline, streaming: str
) -> None:
    database = pipeline.database
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY, t text)")
    if streaming == "on":
        since(database, 16, "streaming of small transactions")
        pipeline.dsn = database.dsn + IMMEDIATELY
    add = "ALTER TABLE a ADD COLUMN v int"
    database.transact(MEGABYTES.format(first=1, last=9_000), add, "INSERT INTO a VALUES (9001, 'first', 1)")
    database.transact("ALTER TABLE a ADD COLUMN w int", "INSERT INTO a VALUES (9002, 'second', 1, 2)")
    pipeline.run(streaming=streaming)
    assert (pipeline.table("public.a").state, pipeline.table("public.a").reason) == ("live", "")
    assert pipeline.table("public.a").schema_version == 3
    assert wide_ids(pipeline) == list(range(1, 9_003))
    assert own(pipeline.rows("public.a"))[-2:] == [("i", "9001", "first", "1"), ("i", "9002", "second", "1", "2")]
    readable(pipeline, "public.a")

"""What PostgreSQL 19 brought that touches decoding: tables that are packed anew while their rows
change, sequences in a publication, and a server that raises its own wal_level.
"""

import threading
from contextlib import closing
from pathlib import Path

import pytest

from sluice.source.sessions import open_query
from sluice.source.slot_facts import server_facts
from tests.integration.test_snapshot_chunks import CHUNKS, SETUP, assert_equal
from tests.support.ingesting import IngestPipeline
from tests.support.source_setup import options_of, since
from tests.support.sources import Database
from tools.local.postgres import temporary_server


@pytest.fixture(autouse=True)
def _since_19(database: Database) -> None:
    since(database, 19, "REPACK, published sequences and effective_wal_level")


def test_a_table_that_is_packed_while_its_rows_change_is_not_read_again(pipeline: IngestPipeline) -> None:
    database, packed = pipeline.database, threading.Event()
    database.execute(*SETUP)
    pipeline.publish("t")
    pipeline.run(**CHUNKS)

    def write() -> None:
        with database.connect() as connection:
            turn = 0
            while not packed.is_set():
                turn += 1
                connection.execute("UPDATE t SET n = n + 1 WHERE id %% 7 = %s", [turn % 7])
                connection.execute("DELETE FROM t WHERE id = %s", [turn])
                connection.execute("INSERT INTO t VALUES (%s, 0, 'new')", [100_000 + turn])

    with pipeline.running(**CHUNKS):
        writer = threading.Thread(target=write)
        writer.start()
        try:
            for options in ("(CONCURRENTLY)", "(CONCURRENTLY)", "", "(CONCURRENTLY, ANALYZE)"):
                database.execute(f"REPACK {options} t")
        finally:
            packed.set()
            writer.join()
    assert_equal(pipeline)
    assert (pipeline.table("public.t").state, pipeline.table("public.t").generation) == ("live", 1)


@pytest.mark.parametrize("via_root", ["true", "false"])
def test_sequences_of_the_publication_are_no_tables_and_those_of_tables_change_nothing(
    pipeline: IngestPipeline, via_root: str
) -> None:
    database = pipeline.database
    database.execute(
        "CREATE TABLE t (id serial PRIMARY KEY, v text)",
        "CREATE SEQUENCE alone",
        f"CREATE PUBLICATION {database.publication} FOR ALL TABLES, ALL SEQUENCES "
        f"WITH (publish_via_partition_root = {via_root})",
    )
    pipeline.run(**CHUNKS)
    with pipeline.running(**CHUNKS) as running:
        database.execute(
            "INSERT INTO t (v) SELECT 'x' FROM generate_series(1, 100)",
            "SELECT nextval('alone'), setval('t_id_seq', 5000)",
            "ALTER SEQUENCE alone RESTART 7",
            "CREATE SEQUENCE another",
            "INSERT INTO t (v) VALUES ('y')",
            "DROP SEQUENCE alone",
        )
        running.wait_until(lambda: pipeline.table("public.t").state == "live")
    assert_equal(pipeline)
    tables = {table.table_name: (table.state, table.generation) for table in pipeline.state().tables.values()}
    assert tables == {"t": ("live", 1)}


def test_a_server_that_raises_its_own_wal_level_is_followed_without_a_restart(tmp_path: Path) -> None:
    with temporary_server(start=False) as server:
        server.settings["wal_level"] = "replica"
        server.start()
        database = Database(server, name="postgres", slot="s", publication="p")
        pipeline = IngestPipeline.local(database, tmp_path)
        database.execute(*SETUP)
        pipeline.publish("t")
        pipeline.run(**CHUNKS)
        with closing(open_query(options_of(database))) as connection:
            assert server_facts(connection, options_of(database)).wal_level == "replica"
        database.execute("UPDATE t SET n = 1", "DELETE FROM t WHERE id < 100")
        server.restart()
        database.execute("UPDATE t SET n = 2 WHERE id % 2 = 0")
        assert_equal(pipeline)
        assert pipeline.table("public.t").generation == 1

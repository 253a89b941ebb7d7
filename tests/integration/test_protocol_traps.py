"""What clients of the protocol are known to miss, against a real server of every major: one small
story each (docs/protocol.md says which).
"""

from sluice import lsn
from tests.support.ingesting import IngestPipeline

GROW = "INSERT INTO unpublished SELECT repeat('x', 1000) FROM generate_series(1, 100)"


def test_empty_transactions_move_the_position_and_are_no_entries(pipeline: IngestPipeline) -> None:
    """PostgreSQL 14 sends a Begin and a Commit for them, later ones nothing but a keepalive."""
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline.execute("CREATE TABLE unpublished (t text)", *[GROW] * 3)
    end = lsn.parse(pipeline.wal_end())
    pipeline.run_until(end)
    assert pipeline.commits() == []
    assert pipeline.state().through_lsn >= end
    assert pipeline.confirmed() >= end


def test_commit_times_are_those_of_the_origin_and_need_not_ascend(pipeline: IngestPipeline) -> None:
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)")
    origin = f"from_{pipeline.database.name}"
    with pipeline.database.connect() as connection:
        connection.execute("INSERT INTO a VALUES (1)")
        connection.execute("SELECT pg_replication_origin_create(%s)", (origin,))
        connection.execute("SELECT pg_replication_origin_session_setup(%s)", (origin,))
        with connection.transaction():
            connection.execute("SELECT pg_replication_origin_xact_setup('0/ABCD', '2020-01-02 03:04:05.678901+00')")
            connection.execute("INSERT INTO a VALUES (2)")
        connection.execute("SELECT pg_replication_origin_session_reset()")
        connection.execute("INSERT INTO a VALUES (3)")
    pipeline.run()
    pipeline.execute(f"SELECT pg_replication_origin_drop('{origin}')")
    rows = pipeline.rows("public.a")
    assert [row["id"] for row in rows] == [1, 2, 3]
    assert rows[1]["_sluice_ts"].isoformat() == "2020-01-02T03:04:05.678901+00:00"
    assert rows[0]["_sluice_ts"] < rows[2]["_sluice_ts"]
    assert [row["_sluice_lsn"] for row in rows] == sorted(row["_sluice_lsn"] for row in rows)


def test_a_table_that_was_dropped_and_made_again_is_another_table(pipeline: IngestPipeline) -> None:
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    first = pipeline.table("public.a")
    pipeline.run(
        "INSERT INTO a VALUES (2)",
        "DROP TABLE a",
        "CREATE TABLE a (id int PRIMARY KEY)",
        "INSERT INTO a VALUES (3)",
        "ALTER PUBLICATION {p} ADD TABLE a",
        "INSERT INTO a VALUES (4)",
    )
    second = pipeline.table("public.a")
    assert second.table_id != first.table_id
    assert (pipeline.state().tables[first.table_id].state, second.state) == ("detached", "live")
    assert sorted(row["id"] for row in pipeline.rows("public.a", snapshot=True)) == [3, 4]


def test_a_row_that_moves_between_partitions_is_a_delete_then_an_insert_of_the_root(pipeline: IngestPipeline) -> None:
    """The leaf's own Relation message comes too, with its own column order; no table is made from
    it.
    """
    pipeline.run(
        "CREATE TABLE r (id int, k int, t text, PRIMARY KEY (id, k)) PARTITION BY RANGE (k)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE r2 (t text, k int NOT NULL, gone int, id int NOT NULL, PRIMARY KEY (id, k))",
        "ALTER TABLE r2 DROP COLUMN gone",
        "ALTER TABLE r ATTACH PARTITION r2 FOR VALUES FROM (10) TO (20)",
    )
    pipeline.run(
        "INSERT INTO r VALUES (1, 1, 'one')", "UPDATE r SET k = 11 WHERE id = 1", "UPDATE r SET t = 'two' WHERE id = 1"
    )
    assert [f"{table.schema_name}.{table.table_name}" for table in pipeline.state().tables.values()] == ["public.r"]
    rows = [
        (row["_sluice_op"], (row["_sluice_old"] or row)["k"], row["k"], row["t"]) for row in pipeline.rows("public.r")
    ]
    assert rows == [("i", 1, 1, "one"), ("d", 1, None, None), ("i", 11, 11, "one"), ("u", 11, 11, "two")]


def test_a_schema_that_is_renamed_leaves_its_tables_live_whether_the_server_says_so_or_not(
    pipeline: IngestPipeline,
) -> None:
    """A Relation message follows the rename from 16 on; 14 and 15 go on under the old name."""
    pipeline.run("CREATE SCHEMA s", "CREATE TABLE s.a (id int PRIMARY KEY)", "INSERT INTO s.a VALUES (1)")
    pipeline.run("ALTER SCHEMA s RENAME TO t", "INSERT INTO t.a VALUES (2)")
    table = pipeline.table("t.a")
    assert (table.state, table.path) == ("live", "s/a")
    assert [row["id"] for row in pipeline.rows("t.a")] == [2]


def test_streams_open_at_a_lost_connection_begin_again_and_rolled_back_ones_are_forgotten(
    pipeline: IngestPipeline,
) -> None:
    pipeline.stream_soon()
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE other (id int PRIMARY KEY)")
    pipeline.execute("CREATE TABLE unpublished (t text)")
    slot = pipeline.database.slot
    with (
        pipeline.database.connect() as kept,
        pipeline.database.connect() as dropped,
        pipeline.running(streaming="on") as running,
    ):
        for connection, row in ((kept, 1), (dropped, 2)):
            connection.execute("BEGIN")
            connection.execute(f"INSERT INTO a VALUES ({row}); {GROW}".encode())
        pipeline.execute("SELECT pg_switch_wal()", "INSERT INTO other VALUES (1)")
        running.wait_until(lambda: len(pipeline.commits()) == 1)
        dropped.execute("ROLLBACK")
        pipeline.database.cut_stream()
        kept.execute("INSERT INTO a VALUES (3)")
        kept.execute("COMMIT")
        running.wait_until(lambda: len(pipeline.commits()) == 2)
    assert [row["id"] for row in pipeline.rows("public.a")] == [1, 3]
    streamed = pipeline.database.one("SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = %s", slot)
    assert streamed[0] >= 2


def test_a_message_of_a_rolled_back_savepoint_is_kept_only_where_the_server_streams_it(
    pipeline: IngestPipeline,
) -> None:
    """In a stream it carries the top transaction's number, so nothing tells it from a message that
    stayed: a limit of the server, and of the messages table, which marks what may be such a one.
    """
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)", messages=True)
    pipeline.execute("CREATE TABLE unpublished (t text)")
    pipeline.stream_soon()
    in_doubt = {"streamed before": True, "streamed inside": True, "streamed after": False}
    for streaming, expected in (("off", {"whole before": False, "whole after": False}), ("on", in_doubt)):
        way = next(iter(expected)).split()[0]
        pipeline.database.transact(
            f"SELECT pg_logical_emit_message(true, '{way} before', '')",
            "SAVEPOINT s",
            f"SELECT pg_logical_emit_message(true, '{way} inside', '')",
            "INSERT INTO a VALUES (1)",
            GROW,
            "ROLLBACK TO s",
            f"SELECT pg_logical_emit_message(true, '{way} after', '')",
        )
        pipeline.run(messages=True, streaming=streaming)
        rows = pipeline.rows("_sluice.messages")
        assert {row["prefix"]: row["in_doubt"] for row in rows if row["prefix"].startswith(way)} == expected
    assert pipeline.rows("public.a") == []

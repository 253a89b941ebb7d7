"""Logical messages: kept as bytes, with their transaction or by themselves, never from a
transaction that rolled back.
"""

import io

import pyarrow.parquet as pq

from sluice.tables.messages import TABLE_ID
from tests.support.ingesting import IngestPipeline


def test_messages_land_in_their_own_table_with_their_transaction_or_alone(pipeline: IngestPipeline) -> None:
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)", messages=True)
    with pipeline.database.connect() as connection:
        connection.execute("SELECT pg_logical_emit_message(false, 'alone', '\\x00ff'::bytea)")
        with connection.transaction():
            connection.execute("INSERT INTO a VALUES (1)")
            connection.execute("SELECT pg_logical_emit_message(true, 'with', 'text')")
        with connection.transaction(force_rollback=True):
            connection.execute("SELECT pg_logical_emit_message(true, 'gone', 'text')")
            connection.execute("SELECT pg_logical_emit_message(false, 'stays', '')")
    pipeline.run(messages=True)
    rows = [row for row in pipeline.rows("_sluice.messages") if row["prefix"] != "test"]
    assert [(row["prefix"], row["transactional"], row["content"]) for row in rows] == [
        ("alone", False, b"\x00\xff"),
        ("with", True, b"text"),
        ("stays", False, b""),
    ]
    (inserted,) = pipeline.rows("public.a")
    assert rows[1]["_sluice_lsn"] == inserted["_sluice_lsn"]
    assert rows[0]["_sluice_lsn"] == rows[0]["lsn"]
    assert rows[0]["_sluice_ts"] is None


def test_a_message_is_not_delivered_twice_across_restarts(pipeline: IngestPipeline) -> None:
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)", messages=True)
    for number in range(4):
        pipeline.run(f"SELECT pg_logical_emit_message(false, 'm{number}', 'x')", messages=True)
    sent = [row["prefix"] for row in pipeline.rows("_sluice.messages") if row["prefix"] != "test"]
    assert sent == ["m0", "m1", "m2", "m3"]


def test_a_table_of_the_source_with_the_name_of_theirs_takes_no_message_away(pipeline: IngestPipeline) -> None:
    """It cannot be carried, and its joining detached the messages' table, with nothing but a line in the log."""
    pipeline.run("CREATE PUBLICATION {p} FOR ALL TABLES", messages=True)
    pipeline.run("CREATE SCHEMA _sluice", "CREATE TABLE _sluice.messages (id int PRIMARY KEY)", messages=True)
    pipeline.execute("INSERT INTO _sluice.messages VALUES (1)", "SELECT pg_logical_emit_message(false, 'kept', '')")
    pipeline.run(messages=True)
    theirs, ours = (table for _, table in sorted(pipeline.state().tables.items()))
    assert (ours.state, theirs.state, theirs.generation) == ("quarantined", "live", 1)
    kept = [
        prefix
        for change in pipeline.changes()
        for segment in change.segments
        if segment.table_id == TABLE_ID
        for prefix in pq.read_table(io.BytesIO(pipeline.store.get(segment.key)))["prefix"].to_pylist()
    ]
    assert kept.count("kept") == 1


def test_no_table_of_the_source_gets_the_path_of_theirs_before_they_are_kept(pipeline: IngestPipeline) -> None:
    pipeline.run(
        "CREATE PUBLICATION {p} FOR ALL TABLES",
        "CREATE SCHEMA _sluice",
        "CREATE TABLE _sluice.messages (id int PRIMARY KEY)",
    )
    pipeline.run("ALTER TABLE _sluice.messages SET SCHEMA public")
    pipeline.run(messages=True)
    found = {table.table_name: table for table in pipeline.state().tables.values() if table.table_id != TABLE_ID}
    assert found["messages"].state == "live"
    assert found["messages"].path != pipeline.state().tables[TABLE_ID].path

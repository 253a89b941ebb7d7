"""Logical messages: kept as bytes, with their transaction or by themselves, never from a
transaction that rolled back.
"""

from tests.support.ingesting import IngestPipeline


def test_messages_land_in_their_own_table_with_their_transaction_or_alone(pipeline: IngestPipeline) -> None:
    pipeline.database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline.run(messages=True)
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
    pipeline.database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline.run(messages=True)
    for number in range(4):
        pipeline.database.execute(f"SELECT pg_logical_emit_message(false, 'm{number}', 'x')")
        pipeline.run(messages=True)
    assert [row["prefix"] for row in pipeline.rows("_sluice.messages") if row["prefix"] != "test"] == [
        "m0",
        "m1",
        "m2",
        "m3",
    ]

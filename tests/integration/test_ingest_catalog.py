"""What only the catalog or the configuration shows of a table that is live: followed in order, or
said by name.
"""

from typing import Any

from sluice.ingest.options import FlushPolicy
from tests.support.ingesting import IngestPipeline
from tests.support.source_setup import since

ALL: dict[str, Any] = {"tables": ()}


def two_tables(pipeline: IngestPipeline) -> None:
    pipeline.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v int)",
        "CREATE TABLE b (id int PRIMARY KEY)",
        "INSERT INTO a VALUES (1, 1)",
    )
    pipeline.publish("a", "b")
    pipeline.run(**ALL)


def test_a_column_that_no_row_announces_is_followed_behind_the_rows_before_it(pipeline: IngestPipeline) -> None:
    two_tables(pipeline)
    pipeline.run("INSERT INTO a VALUES (2, 2)", "ALTER TABLE a ADD COLUMN note text DEFAULT 'none'", **ALL)
    table = pipeline.table("public.a")
    assert (table.state, table.schema_version) == ("live", 2)
    note = table.schemas[2].column("note")
    assert note is not None
    assert note.missing == "none"
    assert [segment.schema_version for segment in pipeline.segments("public.a")] == [1]
    pipeline.run("INSERT INTO a VALUES (3, 3, 'given')", **ALL)
    assert pipeline.table("public.a").schema_version == 2
    assert [row["id"] for row in pipeline.rows("public.a")] == [2, 3]


def test_a_table_is_not_live_while_its_new_shape_waits_for_the_stream(pipeline: IngestPipeline) -> None:
    """The stream is stopped where it is, so that nothing tells whether rows of the older shape are
    still to come.
    """
    two_tables(pipeline)
    pipeline.execute("ALTER TABLE a ADD COLUMN note text DEFAULT 'none'")
    target = pipeline.state().through_lsn
    with pipeline.running(watch_interval_s=0.2, flush=FlushPolicy(progress_interval_s=0.5), **ALL) as running:
        running.wait_until(lambda: pipeline.table("public.a").state == "pending")
        assert "columns changed" in pipeline.table("public.a").reason
        running.wait_until(lambda: pipeline.table("public.a").state == "live")
    assert pipeline.state().through_lsn > target
    assert pipeline.table("public.a").schema_version == 2


def test_a_table_that_moved_out_of_a_published_schema_is_in_the_status_with_since_when(
    pipeline: IngestPipeline,
) -> None:
    since(pipeline.database, 15, "publications of schemas")
    pipeline.execute(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE SCHEMA away",
        "CREATE PUBLICATION {p} FOR TABLES IN SCHEMA public",
    )
    pipeline.run(tables=())
    pipeline.run("ALTER TABLE a SET SCHEMA away", "INSERT INTO away.a VALUES (1)", tables=())
    report = pipeline.reporter().take()
    (problem,) = [one for one in report.verdict.problems if one.code == "table.detached"]
    assert (problem.severity, problem.where, "no longer carries it" in problem.message) == ("info", "public.a", True)
    assert problem.since is not None


def test_a_table_is_detached_when_it_is_no_longer_selected_and_begins_again_when_it_is(
    pipeline: IngestPipeline,
) -> None:
    two_tables(pipeline)
    pipeline.run(tables=("public.b",))
    assert pipeline.table("public.a").state == "detached"
    assert "source.tables" in pipeline.table("public.a").reason
    pipeline.run("INSERT INTO a VALUES (2, 2)", tables=("public.b",))
    pipeline.run(tables=("public.*",))
    assert (pipeline.table("public.a").state, pipeline.table("public.a").generation) == ("live", 2)
    assert pipeline.snapshot_rows("public.a") == pipeline.source_rows("a")
    assert pipeline.table("public.b").generation == 1


def test_asking_for_origins_that_were_left_out_turns_the_tables_they_wrote_to_stale(pipeline: IngestPipeline) -> None:
    since(pipeline.database, 16, "leaving out origins")
    pipeline.execute("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline.publish("a")
    pipeline.run(origin="none", **ALL)
    with pipeline.database.connect() as connection:
        connection.execute("SELECT pg_replication_origin_create(%s)", (pipeline.database.slot,))
        connection.execute("SELECT pg_replication_origin_session_setup(%s)", (pipeline.database.slot,))
        connection.execute("INSERT INTO a VALUES (1)")
        connection.execute("SELECT pg_replication_origin_session_reset()")
        connection.execute("SELECT pg_replication_origin_drop(%s)", (pipeline.database.slot,))
    pipeline.run(origin="none", **ALL)
    assert pipeline.rows("public.a") == []
    assert pipeline.table("public.a").state == "live"
    pipeline.run(**ALL)
    assert pipeline.table("public.a").state == "stale"
    assert "source.origin" in pipeline.table("public.a").reason
    assert "sluice resync public.a" in pipeline.table("public.a").reason


def test_messages_that_were_not_kept_leave_no_gap_in_a_table_that_calls_itself_whole(pipeline: IngestPipeline) -> None:
    pipeline.execute("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline.publish("a")
    pipeline.run(messages=True, **ALL)
    assert pipeline.table("_sluice.messages").state == "live"
    pipeline.run(**ALL)
    assert pipeline.table("_sluice.messages").state == "detached"
    pipeline.run(messages=True, **ALL)
    again = pipeline.table("_sluice.messages")
    assert (again.state, again.generation) == ("live", 2)
    pipeline.run(messages=True, **ALL)
    assert pipeline.table("_sluice.messages").generation == 2
    pipeline.run(messages=True, message_prefixes=("x*",), **ALL)
    assert pipeline.table("_sluice.messages").generation == 3

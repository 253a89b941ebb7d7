"""What only the catalog or the configuration shows of a table that is live: followed in order, or
said by name.
"""

from typing import Any

import pytest

from sluice.contract.entries import Snapshot
from sluice.health.reporter import Reporter
from sluice.ingest.options import FlushPolicy
from tests.support.ingesting import IngestPipeline
from tests.support.source_setup import since

ALL: dict[str, Any] = {"tables": ()}


def publish(pipeline: IngestPipeline, *tables: str) -> None:
    pipeline.database.execute(f"CREATE PUBLICATION {pipeline.database.publication} FOR TABLE {', '.join(tables)}")


def two_tables(pipeline: IngestPipeline) -> None:
    pipeline.database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v int)",
        "CREATE TABLE b (id int PRIMARY KEY)",
        "INSERT INTO a VALUES (1, 1)",
    )
    publish(pipeline, "a", "b")
    pipeline.run(**ALL)


def test_a_column_that_no_row_announces_is_followed_behind_the_rows_before_it(pipeline: IngestPipeline) -> None:
    two_tables(pipeline)
    pipeline.database.execute("INSERT INTO a VALUES (2, 2)", "ALTER TABLE a ADD COLUMN note text DEFAULT 'none'")
    pipeline.run(**ALL)
    table = pipeline.table("public.a")
    assert (table.state, table.schema_version) == ("live", 2)
    note = table.schemas[2].column("note")
    assert note is not None
    assert note.missing == "none"
    assert [segment.schema_version for segment in pipeline.segments("public.a")] == [1]
    pipeline.database.execute("INSERT INTO a VALUES (3, 3, 'given')")
    pipeline.run(**ALL)
    assert pipeline.table("public.a").schema_version == 2
    assert [row["id"] for row in pipeline.rows("public.a")] == [2, 3]


def test_a_table_is_not_live_while_its_new_shape_waits_for_the_stream(pipeline: IngestPipeline) -> None:
    """The stream is stopped where it is, so that nothing tells whether rows of the older shape are
    still to come.
    """
    two_tables(pipeline)
    pipeline.database.execute("ALTER TABLE a ADD COLUMN note text DEFAULT 'none'")
    target = pipeline.state().through_lsn
    with pipeline.running(watch_interval_s=0.2, flush=FlushPolicy(progress_interval_s=0.5), **ALL) as running:
        running.wait_until(lambda: pipeline.table("public.a").state == "pending")
        assert "columns changed" in pipeline.table("public.a").reason
        running.wait_until(lambda: pipeline.table("public.a").state == "live")
    assert pipeline.state().through_lsn > target
    assert pipeline.table("public.a").schema_version == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("ALTER TABLE a ALTER COLUMN v TYPE bigint", "column v"),
        ("ALTER TABLE a DROP CONSTRAINT a_pkey, ADD w int PRIMARY KEY GENERATED ALWAYS AS IDENTITY", "rewritten"),
    ],
)
def test_a_change_of_shape_that_no_row_announces_and_the_lake_cannot_follow_is_named(
    pipeline: IngestPipeline, change: str, says: str
) -> None:
    two_tables(pipeline)
    pipeline.database.execute(change)
    pipeline.run(**ALL)
    assert pipeline.table("public.a").state == "stale"
    assert says in pipeline.table("public.a").reason
    assert pipeline.table("public.b").state == "live"


def test_a_table_that_left_the_publication_begins_again_when_it_is_back(pipeline: IngestPipeline) -> None:
    two_tables(pipeline)
    publication = pipeline.database.publication
    pipeline.database.execute(f"ALTER PUBLICATION {publication} DROP TABLE a", "INSERT INTO a VALUES (2, 2)")
    pipeline.run(**ALL)
    assert pipeline.table("public.a").state == "detached"
    pipeline.database.execute(f"ALTER PUBLICATION {publication} ADD TABLE a")
    pipeline.run(**ALL)
    table = pipeline.table("public.a")
    assert (table.state, table.generation, table.reason) == ("live", 2, "")
    assert pipeline.snapshot_rows("public.a") == pipeline.source_rows("a")


def test_a_table_that_moved_out_of_a_published_schema_is_in_the_status_with_since_when(
    pipeline: IngestPipeline,
) -> None:
    since(pipeline.database, 15, "publications of schemas")
    pipeline.database.execute(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE SCHEMA away",
        f"CREATE PUBLICATION {pipeline.database.publication} FOR TABLES IN SCHEMA public",
    )
    pipeline.run(tables=())
    pipeline.database.execute("ALTER TABLE a SET SCHEMA away", "INSERT INTO away.a VALUES (1)")
    pipeline.run(tables=())
    report = Reporter(pipeline="test", store=pipeline.store, lake_uri="file:///nowhere", source=None).take()
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
    pipeline.database.execute("INSERT INTO a VALUES (2, 2)")
    pipeline.run(tables=("public.b",))
    pipeline.run(tables=("public.*",))
    assert (pipeline.table("public.a").state, pipeline.table("public.a").generation) == ("live", 2)
    assert pipeline.snapshot_rows("public.a") == pipeline.source_rows("a")
    assert pipeline.table("public.b").generation == 1


def test_a_table_that_is_selected_later_is_read(pipeline: IngestPipeline) -> None:
    pipeline.database.execute(
        "CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)"
    )
    publish(pipeline, "a", "b")
    pipeline.run(tables=("public.b",))
    pipeline.database.execute("INSERT INTO a VALUES (2)")
    pipeline.run(tables=("public.b",))
    pipeline.run(tables=("public.a", "public.b"))
    assert pipeline.snapshot_rows("public.a") == {("1",), ("2",)}


def test_asking_for_origins_that_were_left_out_turns_the_tables_they_wrote_to_stale(
    pipeline: IngestPipeline,
) -> None:
    since(pipeline.database, 16, "leaving out origins")
    pipeline.database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    publish(pipeline, "a")
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
    pipeline.database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    publish(pipeline, "a")
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


def test_a_snapshot_makes_its_table_live_by_one_entry(pipeline: IngestPipeline) -> None:
    two_tables(pipeline)
    entries = pipeline.entries()
    snapshots = {entry.body.table_id: entry for entry in entries if isinstance(entry.body, Snapshot)}
    assert len(snapshots) == 2
    assert all(
        entry.body.fingerprint and entry.body.relfilenode
        for entry in snapshots.values()
        if isinstance(entry.body, Snapshot)
    )
    assert not [entry for entry in entries if getattr(entry.body, "state", "") == "live"]

"""What only the catalog or the configuration shows of a table that is live: followed in order, or
said by name. What is said is so today: it goes when its cause does.
"""

import contextlib
from typing import Any

from sluice.contract.control import ADD, REMOVE, RESYNC, Refusal
from sluice.contract.keys import REFUSED
from sluice.errors import ObjectMissing
from sluice.ingest.options import FlushPolicy
from tests.support.extent import slow
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


LOOKS: dict[str, Any] = {"tables": (), "watch_interval_s": 0.1}


def refused(pipeline: IngestPipeline) -> set[str]:
    found = set()
    for key in pipeline.store.list(REFUSED):
        with contextlib.suppress(ObjectMissing):  # it went since the listing
            found.add(Refusal.decode(pipeline.store.get(key)).table)
    return found


def test_a_refusal_goes_when_what_it_says_is_not_so_any_more(pipeline: IngestPipeline) -> None:
    database = pipeline.database
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY)",
        "CREATE PUBLICATION {p} FOR TABLE a",
    )
    with pipeline.running(**LOOKS) as running:
        running.wait_until(lambda: "a" in {table.table_name for table in pipeline.state().tables.values()})
        pipeline.request(RESYNC, table="b", place=RESYNC)
        pipeline.request(ADD, table="gone", place=ADD)
        pipeline.request(REMOVE, table="a", place=REMOVE)
        running.wait_until(lambda: refused(pipeline) == {"public.a", "public.b", "public.gone"})
        database.execute("ALTER PUBLICATION {p} ADD TABLE b")
        running.wait_until(lambda: refused(pipeline) == {"public.a", "public.gone"})
        database.execute("ALTER PUBLICATION {p} DROP TABLE a")
        running.wait_until(lambda: refused(pipeline) == {"public.gone"})
        running.wait_until(lambda: pipeline.table("public.b").state == "live")


@slow
def test_a_table_that_left_says_why_it_is_out_today(pipeline: IngestPipeline) -> None:
    database = pipeline.database
    database.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION {p} FOR TABLE a, b")
    said = []
    for patterns, statement in (
        ((), "SELECT 1"),
        (("!public.a",), "SELECT 1"),
        (("!public.a",), f"ALTER PUBLICATION {database.publication} DROP TABLE a"),
        ((), "SELECT 1"),
        (("!public.a",), f"ALTER PUBLICATION {database.publication} ADD TABLE a"),
        ((), "SELECT 1"),
    ):
        pipeline.run(statement, tables=patterns)
        table = pipeline.table("public.a")
        said.append((table.state, table.reason))
    unlisted = ("detached", f"publication {database.publication} no longer carries it")
    left_out = ("detached", "source.tables no longer selects it")
    assert said == [("live", ""), left_out, unlisted, unlisted, left_out, ("live", "")]
    assert pipeline.table("public.a").generation == 2


@slow
def test_a_table_that_cannot_be_carried_says_by_what_today(pipeline: IngestPipeline) -> None:
    database = pipeline.database
    database.execute('CREATE TABLE a (id int PRIMARY KEY, "V" int, v int)')
    pipeline.run("CREATE PUBLICATION {p} FOR TABLE a", tables=())
    said = [pipeline.table("public.a")]
    for statement in (
        'ALTER TABLE a DROP "V"; ALTER TABLE a ADD "_sluice_op" int',
        'ALTER TABLE a DROP "_sluice_op"',
    ):
        pipeline.run(*statement.split("; "), tables=())
        said.append(pipeline.table("public.a"))
    assert [table.state for table in said] == ["quarantined", "quarantined", "live"]
    assert "only by case" in said[0].reason
    assert "_sluice_op" in said[1].reason
    assert said[2].reason == ""

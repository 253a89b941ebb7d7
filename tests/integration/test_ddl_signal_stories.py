"""With the DDL signal completeness follows without looks at the catalog, waits for the one that a command needs,
and what two looks do not show is named.
"""

from typing import Any

import pytest

from sluice import lsn
from sluice.contract.entries import Changes
from sluice.ingest.options import FlushPolicy
from sluice.source import ddl_signal
from tests.integration.test_catalog_unseen_changes import (
    LIMITS,
    MOOD,
    MOVED,
    PARTED,
    PLAIN,
    columns_made_anew_behind_rows_of_a_later_number,
)
from tests.integration.test_wider_types import FOLLOW, REWRITTEN_TWICE
from tests.support.catalog_stories import RESYNC, read_again
from tests.support.extent import cases, slow
from tests.support.ingesting import IMMEDIATELY, IngestPipeline, Running
from tests.support.source_setup import since
from tests.support.sources import fresh_database
from tests.support.unseen_commits import invisible
from tools.local.postgres import temporary_server

SWIFT: dict[str, Any] = {"tables": (), "watch_interval_s": 0.2, "flush": FlushPolicy(0.05, 0.2)}
STAY = ("regclass_renamed",)
"""Limits that the signal does not lift."""
FOUND = {name: story for name, story in LIMITS.items() if name not in STAY} | {
    "unlogged_for_a_moment_without_large_columns": (
        ("CREATE TABLE t (id int PRIMARY KEY, v int)", "CREATE PUBLICATION {p} FOR ALL TABLES"),
        ("ALTER TABLE t SET UNLOGGED", "INSERT INTO t VALUES (3, 3)", "ALTER TABLE t SET LOGGED"),
    ),
    "entry_came_and_went_uncounted": (
        (
            "CREATE SCHEMA s",
            "CREATE TABLE s.t (id int PRIMARY KEY)",
            "CREATE PUBLICATION {p} FOR TABLE s.t WHERE (id > 100)",
        ),
        (
            "SET track_counts = off",
            "ALTER PUBLICATION {p} ADD TABLES IN SCHEMA s",
            "INSERT INTO s.t VALUES (1)",
            "ALTER PUBLICATION {p} DROP TABLES IN SCHEMA s",
        ),
    ),
    "identity_of_a_leaf_toggled_beside_its_settings": (
        (
            *PARTED[:3],
            "ALTER TABLE r REPLICA IDENTITY FULL",
            "ALTER TABLE r1 REPLICA IDENTITY FULL",
            "ALTER TABLE r DROP CONSTRAINT r_pkey",
            "ALTER TABLE r1 ADD PRIMARY KEY (id)",
            PARTED[3],
        ),
        (
            "ALTER TABLE r1 REPLICA IDENTITY DEFAULT",
            "DELETE FROM r WHERE id = 3",
            "ALTER TABLE r1 REPLICA IDENTITY FULL",
            "GRANT SELECT ON r1 TO PUBLIC",
        ),
    ),
}


def story(pipeline: IngestPipeline, name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if name == "entry_came_and_went_uncounted":
        since(pipeline.database, 15, "publications of a schema")
    return (FOUND | MOVED)[name]


def with_signal(pipeline: IngestPipeline, *statements: str) -> None:
    pipeline.execute(*statements, *ddl_signal.statements())


def until_alone(pipeline: IngestPipeline, running: Running) -> None:
    """Until completeness needs no look any more."""

    def is_alone() -> bool:
        pipeline.execute("SELECT pg_logical_emit_message(true, 'test', '')")
        running.ask(running.ingest.refresh)
        return not running.status.ddl_signal_lacks

    running.wait_until(is_alone)


@pytest.mark.parametrize(
    "name", cases(FOUND | MOVED, quick=["label_added_and_renamed", "entry_came_and_went_uncounted", *MOVED])
)
def test_what_two_looks_do_not_show_is_named_when_it_was_signalled(pipeline: IngestPipeline, name: str) -> None:
    before, after = story(pipeline, name)
    with_signal(pipeline, *before)
    pipeline.run(tables=())
    pipeline.run(*after, times=2, tables=())
    assert pipeline.silent_differences() == []
    assert "stale" in pipeline.states()


def test_rows_before_a_command_of_an_older_transaction_are_not_taken_for_rows_behind_it(
    pipeline: IngestPipeline,
) -> None:
    with_signal(pipeline, "CREATE TABLE beat (n int)", *PLAIN)
    pipeline.run(tables=())
    columns_made_anew_behind_rows_of_a_later_number(pipeline)
    pipeline.run(times=2, tables=())
    assert pipeline.silent_differences() == []
    assert pipeline.table("public.t").state == "stale"


@slow
@pytest.mark.parametrize("name", FOUND)
def test_it_is_named_while_ingest_runs_and_read_again(pipeline: IngestPipeline, name: str) -> None:
    before, after = story(pipeline, name)
    with_signal(pipeline, *before)
    with pipeline.running(**RESYNC) as running:
        running.wait_until_live()
        pipeline.execute(*after)  # and it is stopped at once: what was not looked at comes again
    read_again(pipeline, **RESYNC)
    pipeline.assert_equal()
    assert max(one.generation for one in pipeline.state().tables.values()) > 1


@slow
@pytest.mark.parametrize("name", REWRITTEN_TWICE)
def test_two_rewrites_of_a_column_are_named_under_on_widen_follow(pipeline: IngestPipeline, name: str) -> None:
    kind, value, changes = REWRITTEN_TWICE[name]
    with_signal(
        pipeline,
        f"CREATE TABLE t (id int PRIMARY KEY, x {kind})",
        f"INSERT INTO t VALUES (1, '{value}')",
        "CREATE PUBLICATION {p} FOR TABLE t",
    )
    pipeline.run(**FOLLOW)
    pipeline.run(*(f"ALTER TABLE t ALTER x {change}" for change in changes), times=2, **FOLLOW)
    pipeline.assert_equal({"rewrite": 1})


ORDINARY = (
    "CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (100) TO (200)",
    "CREATE TABLE r3 PARTITION OF r FOR VALUES FROM (200) TO (300) PARTITION BY RANGE (id)",
    "CREATE TABLE r31 PARTITION OF r3 FOR VALUES FROM (200) TO (250)",
    "INSERT INTO r SELECT i, i FROM generate_series(100, 109) i",
    "CREATE INDEX ON r (v)",
    "ALTER TABLE r1 SET (fillfactor = 90)",
    "ALTER TABLE r ALTER v SET NOT NULL",
    "CREATE TABLE other (id int) PARTITION BY RANGE (id)",
    "CREATE TABLE other1 PARTITION OF other DEFAULT",
    "DROP TABLE other",
    "ALTER TYPE mood ADD VALUE 'a'",
    "ALTER TYPE mood ADD VALUE 'b' BEFORE 'sad'",
    "ALTER TYPE mood ADD VALUE IF NOT EXISTS 'a'",
    "INSERT INTO t VALUES (3, 'a')",
    "ALTER TABLE t ADD w int",
    "ALTER TABLE t RENAME w TO x",
    "ALTER TABLE t ALTER x TYPE bigint",
    "ALTER TABLE t DROP x",
    "CREATE UNLOGGED TABLE apart (id int)",
    "ALTER TABLE apart SET LOGGED",
    "CREATE PUBLICATION another FOR TABLE t",
    "DROP PUBLICATION another",
    "GRANT SELECT ON t, r TO PUBLIC",
    "ANALYZE",
)


@slow
def test_commands_that_undo_nothing_put_no_table_in_doubt(pipeline: IngestPipeline) -> None:
    with_signal(pipeline, *PARTED[:-1], *MOOD[:-1], PARTED[-1].replace("TABLE r", "TABLE r, t"))
    pipeline.run(tables=())
    pipeline.run(*ORDINARY, times=2, tables=())
    pipeline.assert_equal()


@slow
def test_completeness_follows_rows_without_a_look(pipeline: IngestPipeline) -> None:
    with_signal(pipeline, *PLAIN)
    with pipeline.running(**SWIFT) as running:
        until_alone(pipeline, running)
        before = pipeline.state().seq
        for number in range(10, 15):
            pipeline.execute(f"INSERT INTO t VALUES ({number}, 'x')")
            running.wait_until(lambda: len(pipeline.rows("public.t")) == number - 9)  # noqa: B023
        entries = [entry for entry in pipeline.entries() if entry.seq > before and isinstance(entry.body, Changes)]
    assert len(entries) >= 5
    assert [entry.seq for entry in entries if entry.examined_lsn != entry.through_lsn] == []


@slow
def test_completeness_waits_until_a_command_that_was_signalled_can_be_seen(pipeline: IngestPipeline) -> None:
    with temporary_server(settings={"wal_level": "logical"}) as server, fresh_database(server) as database:
        pipeline.database, pipeline.dsn = database, ""
        with_signal(pipeline, *MOOD)
        with pipeline.running(**SWIFT) as running:
            until_alone(pipeline, running)
            before = lsn.parse(pipeline.wal_end())
            with invisible(pipeline.database, "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"):
                with database.connect() as connection:
                    connection.execute("SET synchronous_commit = local")
                    for number in range(10, 20):
                        connection.execute("INSERT INTO t VALUES (%s, 'ok')", (number,))
                        running.wait_until(lambda: len(pipeline.rows("public.t")) == number - 9)  # noqa: B023
                state = pipeline.state()
                ends = pipeline.commits()
                assert pipeline.table("public.t").state == "live"
                assert before <= state.examined_lsn < ends[-10] <= state.through_lsn
            running.wait_until(lambda: pipeline.table("public.t").state == "stale")
            running.wait_until(lambda: pipeline.state().examined_lsn >= ends[-1])


@slow
def test_a_signal_that_comes_late_is_relied_upon_from_the_next_connection_on(pipeline: IngestPipeline) -> None:
    pipeline.execute(*PLAIN)
    with pipeline.running(**SWIFT) as running:
        running.wait_until_live()
        pipeline.execute(*ddl_signal.statements())

        def lacks(what: str) -> bool:
            running.ask(running.ingest.refresh)
            pipeline.execute("SELECT pg_logical_emit_message(true, 'test', '')")
            return what in running.status.ddl_signal_lacks

        running.wait_until(lambda: lacks("began without its messages"))
        pipeline.database.cut_stream()
        until_alone(pipeline, running)


def test_a_transaction_older_than_the_signal_is_waited_for(pipeline: IngestPipeline) -> None:
    """It may have changed the catalog, and says nothing."""
    pipeline.run(*MOOD, tables=())
    with pipeline.database.connect() as older:
        older.execute("BEGIN")
        older.execute("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'")
        pipeline.execute(*ddl_signal.statements())
        with pipeline.running(**SWIFT) as running:
            for number in range(10, 15):
                pipeline.execute(f"INSERT INTO t VALUES ({number}, 'ok')")
                running.wait_until(lambda: len(pipeline.rows("public.t")) == number - 9)  # noqa: B023
            running.wait_until(lambda: pipeline.state().examined_lsn == pipeline.state().through_lsn)
            running.call(running.ingest.refresh)
            assert "older than it are open" in running.status.ddl_signal_lacks
            older.execute("COMMIT")
            running.wait_until(lambda: pipeline.table("public.t").state == "stale")
            until_alone(pipeline, running)


@slow
def test_signals_go_to_the_messages_table_only_where_their_prefix_is_asked_for(pipeline: IngestPipeline) -> None:
    with_signal(pipeline, *PLAIN)
    prefixes = []
    ways: tuple[dict[str, Any], ...] = ({}, {"message_prefixes": ("sluice.*",)}, {"message_prefixes": ("test",)})
    for options in ways:
        pipeline.run(messages=True, tables=(), **options)
        pipeline.run("CREATE TABLE x (id int)", "DROP TABLE x", messages=True, tables=(), **options)
        prefixes.append({row["prefix"] for row in pipeline.rows("_sluice.messages")} - {"test"})
    pipeline.run(tables=())
    before = pipeline.state().seq
    pipeline.run("SELECT pg_logical_emit_message(true, 'mine', '')", "CREATE TABLE x (id int)", tables=())
    assert prefixes == [set(), {"sluice.ddl"}, {"sluice.ddl"}]
    assert not [entry for entry in pipeline.entries() if entry.seq > before and isinstance(entry.body, Changes)]


FORGED = ("", "{", "[]", '{"left": 5}', '{"left": [[]]}', '{"left": [["label", "x"], 7]}')


@slow
def test_a_forged_signal_costs_a_look_and_no_more(pipeline: IngestPipeline) -> None:
    with_signal(pipeline, *MOOD)
    pipeline.run(tables=())
    pipeline.run(*(f"SELECT pg_logical_emit_message(true, 'sluice.ddl', '{one}')" for one in FORGED), tables=())
    assert pipeline.table("public.t").state == "live"


@pytest.mark.parametrize("prepared", cases([False, True], quick=[False]), ids=["streamed", "prepared"])
def test_a_signal_counts_where_its_transaction_ends_and_only_if_it_commits(
    pipeline: IngestPipeline, *, prepared: bool
) -> None:
    since(pipeline.database, 16, "streaming at once")
    pipeline.dsn = pipeline.database.dsn if prepared else pipeline.database.dsn + IMMEDIATELY
    options: dict[str, Any] = {"tables": (), "two_phase": True, "streaming": "on"}

    def in_a_transaction(statement: str, end: str) -> None:
        pipeline.database.transact(statement, end="PREPARE TRANSACTION 'story'" if prepared else end)
        pipeline.execute(*([f"{end} PREPARED 'story'"] if prepared else []))

    with_signal(pipeline, *MOOD)
    pipeline.run(**options)
    in_a_transaction("ALTER TYPE mood RENAME VALUE 'sad' TO 'x'", "ROLLBACK")
    pipeline.run(**options)
    assert pipeline.table("public.t").state == "live"
    pipeline.execute("ALTER TYPE mood ADD VALUE 'new'", "INSERT INTO t VALUES (3, 'new')")
    in_a_transaction("ALTER TYPE mood RENAME VALUE 'new' TO 'newer'", "COMMIT")
    pipeline.run(times=2, **options)
    assert pipeline.table("public.t").state == "stale"
    assert pipeline.silent_differences() == []

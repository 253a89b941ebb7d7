"""Whatever a publication says for a moment only, between two looks at any distance, ends equal or read
again: every way in which it can have a table, with every way in which that can be otherwise.
"""

from collections.abc import Callable
from contextlib import closing
from itertools import product

import psycopg
import pytest

from sluice.contract.catalog_facts import TableFacts
from sluice.source import ddl_signal
from sluice.source.catalog import Catalog
from sluice.source.published_tables import PublishedTables
from sluice.source.sessions import Connection, open_query
from sluice.tables.catalog_diff import Unseen, compare, fingerprint
from tests.support.catalog_stories import RESYNC, read_again
from tests.support.extent import cases
from tests.support.ingesting import IngestPipeline
from tests.support.memberships import TABLES, Membership, changes, memberships
from tests.support.pipeline import wait_until
from tests.support.source_setup import options_of, server_major, since
from tests.support.sources import Database, fresh_database
from tools.local.postgres import PostgresServer, StopMode, temporary_server

EVERY = {membership.label: membership for membership in memberships()}
QUICK = ("t filtered and schema", "root and leaf filtered", "leaf, by root", "all, by root")


def made(database: Database, membership: Membership) -> int:
    """The server's major, on which the tables and the publication are; skips what it does not have."""
    since(database, membership.since, "this publication")
    database.execute(*TABLES)
    if not quietly(database, membership.create("{p}")):
        pytest.skip("no server has this publication")
    return server_major(database)


def sent(database: Database) -> dict[int, tuple[object, set[int]]]:
    """By oid of a table, what the server itself says of what it sends of it, and its leaves."""
    rows = database.all(
        "SELECT c.oid::int8, jsonb_build_array(to_jsonb(p) - 'schemaname', to_jsonb(b)), ARRAY(SELECT "
        "l.relid::oid::int8 FROM pg_partition_tree(c.oid) l WHERE l.isleaf) "
        "FROM pg_publication_tables p JOIN pg_publication b USING (pubname) JOIN pg_class c "
        "ON c.oid = format('%%I.%%I', p.schemaname, p.tablename)::regclass WHERE pubname = %s",
        database.publication,
    )
    return {oid: (said, set(leaves) - {oid}) for oid, said, leaves in rows}


def quietly(database: Database, statement: str) -> bool:
    """Whether the server carried it out. The session is gone then, and what it did is counted."""
    try:
        database.execute(statement.format(p=database.publication))
    except psycopg.Error:
        return False
    return True


def wait_until_counted(connection: Connection) -> None:
    """Until every session of a test has ended that could still have something to count, and on 14 the
    collector has written down what they counted.
    """
    others = (
        b"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() "
        b"AND datname = current_database() AND application_name NOT LIKE 'sluice%'"
    )
    wait_until(lambda: connection.execute(others).fetchone() == (0,), what="the sessions have ended", timeout=30)
    if connection.info.server_version < 150000:
        (ended,) = connection.execute("SELECT clock_timestamp()").fetchone() or (None,)
        written = (
            "SELECT pg_stat_get_tuples_deleted('pg_publication_rel'::regclass) IS NOT NULL AND "
            "pg_stat_get_snapshot_timestamp() > %s"
        )
        wait_until(lambda: connection.execute(written, (ended,)).fetchone() == (True,), what="it is written down")


@pytest.mark.parametrize("label", cases(EVERY, quick=QUICK))
def test_a_moment_in_which_the_server_sent_otherwise_is_a_reason_at_the_next_look(
    database: Database, label: str
) -> None:
    major = made(database, EVERY[label])
    options = options_of(database)
    publication, tried = database.publication, 0

    def silent(before: TableFacts, now: TableFacts) -> bool:
        return compare(before.relfilenode, fingerprint(before), now) is None

    with closing(open_query(options)) as running:
        published = PublishedTables(publication)
        for moment, away, back in EVERY[label].moments(major):
            before, said = dict(published.look(running)), sent(database)
            if not quietly(database, away):
                continue
            meanwhile = sent(database)
            assert quietly(database, back), back
            assert sent(database) == said, moment
            tried += 1
            wait_until_counted(running)
            wrong = [oid for oid, what in said.items() if meanwhile.get(oid) != what]
            with closing(open_query(options)) as restarted:
                after_restart = {facts.oid: facts for facts in Catalog(restarted).published_tables(publication)}
            for when, now in (("running", published.look(running)), ("down", after_restart)):
                assert not [now[oid].name for oid in wrong if silent(before[oid], now[oid])], (moment, when)
    assert tried >= 3


def happen(database: Database, moments: list[tuple[str, str, str]]) -> None:
    """Every moment, with changes in each. What the server refuses is left out."""
    for number, (_, away, back) in enumerate(moments, 1):
        if quietly(database, away):
            for change in changes(number):
                quietly(database, f"SET search_path = s, public; {change}")
            assert quietly(database, back), back


@pytest.mark.parametrize(
    ("label", "running", "signalled"),
    cases(
        product(EVERY, [False, True], [False, True]),
        quick=[("t filtered and schema", False, False)],
    ),
)
def test_what_was_sent_otherwise_for_a_moment_is_read_again_and_equal(
    pipeline: IngestPipeline, label: str, *, running: bool, signalled: bool
) -> None:
    """With changes in that moment; ingest is down meanwhile, or between two looks, unless the machine is so slow that
    one falls among the changes. With the DDL signal the server need not count.
    """
    if signalled:
        count = f"ALTER DATABASE {pipeline.database.name} SET track_counts = off"
        pipeline.execute(*ddl_signal.statements(), count)
    moments = list(EVERY[label].moments(made(pipeline.database, EVERY[label])))
    if running:
        with pipeline.running(**RESYNC, watch_interval_s=3600) as ingest:
            ingest.wait_until_live()
            happen(pipeline.database, moments)
    else:
        pipeline.run(**RESYNC)
        happen(pipeline.database, moments)
    with pipeline.database.connect() as connection:
        if not signalled:
            wait_until_counted(connection)
    read_again(pipeline, **RESYNC)
    pipeline.assert_equal()


def compared_around(server: PostgresServer, between: Callable[[Database], None]) -> Unseen | None:
    """What a comparison of two looks at a table with a filter says, with `between` in between. The server has
    counted a removal before, and one while `between` is done.
    """
    with fresh_database(server) as database:
        since(database, 15, "row filters")
        options = options_of(database)
        moment = [f"ALTER PUBLICATION {database.publication} {what} TABLES IN SCHEMA s" for what in ("ADD", "DROP")]
        database.execute(
            "CREATE SCHEMA s",
            "CREATE TABLE s.t (id int PRIMARY KEY)",
            "CREATE PUBLICATION {p} FOR TABLE s.t WHERE (id > 100)",
            *moment,
        )

        def look() -> TableFacts:
            with closing(open_query(options)) as connection:
                wait_until_counted(connection)
                (facts,) = Catalog(connection).published_tables(database.publication)
                return facts

        before = look()
        assert before.removals == 1
        between(database)
        return compare(before.relfilenode, fingerprint(before), look())


@pytest.mark.parametrize(
    "reset", ["pg_stat_reset()", "pg_stat_reset_single_table_counters('pg_publication_namespace'::regclass)"]
)
def test_a_count_of_removals_that_was_reset_is_a_reason(database: Database, reset: str) -> None:
    def between(database: Database) -> None:
        database.execute(
            *(f"ALTER PUBLICATION {database.publication} {what} TABLES IN SCHEMA s" for what in ("ADD", "DROP"))
        )
        with database.connect() as connection:
            wait_until_counted(connection)
            connection.execute(f"SELECT {reset}".encode())

    unseen = compared_around(database.server, between)
    assert unseen is not None
    assert "came and went" in unseen.reason


@pytest.mark.parametrize("mode", cases(["fast", "immediate"], quick=["immediate"]))
def test_a_server_that_was_started_again_is_no_reason(mode: StopMode) -> None:
    """Although it counts from 0 after a crash."""
    with temporary_server(settings={"wal_level": "logical"}, durable=True) as server:
        assert compared_around(server, lambda _: server.restart(mode)) is None

"""Whatever a publication says for a moment only, between two looks at any distance, ends equal or read
again: every way in which it can have a table, with every way in which that can be otherwise.
"""

import threading
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from sluice.contract.catalog_facts import TableFacts
from sluice.ingest.tables.catalog_diff import compare, fingerprint
from sluice.source.catalog import Catalog
from sluice.source.published_tables import PublishedTables
from sluice.source.sessions import Connection, open_query
from tests.support.catalog_stories import RESYNC, verdicts
from tests.support.extent import cases
from tests.support.ingesting import IngestPipeline
from tests.support.memberships import TABLES, Membership, changes, memberships
from tests.support.source_setup import options_of, server_major, since
from tests.support.sources import Database

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
    with database.connect() as connection:
        rows = connection.execute(
            "SELECT c.oid::int8, jsonb_build_array(to_jsonb(p) - 'schemaname', to_jsonb(b)), ARRAY(SELECT "
            "l.relid::oid::int8 FROM pg_partition_tree(c.oid) l WHERE l.isleaf) "
            "FROM pg_publication_tables p JOIN pg_publication b USING (pubname) JOIN pg_class c "
            "ON c.oid = format('%%I.%%I', p.schemaname, p.tablename)::regclass WHERE pubname = %s",
            (database.publication,),
        ).fetchall()
    return {oid: (said, set(leaves) - {oid}) for oid, said, leaves in rows}


def lacks(said: tuple[object, set[int]], meanwhile: tuple[object, set[int]] | None) -> bool:
    """Whether something of a table was sent otherwise. That another leaf was below it for a moment is a limit
    that docs/guarantees.md names.
    """
    return meanwhile is None or said[0] != meanwhile[0] or bool(said[1] - meanwhile[1])


def quietly(database: Database, statement: str) -> bool:
    """Whether the server carried it out. The session is gone then, and what it did is counted."""
    try:
        database.execute(statement.format(p=database.publication))
    except psycopg.Error:
        return False
    return True


def wait_until_counted(connection: Connection) -> None:
    """Until every session has ended that could still have something to count."""
    command = (
        b"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() "
        b"AND datname = current_database()"
    )
    tick = threading.Event()
    for _ in range(200):
        if connection.execute(command).fetchone() == (0,):
            return
        tick.wait(0.05)
    raise AssertionError("a session did not end")


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
            wrong = [oid for oid, what in said.items() if lacks(what, meanwhile.get(oid))]
            with closing(open_query(options)) as restarted:
                after_restart = {facts.oid: facts for facts in Catalog(restarted).published_tables(publication)}
            for when, now in (("running", published.look(running)), ("down", after_restart)):
                assert not [now[oid].name for oid in wrong if silent(before[oid], now[oid])], (moment, when)
    assert tried >= 3


@pytest.mark.parametrize("frozen", [False, True], ids=["down", "between two looks"])
@pytest.mark.parametrize("label", cases(EVERY, quick=("t filtered and schema",)))
def test_what_was_sent_otherwise_for_a_moment_is_read_again_and_equal(
    pipeline: IngestPipeline, tmp_path: Path, label: str, *, frozen: bool
) -> None:
    """With changes in that moment; ingest is down meanwhile, or between two looks."""
    major = made(pipeline.database, EVERY[label])
    moments = list(EVERY[label].moments(major))

    def happen() -> None:
        for number, (_, away, back) in enumerate(moments, 1):
            if quietly(pipeline.database, away):
                for change in changes(number):
                    quietly(pipeline.database, f"SET search_path = s, public; {change}")
                assert quietly(pipeline.database, back), back

    if frozen:
        with pipeline.running(**RESYNC, watch_interval_s=3600) as running:
            running.wait_until(lambda: {table.state for table in pipeline.state().tables.values()} == {"live"})
            happen()
    else:
        pipeline.run(**RESYNC)
        happen()
    with pipeline.database.connect() as connection:
        wait_until_counted(connection)
    for _ in range(2):
        pipeline.run(**RESYNC)
    assert {(found.state, found.differences) for found in verdicts(pipeline, tmp_path)} == {("live", ())}

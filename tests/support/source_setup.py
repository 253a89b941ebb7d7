"""A database made ready for the source's tests: options, publication and slot."""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import psycopg
import pytest

from sluice.contract.catalog_facts import TableFacts
from sluice.source.catalog import Catalog
from sluice.source.sessions import KnownSource, SourceOptions, open_query
from sluice.source.slot_facts import server_facts
from tests.support import canary
from tests.support.sources import Database


def options_of(database: Database, *, user: str = "postgres") -> SourceOptions:
    """Options for the database's own slot and publication."""
    return SourceOptions(
        dsn=canary.with_password(database.server.dsn(user=user, dbname=database.name)),
        slot=database.slot,
        publication=database.publication,
        application_name="sluice_test",
    )


def known(options: SourceOptions) -> KnownSource:
    """`options`, held to where they lead now."""
    with closing(open_query(options)) as connection:
        return KnownSource.of(options, server_facts(connection, options))


def facts_of(options: SourceOptions, table_id: str) -> TableFacts:
    """What the catalog says of a table of the publication."""
    with closing(open_query(options)) as connection:
        facts = Catalog(connection).table(int(table_id), publication=options.publication)
    assert facts is not None
    return facts


def since(database: Database, major: int, feature: str) -> None:
    """Skips the test on a server older than `major`, which brought the feature."""
    found = server_major(database)
    if found < major:
        pytest.skip(f"{feature} came with PostgreSQL {major}, this is {found}")


def until(database: Database, major: int, feature: str) -> None:
    """Skips the test on a server newer than `major`, the last that has the feature."""
    found = server_major(database)
    if found > major:
        pytest.skip(f"{feature} went with PostgreSQL {major}, this is {found}")


def server_major(database: Database) -> int:
    with database.connect() as connection:
        return connection.info.server_version // 10000


@contextmanager
def no_free_slot(database: Database) -> Iterator[None]:
    """All replication slots of the server are taken until the block ends."""
    taken: list[str] = []
    with database.connect() as connection:
        try:
            with suppress(psycopg.errors.ConfigurationLimitExceeded):
                while True:
                    name = f"{database.slot}_{len(taken)}"
                    connection.execute("SELECT pg_create_physical_replication_slot(%s)", (name,))
                    taken.append(name)
            yield
        finally:
            for name in taken:
                connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))


def detach_half_way(database: Database, root: str, leaf: str) -> None:
    """Leaves `leaf` as DETACH ... CONCURRENTLY does that is cancelled while it waits: no query of `root` reads it."""
    with database.connect() as reader, database.connect() as detaching:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute(f"SELECT count(*) FROM {root}".encode())
        detaching.execute("SET statement_timeout = '1s'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            detaching.execute(f"ALTER TABLE {root} DETACH PARTITION {leaf} CONCURRENTLY".encode())
        reader.execute("ROLLBACK")
        assert reader.execute("SELECT count(*) FROM pg_inherits WHERE inhdetachpending").fetchone() == (1,)

"""A database made ready for the source's tests: options, publication and slot."""

from contextlib import closing

import psycopg
import pytest

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

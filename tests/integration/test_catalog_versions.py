"""Only what changed is asked for again, and what is not asked for again is as it was: after any
statement, the facts that were kept are those that a look at everything gives.
"""

import random
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

import psycopg
import pytest

from sluice.contract.catalog_facts import TableFacts
from sluice.source.catalog import Catalog
from sluice.source.published_tables import PublishedTables
from sluice.source.sessions import Connection, open_query
from tests.support.extent import slow
from tests.support.least_rights import options_as, pipeline_role
from tests.support.source_setup import options_of, server_major, since, until
from tests.support.sources import Database

SETUP = (
    "CREATE SCHEMA s",
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE TYPE inner_pair AS (m mood)",
    "CREATE TYPE pair AS (x int, y inner_pair)",
    "CREATE DOMAIN money_like AS numeric(10, 2)",
    "CREATE DOMAIN price AS money_like",
    "CREATE TABLE plain (id int PRIMARY KEY, body text, n int NOT NULL DEFAULT 5)",
    "CREATE UNIQUE INDEX plain_n ON plain (n)",
    "CREATE TABLE typed (id int PRIMARY KEY, m mood[], p pair, d price)",
    "CREATE TABLE s.moved (id int PRIMARY KEY)",
    "CREATE TABLE r (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (id)",
    "CREATE TABLE r11 PARTITION OF r1 FOR VALUES FROM (0) TO (50)",
    "CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (100) TO (200)",
    "CREATE TABLE r3 (id int PRIMARY KEY, v text)",
    "CREATE TABLE other (id int PRIMARY KEY)",
    "INSERT INTO plain SELECT i, 'x', i FROM generate_series(1, 50) i",
    "INSERT INTO r SELECT i, 'x' FROM generate_series(1, 40) i",
)
STATEMENTS = (
    "ALTER TABLE plain ADD COLUMN c{n} int DEFAULT 7",
    "ALTER TABLE plain ADD COLUMN d{n} float DEFAULT random()",
    "ALTER TABLE plain DROP COLUMN IF EXISTS c{k}",
    "ALTER TABLE plain RENAME COLUMN body TO body2",
    "ALTER TABLE plain RENAME COLUMN body2 TO body",
    "ALTER TABLE plain ALTER n TYPE bigint",
    "ALTER TABLE plain ALTER n TYPE int",
    "ALTER TABLE plain ALTER body SET STATISTICS {n}",
    "ALTER TABLE plain ALTER body DROP NOT NULL",
    "ALTER TABLE plain ALTER body SET NOT NULL",
    "ALTER TABLE plain ALTER body SET STORAGE EXTERNAL",
    "ALTER TABLE plain REPLICA IDENTITY FULL",
    "ALTER TABLE plain REPLICA IDENTITY DEFAULT",
    "ALTER TABLE plain REPLICA IDENTITY USING INDEX plain_n",
    "ALTER TABLE plain DROP CONSTRAINT plain_pkey; ALTER TABLE plain ADD PRIMARY KEY (id)",
    "ALTER TABLE plain RENAME TO plainer",
    "ALTER TABLE plainer RENAME TO plain",
    "ALTER TABLE plain SET SCHEMA s",
    "ALTER TABLE s.plain SET SCHEMA public",
    "ALTER SCHEMA s RENAME TO s2",
    "ALTER SCHEMA s2 RENAME TO s",
    "TRUNCATE plain",
    "VACUUM FULL plain",
    "VACUUM FREEZE pg_catalog.pg_class",
    "VACUUM FULL pg_catalog.pg_attribute",
    "ANALYZE plain",
    "CREATE INDEX ON plain (body)",
    "UPDATE plain SET body = 'y'",
    "ALTER TYPE mood ADD VALUE 'v{n}'",
    "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
    "ALTER TYPE mood RENAME VALUE 'blue' TO 'sad'",
    "ALTER TYPE mood RENAME TO moody",
    "ALTER TYPE moody RENAME TO mood",
    "ALTER TYPE inner_pair ADD ATTRIBUTE z{n} int",
    "ALTER TYPE mood SET SCHEMA s",
    "ALTER TYPE s.mood SET SCHEMA public",
    "ALTER DOMAIN price ADD CHECK (value > {n})",
    "ALTER DOMAIN price RENAME TO prices",
    "ALTER DOMAIN prices RENAME TO price",
    "ALTER TABLE typed ADD COLUMN e{n} mood",
    "ALTER TABLE r ADD COLUMN c{n} int DEFAULT 3",
    "ALTER TABLE r ATTACH PARTITION r3 FOR VALUES FROM (200) TO (300)",
    "ALTER TABLE r DETACH PARTITION r3",
    "ALTER TABLE r1 ATTACH PARTITION r3 FOR VALUES FROM (50) TO (100)",
    "ALTER TABLE r1 DETACH PARTITION r3",
    "TRUNCATE r2",
    "ALTER TABLE r2 REPLICA IDENTITY FULL",
    "ALTER TABLE r11 SET (fillfactor = {f})",
    "ALTER TABLE r2 RENAME TO r2_{n}; ALTER TABLE r2_{n} RENAME TO r2",
    "DROP TABLE r2; CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (100) TO (200)",
    "ALTER PUBLICATION {p} DROP TABLE plain",
    "ALTER PUBLICATION {p} ADD TABLE plain",
    "ALTER PUBLICATION {p} DROP TABLE plain; ALTER PUBLICATION {p} ADD TABLE plain",
    "ALTER PUBLICATION {p} SET (publish = 'insert')",
    "ALTER PUBLICATION {p} SET (publish = 'insert, update, delete, truncate')",
    "ALTER PUBLICATION {p} SET (publish_via_partition_root = false)",
    "ALTER PUBLICATION {p} SET (publish_via_partition_root = true)",
    "ALTER PUBLICATION {p} ADD TABLE other",
    "DROP TABLE IF EXISTS other; CREATE TABLE other (id int PRIMARY KEY)",
    "BEGIN; ALTER TABLE plain ADD COLUMN gone int; ROLLBACK",
    "BEGIN; SAVEPOINT a; ALTER TABLE plain ADD COLUMN c int; ROLLBACK TO a; ALTER TABLE r ADD COLUMN t{n} int; COMMIT",
    "REVOKE SELECT ON plain FROM {role}",
    "GRANT SELECT ON plain TO {role}",
    "GRANT SELECT (id) ON plain TO {role}",
    "REVOKE SELECT (id) ON plain FROM {role}",
    "REVOKE USAGE ON SCHEMA s FROM {role}",
    "GRANT USAGE ON SCHEMA s TO {role}",
    "GRANT pg_read_all_data TO {role}",
    "REVOKE pg_read_all_data FROM {role}",
    "ALTER ROLE {role} BYPASSRLS",
    "ALTER ROLE {role} NOBYPASSRLS",
    "ALTER ROLE {role} SUPERUSER",
    "ALTER ROLE {role} NOSUPERUSER",
    "ALTER TABLE plain ENABLE ROW LEVEL SECURITY",
    "ALTER TABLE plain DISABLE ROW LEVEL SECURITY",
    "ALTER TABLE plain OWNER TO {role}",
    "ALTER TABLE plain OWNER TO CURRENT_USER",
)
SINCE_15 = (
    "ALTER PUBLICATION {p} SET TABLE plain WHERE (id > 10), typed, r",
    "ALTER PUBLICATION {p} SET TABLE plain (id, n), typed, r",
    "ALTER PUBLICATION {p} SET TABLE plain, typed, r, s.moved",
    "ALTER PUBLICATION {p} ADD TABLES IN SCHEMA s",
    "ALTER PUBLICATION {p} DROP TABLES IN SCHEMA s",
    "ALTER TABLE s.moved SET SCHEMA public; ALTER TABLE moved SET SCHEMA s",
    "CREATE TABLE s.new{n} (id int PRIMARY KEY)",
    "ALTER TABLE plain SET UNLOGGED",
)
SINCE_18 = (
    "ALTER TABLE plain ALTER n DROP NOT NULL; ALTER TABLE plain ADD CONSTRAINT nn NOT NULL n NOT VALID",
    "ALTER TABLE plain VALIDATE CONSTRAINT nn",
)


@contextmanager
def looking(database: Database) -> Iterator[tuple[Connection, str]]:
    """A session of a role with few rights, over which the pipeline would look, and the role's name."""
    with pipeline_role(database) as role:
        database.execute(
            *SETUP,
            "CREATE PUBLICATION {p} FOR TABLE plain, typed, r, s.moved WITH (publish_via_partition_root = true)",
            f"CREATE ROLE {role} LOGIN REPLICATION",
            f"GRANT USAGE ON SCHEMA s TO {role}",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA public, s TO {role}",
        )
        with closing(open_query(options_as(database, role))) as connection:
            yield connection, role


def seen(facts: TableFacts) -> TableFacts:
    """Without what may be older in facts that were kept: the estimate of rows, what a version
    proves only until an update rolled back, and what the server counts later than it happens.
    """
    return replace(
        facts,
        estimated_rows=0,
        removals=min(facts.removals, 0),
        children=tuple(replace(leaf, attached=()) for leaf in facts.children),
        type_details=tuple(replace(detail, original=False) for detail in facts.type_details),
    )


def everything(connection: Connection, database: Database) -> dict[int, TableFacts]:
    tables = Catalog(connection).published_tables(database.publication)
    return {facts.oid: seen(facts) for facts in tables}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=slow)])
def test_after_any_statement_what_was_kept_is_what_a_look_at_everything_gives(database: Database, seed: int) -> None:
    chance = random.Random(seed)
    major = server_major(database)
    statements = [*STATEMENTS, *(SINCE_15 if major >= 15 else ()), *(SINCE_18 if major >= 18 else ())] * 2
    chance.shuffle(statements)
    changes = 0
    with looking(database) as (connection, role), database.connect() as admin:
        published = PublishedTables(database.publication)
        before = {oid: seen(facts) for oid, facts in published.look(connection).items()}
        for number, statement in enumerate(statements):
            text = statement.format(
                p=database.publication, role=role, n=number, k=chance.randrange(number + 1), f=50 + number % 50
            )
            for part in text.split("; "):
                with suppress(psycopg.Error):
                    admin.execute(part.encode())
            if admin.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                admin.execute("ROLLBACK")
            now = everything(connection, database)
            kept = {oid: seen(facts) for oid, facts in published.look(connection).items()}
            assert kept == now, text
            changes += now != before
            before = now
    assert changes > len(statements) / 4, "the statements change little that a table is made of"


@pytest.mark.parametrize(
    ("oldest", "before", "statement"),
    [
        (15, "SELECT 1", "ALTER PUBLICATION {p} ADD TABLES IN SCHEMA s"),
        (16, "GRANT pg_read_all_data TO {role}", "GRANT pg_read_all_data TO {role} WITH INHERIT FALSE"),
        (14, "GRANT SELECT ON plain TO pg_database_owner", "ALTER DATABASE {d} OWNER TO {role}"),
        (18, f"{SINCE_18[0]}; ALTER TABLE plain REPLICA IDENTITY USING INDEX plain_n", SINCE_18[1]),
    ],
)
def test_what_leaves_the_rows_of_the_table_alone_is_seen_as_well(
    database: Database, oldest: int, before: str, statement: str
) -> None:
    since(database, oldest, "this statement")
    if statement in SINCE_18:
        until(database, 18, "an identity that is not validated")
    words = {"p": database.publication, "d": database.name}
    with looking(database) as (connection, role):
        database.execute("REVOKE SELECT ON ALL TABLES IN SCHEMA public FROM " + role, before.format(role=role, **words))
        published = PublishedTables(database.publication)
        first = dict(published.look(connection))
        try:
            database.execute(statement.format(role=role, **words))
            now = {oid: seen(facts) for oid, facts in published.look(connection).items()}
            assert now == everything(connection, database)
            assert now != {oid: seen(facts) for oid, facts in first.items()}
        finally:
            database.execute(f"ALTER DATABASE {database.name} OWNER TO CURRENT_USER")


def test_a_look_asks_for_the_tables_that_changed_and_for_no_other(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[str]] = []
    ask = Catalog.published_among

    def noted(self: Catalog, oids: list[int], *, publication: str) -> list[TableFacts]:
        found = ask(self, oids, publication=publication)
        asked.append({facts.name for facts in found})
        return found

    monkeypatch.setattr(Catalog, "published_among", noted)
    with looking(database) as (connection, role):
        published = PublishedTables(database.publication)
        first = published.look(connection)
        for statement in (
            "SELECT 1",
            "UPDATE plain SET body = 'z'",
            "ANALYZE",
            "CREATE TABLE elsewhere (id int)",
            "CREATE TYPE unused AS ENUM ('x')",
            "CREATE ROLE unused_{role}; DROP ROLE unused_{role}",
            "VACUUM FREEZE pg_catalog.pg_class",
            "VACUUM FULL pg_catalog.pg_attribute",
        ):
            database.execute(*statement.format(role=role).split("; "))
            again = published.look(connection)
            assert all(again[oid] is facts for oid, facts in first.items()), statement
        assert asked == [{"plain", "typed", "r", "moved"}]
        assert [facts.name for facts in first.values()] == ["plain", "r", "typed", "moved"], "in the order of names"
        for statement, changed in (
            ("ALTER TABLE plain ADD COLUMN c int", {"plain"}),
            ("ALTER TYPE mood ADD VALUE 'new'", {"typed"}),
            ("TRUNCATE r11", {"r"}),
            (f"GRANT pg_read_all_data TO {role}", {"plain", "typed", "r", "moved"}),
        ):
            asked.clear()
            database.execute(statement)
            published.look(connection)
            assert asked == [changed], statement


def test_another_session_begins_with_a_look_at_everything(database: Database) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE PUBLICATION {p} FOR TABLE a")
    published = PublishedTables(database.publication)
    with closing(open_query(options_of(database))) as one, closing(open_query(options_of(database))) as other:
        (first,) = published.look(one).values()
        (again,) = published.look(one).values()
        (anew,) = published.look(other).values()
    assert again is first
    assert anew is not first
    assert anew == first

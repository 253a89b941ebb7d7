"""What the catalog says about a publication is what the server itself says, and asking waits for
nobody; the end of the WAL is a position that the stream comes to.
"""

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from sluice.errors import SourceUnavailable
from sluice.source.catalog import Catalog
from sluice.source.sessions import open_query
from sluice.source.slot_facts import server_facts
from tests.support.extent import slow
from tests.support.source_setup import detach_half_way, options_of, server_major
from tests.support.sources import Database, fresh_database
from tools.local.postgres import temporary_server

TABLES = (
    "CREATE SCHEMA other",
    "CREATE TABLE a (id int PRIMARY KEY, t text, twice int GENERATED ALWAYS AS (id * 2) STORED)",
    "CREATE TABLE other.b (id int PRIMARY KEY)",
    "CREATE UNLOGGED TABLE other.unlogged (id int PRIMARY KEY)",
    "CREATE TABLE r (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
    "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (id)",
    "CREATE TABLE other.r21 PARTITION OF r2 FOR VALUES FROM (100) TO (150)",
    "CREATE TABLE other.r3 (id int PRIMARY KEY, v text)",
    "CREATE TABLE base (id int PRIMARY KEY)",
    "CREATE TABLE inherits () INHERITS (base)",
    "CREATE SEQUENCE counted",
    "CREATE SEQUENCE other.counted",
)
BY_ROOT = " WITH (publish_via_partition_root = true)"
PUBLICATIONS = {
    14: (
        "FOR TABLE a, other.b",
        "FOR TABLE base",
        "FOR TABLE ONLY base",
        "FOR TABLE a, r",
        "FOR TABLE a, r" + BY_ROOT,
        "FOR TABLE r1, r, other.r21" + BY_ROOT,
        "FOR TABLE r1, r2" + BY_ROOT,
        "FOR ALL TABLES",
        "FOR ALL TABLES" + BY_ROOT,
    ),
    15: (
        "FOR TABLES IN SCHEMA other",
        "FOR TABLES IN SCHEMA other, public" + BY_ROOT,
        "FOR TABLE a, TABLES IN SCHEMA other",
        "FOR TABLE a WHERE (id > 3), other.b",
        "FOR TABLE a (t, id), other.b",
        "FOR TABLE r (id)" + BY_ROOT,
        "FOR TABLE a WHERE (id > 3), TABLES IN SCHEMA public",
        "FOR TABLE a WHERE (id > 3), TABLES IN SCHEMA other",
        "FOR TABLE r, TABLES IN SCHEMA other",
        "FOR TABLE r, TABLES IN SCHEMA other" + BY_ROOT,
        "FOR TABLE other.r21, TABLES IN SCHEMA public",
        "FOR TABLE other.r21, TABLES IN SCHEMA public" + BY_ROOT,
        "FOR TABLE r, r1 WHERE (id > 3)",
        "FOR TABLE r, r1 WHERE (id > 3)" + BY_ROOT,
        "FOR TABLE r WHERE (id > 3)" + BY_ROOT,
    ),
    18: ("FOR TABLE a WITH (publish_generated_columns = stored)", "FOR TABLE a (id, twice)"),
    19: (
        "FOR ALL TABLES EXCEPT (TABLE a)",
        "FOR ALL TABLES EXCEPT (TABLE a)" + BY_ROOT,
        "FOR ALL TABLES EXCEPT (TABLE r)",
        "FOR ALL TABLES EXCEPT (TABLE r, other.b)" + BY_ROOT,
        "FOR ALL SEQUENCES",
        "FOR ALL TABLES, ALL SEQUENCES",
        "FOR ALL TABLES, ALL SEQUENCES" + BY_ROOT,
    ),
}
"""By the major that they came with."""


def test_the_published_tables_columns_and_filters_are_those_that_the_server_names(database: Database) -> None:
    major = server_major(database)
    database.execute(*TABLES)
    with closing(Catalog(open_query(options_of(database)))) as catalog:
        for wanted in (one for oldest, all_of_it in PUBLICATIONS.items() if oldest <= major for one in all_of_it):
            database.execute(f"CREATE PUBLICATION {{p}} {wanted}")
            rows = database.all(
                "SELECT to_jsonb(p) FROM pg_publication_tables p WHERE pubname = %s", database.publication
            )
            theirs = {(row["schemaname"], row["tablename"]): row for (row,) in rows}
            ours = {(facts.schema, facts.name): facts for facts in catalog.published_tables(database.publication)}
            assert ours.keys() == theirs.keys(), wanted
            for name, facts in ours.items():
                listed, condition = theirs[name].get("attnames"), catalog.row_filter(facts) or None
                if listed is not None and major < 16:
                    # PostgreSQL 15 names generated columns, which it never sends.
                    listed = [column for column in listed if column != "twice"]
                published = None if facts.published_columns is None else list(facts.published_columns)
                assert (published, condition) == (listed, theirs[name].get("rowfilter")), (wanted, name)
                assert (facts.row_filter is not None) == (condition is not None), (wanted, name)
            database.execute("DROP PUBLICATION {p}")


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE a ALTER t TYPE text USING t || '!'",
        "ALTER TABLE a DROP COLUMN t",
        "ALTER TABLE a RENAME COLUMN t TO u",
        "TRUNCATE r1",
    ],
)
def test_a_look_says_what_held_at_one_moment_although_tables_change_meanwhile(database: Database, change: str) -> None:
    """Functions of the server that look into its cache know more than the rows that the look sees: storage of
    after a rewrite beside columns of before it would hide the rewrite for good.
    """
    database.execute(*TABLES, "INSERT INTO a VALUES (1, 'x')", f"CREATE PUBLICATION p FOR TABLE a, r{BY_ROOT}")
    with closing(open_query(options_of(database))) as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        before = Catalog(connection).published_tables("p")
        database.execute(change)
        assert Catalog(connection).published_tables("p") == before


@slow
def test_no_question_to_the_catalog_waits_for_a_table_that_somebody_has_locked(database: Database) -> None:
    """But for the text of a row filter, which is asked where the lock is held: it stops waiting by itself."""
    publication = database.publication
    where = " WHERE (id > 3)" if server_major(database) >= 15 else ""
    database.execute(*TABLES, f"CREATE PUBLICATION {publication} FOR TABLE a{where}, other.b, base, r1, r")
    with database.connect() as holder, closing(Catalog(open_query(options_of(database)))) as catalog:
        (filtered,) = [facts for facts in catalog.published_tables(publication) if facts.name == "a"]
        holder.execute("BEGIN")
        for (name,) in holder.execute(
            "SELECT oid::regclass::text FROM pg_class WHERE relkind IN ('r', 'p') AND oid >= 16384"
        ).fetchall():
            holder.execute(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE".encode())
        oids = [filtered.oid]
        questions = {
            "publication": lambda: catalog.publication(publication),
            "published_tables": lambda: catalog.published_tables(publication),
            "published_among": lambda: catalog.published_among(oids, publication=publication),
            "published_versions": lambda: catalog.published_versions(publication),
            "table": lambda: catalog.table(filtered.oid, publication=publication),
            "tables": lambda: catalog.tables(oids, publication=publication),
            "existing": lambda: catalog.existing(oids),
            "publication_entries": lambda: catalog.publication_entries(publication),
            "publication_entries_of_all": catalog.publication_entries_of_all,
            "tables_named": lambda: catalog.tables_named([("public", "a")]),
            "sizes": lambda: catalog.sizes(oids),
            "table_names": catalog.table_names,
            "not_publishable": catalog.not_publishable,
            "wal_end": catalog.wal_end,
            "visible": catalog.visible,
        }
        public = {name for name, what in vars(Catalog).items() if callable(what) and not name.startswith("_")}
        assert questions.keys() | {"row_filter", "close"} == public
        for ask in questions.values():
            ask()  # a wait would end with SourceUnavailable, by the session's lock_timeout
        if where:
            with pytest.raises(SourceUnavailable, match="55P03"):
                catalog.row_filter(filtered)


def test_a_partition_whose_detachment_was_cancelled_half_way_is_none_of_its_root(database: Database) -> None:
    database.execute(
        *TABLES, f"CREATE PUBLICATION {database.publication} FOR TABLE r WITH (publish_via_partition_root = true)"
    )
    detach_half_way(database, "r", "r1")
    with closing(Catalog(open_query(options_of(database)))) as catalog:
        (facts,) = catalog.published_tables(database.publication)
    assert {leaf.name for leaf in facts.children} == {"r21"}


PAGE = 8192
FEW = 300
"""Bytes of a message that is shorter than what it takes to come to the end of a page."""


@pytest.fixture
def quiet() -> Iterator[Database]:
    """On a server of its own, where nobody else writes."""
    with temporary_server(settings={"autovacuum": "off"}) as server, fresh_database(server) as database:
        yield database


def _inserted(connection: psycopg.Connection) -> int:
    row = connection.execute("SELECT (pg_current_wal_insert_lsn() - '0/0')::int8").fetchone()
    assert row is not None
    return int(row[0])


def _write(connection: psycopg.Connection, nbytes: int) -> int:
    """How much longer the WAL is, with a message of so many bytes."""
    before = _inserted(connection)
    connection.execute("SELECT pg_logical_emit_message(false, 'x', repeat('y', %s))", (nbytes,))
    return _inserted(connection) - before


def _end_with_a_page(connection: psycopg.Connection) -> int:
    """Writes a record that ends with its page, and returns where."""
    for _ in range(100):
        start = _inserted(connection)
        around = _write(connection, FEW) - FEW
        left = PAGE - _inserted(connection) % PAGE - around
        if start // PAGE == _inserted(connection) // PAGE and left > FEW:
            _write(connection, left)
            if _inserted(connection) % PAGE == 24:
                return _inserted(connection) - 24
        _write(connection, PAGE // 2)
    raise AssertionError("no record ended with its page")


def test_where_a_record_ends_with_its_page_the_end_of_the_wal_is_where_it_ends(quiet: Database) -> None:
    options = options_of(quiet)
    with quiet.connect() as writing, closing(open_query(options)) as asking:
        end = _end_with_a_page(writing)
        found = Catalog(asking).wal_end(), server_facts(asking, options).wal_end_lsn
        assert _inserted(writing) == end + 24
        assert found == (end, end)
        _write(writing, FEW)
        assert Catalog(asking).wal_end() == _inserted(writing)

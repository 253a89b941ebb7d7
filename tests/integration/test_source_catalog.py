"""What the catalog says about a publication is what the server itself says, and asking waits for
nobody.
"""

import threading
from contextlib import closing

import pytest

from sluice.errors import SourceUnavailable
from sluice.source.catalog import Catalog
from sluice.source.sessions import open_query
from tests.support.source_setup import detach_half_way, options_of, since
from tests.support.sources import Database

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
PUBLICATIONS = {
    "named": "FOR TABLE a, other.b",
    "inheritance": "FOR TABLE base",
    "only": "FOR TABLE ONLY base",
    "leaves": "FOR TABLE a, r",
    "root": "FOR TABLE a, r WITH (publish_via_partition_root = true)",
    "root and leaf": "FOR TABLE r1, r, other.r21 WITH (publish_via_partition_root = true)",
    "leaf under a root": "FOR TABLE r1, r2 WITH (publish_via_partition_root = true)",
    "everything": "FOR ALL TABLES",
    "everything by root": "FOR ALL TABLES WITH (publish_via_partition_root = true)",
}
SINCE_15 = {
    "schema": "FOR TABLES IN SCHEMA other",
    "schema by root": "FOR TABLES IN SCHEMA other, public WITH (publish_via_partition_root = true)",
    "schema and table": "FOR TABLE a, TABLES IN SCHEMA other",
    "filter": "FOR TABLE a WHERE (id > 3), other.b",
    "list": "FOR TABLE a (t, id), other.b",
    "list by root": "FOR TABLE r (id) WITH (publish_via_partition_root = true)",
}
SINCE_15_COMBINED = {
    "filter and its schema": "FOR TABLE a WHERE (id > 3), TABLES IN SCHEMA public",
    "filter and another schema": "FOR TABLE a WHERE (id > 3), TABLES IN SCHEMA other",
    "root and its leaf's schema": "FOR TABLE r, TABLES IN SCHEMA other",
    "root and its leaf's schema, by root": "FOR TABLE r, TABLES IN SCHEMA other "
    "WITH (publish_via_partition_root = true)",
    "leaf and its root's schema": "FOR TABLE other.r21, TABLES IN SCHEMA public",
    "leaf and its root's schema, by root": "FOR TABLE other.r21, TABLES IN SCHEMA public "
    "WITH (publish_via_partition_root = true)",
    "filtered leaf beside its root": "FOR TABLE r, r1 WHERE (id > 3)",
    "filtered leaf beside its root, by root": "FOR TABLE r, r1 WHERE (id > 3) WITH (publish_via_partition_root = true)",
    "filtered root": "FOR TABLE r WHERE (id > 3) WITH (publish_via_partition_root = true)",
}
SINCE_19 = {
    "all but one": "FOR ALL TABLES EXCEPT (TABLE a)",
    "all but one, by root": "FOR ALL TABLES EXCEPT (TABLE a) WITH (publish_via_partition_root = true)",
    "all but a root": "FOR ALL TABLES EXCEPT (TABLE r)",
    "all but a root, by root": "FOR ALL TABLES EXCEPT (TABLE r, other.b) WITH (publish_via_partition_root = true)",
    "sequences": "FOR ALL SEQUENCES",
    "tables and sequences": "FOR ALL TABLES, ALL SEQUENCES",
    "tables and sequences, by root": "FOR ALL TABLES, ALL SEQUENCES WITH (publish_via_partition_root = true)",
}
SINCE_15 |= SINCE_15_COMBINED
SINCE_18 = {
    "generated": "FOR TABLE a WITH (publish_generated_columns = stored)",
    "generated in a list": "FOR TABLE a (id, twice)",
}


@pytest.mark.parametrize("name", [*PUBLICATIONS, *SINCE_15, *SINCE_18, *SINCE_19])
def test_the_published_tables_columns_and_filters_are_those_that_the_server_names(
    database: Database, name: str
) -> None:
    if name in SINCE_15:
        since(database, 15, "this kind of publication")
    if name in SINCE_18:
        since(database, 18, "publishing generated columns")
    if name in SINCE_19:
        since(database, 19, "what ALL is followed by")
    wanted = {**PUBLICATIONS, **SINCE_15, **SINCE_18, **SINCE_19}[name]
    database.execute(*TABLES, f"CREATE PUBLICATION {database.publication} {wanted}")
    with database.connect() as connection:
        theirs = [
            row[0]
            for row in connection.execute(
                "SELECT to_jsonb(p) FROM pg_publication_tables p WHERE pubname = %s", (database.publication,)
            )
        ]
        generated = connection.info.server_version < 160000
    with closing(Catalog(open_query(options_of(database)))) as catalog:
        ours = catalog.published_tables(database.publication)
        said = {facts.oid: catalog.row_filter(facts) or None for facts in ours}
    assert {(facts.schema, facts.name) for facts in ours} == {(row["schemaname"], row["tablename"]) for row in theirs}
    columns = {(row["schemaname"], row["tablename"]): row.get("attnames") for row in theirs}
    filters = {(row["schemaname"], row["tablename"]): row.get("rowfilter") for row in theirs}
    for facts in ours:
        listed = columns[facts.schema, facts.name]
        if listed is not None and generated:
            # PostgreSQL 15 names generated columns, which it never sends.
            listed = [column for column in listed if column != "twice"]
        assert (None if facts.published_columns is None else list(facts.published_columns)) == listed
        assert said[facts.oid] == filters[facts.schema, facts.name]
        assert (facts.row_filter is not None) == (said[facts.oid] is not None)


def test_a_table_locked_by_an_alter_table_keeps_nobody_from_asking(database: Database) -> None:
    database.execute(
        *TABLES, f"CREATE PUBLICATION {database.publication} FOR TABLE a, r WITH (publish_via_partition_root = true)"
    )
    with database.connect() as holder, closing(Catalog(open_query(options_of(database)))) as catalog:
        holder.execute("BEGIN")
        holder.execute("LOCK TABLE a, r IN ACCESS EXCLUSIVE MODE")
        patience = threading.Timer(20, lambda: holder.execute("ROLLBACK"))
        patience.start()
        asked = catalog.published_tables(database.publication)
        still_locked = holder.execute(
            "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'AccessExclusiveLock'"
        ).fetchone()
        patience.cancel()
        assert {facts.name for facts in asked} == {"a", "r"}
        assert still_locked is not None
        assert still_locked[0] > 0, "the answer came only after the lock was gone"


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
    database.execute(*TABLES, "INSERT INTO a VALUES (1, 'x')", f"CREATE PUBLICATION p {PUBLICATIONS['root']}")
    with closing(open_query(options_of(database))) as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        before = Catalog(connection).published_tables("p")
        database.execute(change)
        assert Catalog(connection).published_tables("p") == before


def test_no_question_to_the_catalog_waits_for_a_table_that_somebody_has_locked(database: Database) -> None:
    """But for the text of a row filter, which is asked where the lock is held: it stops waiting by itself."""
    since(database, 15, "row filters")
    publication = database.publication
    database.execute(*TABLES, f"CREATE PUBLICATION {publication} FOR TABLE a WHERE (id > 3), other.b, base, r1, r")
    with database.connect() as holder, closing(Catalog(open_query(options_of(database)))) as catalog:
        (filtered,) = [facts for facts in catalog.published_tables(publication) if facts.row_filter]
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
        }
        public = {name for name, what in vars(Catalog).items() if callable(what) and not name.startswith("_")}
        assert questions.keys() | {"row_filter", "close"} == public
        for ask in questions.values():
            ask()  # a wait would end with SourceUnavailable, by the session's lock_timeout
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

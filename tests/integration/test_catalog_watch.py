"""Changes that no stream carries are seen in the catalog; maintenance that changes no row is not
mistaken for one.
"""

from contextlib import closing

import pytest

from sluice.contract.catalog_facts import TableFacts
from sluice.source.catalog import Catalog
from sluice.source.sessions import open_query
from sluice.tables.catalog_diff import compare, fingerprint
from tests.support.source_setup import options_of, since
from tests.support.sources import Database

SETUP = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE TYPE pair AS (x int, y mood)",
    "CREATE DOMAIN moods AS mood[]",
    "CREATE TABLE t (id int PRIMARY KEY, body text, m moods, p pair, twice int GENERATED ALWAYS AS (id * 2) STORED)",
    "INSERT INTO t SELECT i, 'x', '{sad}', ROW(1, 'ok')::pair FROM generate_series(1, 100) i",
    "CREATE TABLE r (id int PRIMARY KEY, body text) PARTITION BY RANGE (id)",
    "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (100) TO (200)",
    "CREATE TABLE r3 (id int PRIMARY KEY, body text)",
    "INSERT INTO r SELECT i, 'x' FROM generate_series(1, 150) i",
    "INSERT INTO r3 VALUES (200, 'x')",
    "CREATE TYPE empty AS ENUM ()",
    "CREATE TABLE unlabelled (id int PRIMARY KEY, e empty)",
)


def looks(
    database: Database, table: str, statements: str, *, scope: str = "TABLE t, r, unlabelled"
) -> tuple[TableFacts, str | None]:
    """Facts after `statements`, and what the comparison with the look before them says."""
    if any(part in statements for part in ("SET TABLE t WHERE", "SET TABLE t (")):
        since(database, 15, "row filters and column lists")
    if "REPACK" in statements:
        since(database, 19, "REPACK")
    options = options_of(database)
    database.execute(*SETUP, f"CREATE PUBLICATION {{p}} FOR {scope} WITH (publish_via_partition_root = true)")

    def look() -> TableFacts:
        with closing(Catalog(open_query(options))) as catalog:
            return next(facts for facts in catalog.published_tables(options.publication) if facts.name == table)

    before = look()
    assert compare(before.relfilenode, fingerprint(before), before) is None
    database.execute(*statements.split("; "))
    after = look()
    unseen = compare(before.relfilenode, fingerprint(before), after)
    return after, unseen.reason if unseen is not None else None


def assert_named(database: Database, table: str, statements: str, reason: str) -> None:
    _, said = looks(database, table, statements)
    assert said is not None
    assert reason in said


@pytest.mark.parametrize(
    ("table", "statement", "reason"),
    [
        ("t", "ALTER TABLE t ALTER body TYPE text USING upper(body)", "rewritten and column body was altered"),
        ("t", "ALTER TABLE t ADD COLUMN drawn float DEFAULT random()", "rewritten and column drawn was added"),
        ("t", "ALTER TABLE t ADD COLUMN counted bigserial", "rewritten and column counted was added"),
        ("t", "ALTER TABLE t ADD COLUMN n int GENERATED ALWAYS AS IDENTITY", "rewritten and column n was added"),
        ("t", "ALTER TABLE t ALTER twice DROP EXPRESSION", "ceased to be generated"),
        ("t", "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", "label 'sad' was renamed to 'blue'"),
        ("t", "ALTER TYPE pair ADD ATTRIBUTE z int", "composite type"),
        ("t", "ALTER PUBLICATION {p} SET TABLE t WHERE (id > 10), r", "row filter changed"),
        ("t", "ALTER PUBLICATION {p} SET TABLE t (id, body), r", "column list changed"),
        ("t", "ALTER PUBLICATION {p} SET (publish = 'insert')", "flags changed"),
        ("r", "TRUNCATE r2", "r2 was truncated or rewritten"),
        ("r", "ALTER TABLE r ATTACH PARTITION r3 FOR VALUES FROM (200) TO (300)", "r3 was attached"),
        ("r", "ALTER TABLE r DETACH PARTITION r2", "detached or dropped"),
        ("r", "DROP TABLE r2", "detached or dropped"),
    ],
)
def test_what_changes_rows_without_an_event_is_named(
    database: Database, table: str, statement: str, reason: str
) -> None:
    assert_named(database, table, statement, reason)


@pytest.mark.parametrize(
    ("table", "statements", "reason"),
    [
        (
            "r",
            "ALTER TABLE r DETACH PARTITION r2; ALTER TABLE r ATTACH PARTITION r2 FOR VALUES FROM (100) TO (200)",
            "r2 was detached and attached again",
        ),
        (
            "r",
            (
                "CREATE TABLE deep (LIKE r INCLUDING ALL) PARTITION BY RANGE (id); "
                "CREATE TABLE deep1 PARTITION OF deep FOR VALUES FROM (300) TO (350); "
                "ALTER TABLE r ATTACH PARTITION deep FOR VALUES FROM (300) TO (400)"
            ),
            "deep1 was attached",
        ),
    ],
)
def test_what_was_otherwise_for_a_moment_is_named(database: Database, table: str, statements: str, reason: str) -> None:
    """Between two looks, so that before and after are alike but for the traces that it left."""
    assert_named(database, table, statements, reason)


@pytest.mark.parametrize(
    ("table", "statements"),
    [
        ("t", "VACUUM FULL t"),
        ("t", "ALTER TYPE mood ADD VALUE 'new' BEFORE 'sad'"),
        ("t", "TRUNCATE t"),
        ("t", "ANALYZE t; VACUUM t"),
        ("t", "CREATE INDEX ON t (body); CLUSTER t USING t_pkey"),
        ("t", "ALTER TABLE t ALTER body SET STATISTICS 500"),
        ("t", "ALTER TABLE t ADD COLUMN added text DEFAULT 'constant'"),
        (
            "t",
            "CREATE TYPE kind AS ENUM ('a', 'b'); CREATE TYPE kinds AS (k kind, n int); ALTER TABLE t ADD added kinds",
        ),
        ("t", "GRANT SELECT ON t TO PUBLIC; REVOKE SELECT ON t FROM PUBLIC"),
        (
            "r",
            (
                "CREATE TABLE other (id int PRIMARY KEY, r_id int REFERENCES r); "
                "CREATE TABLE r4 PARTITION OF r FOR VALUES FROM (300) TO (400); ALTER TABLE r4 SET (fillfactor = 90); "
                "CREATE INDEX ON r4 (body); "
                "BEGIN; CREATE TABLE r5 PARTITION OF r FOR VALUES FROM (400) TO (500); "
                "INSERT INTO r VALUES (401, 'x'); COMMIT; "
                "CREATE TABLE deep PARTITION OF r FOR VALUES FROM (500) TO (600) PARTITION BY LIST (id); "
                "CREATE TABLE deep1 PARTITION OF deep FOR VALUES IN (500); INSERT INTO r VALUES (500, 'x'); "
                "VACUUM ANALYZE r4"
            ),
        ),
        ("t", "REINDEX TABLE t; REINDEX TABLE CONCURRENTLY t"),
        ("t", "UPDATE t SET body = 'y'; DELETE FROM t WHERE id < 50; ALTER TABLE t REPLICA IDENTITY FULL"),
        ("t", "CREATE TABLE other (id int PRIMARY KEY); ALTER PUBLICATION {p} ADD TABLE other"),
        ("unlabelled", "ALTER TYPE empty ADD VALUE 'first'"),
        ("t", "REPACK t USING INDEX t_pkey"),
        ("t", "REPACK (CONCURRENTLY) t"),
    ],
)
def test_what_leaves_every_row_as_it_was_or_is_streamed_is_no_reason(
    database: Database, table: str, statements: str
) -> None:
    assert looks(database, table, statements)[1] is None


@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        ("TRUNCATE r", "was truncated or rewritten"),
        ("VACUUM FULL r1", "was truncated or rewritten"),
        ("CLUSTER r1 USING r1_pkey", "was truncated or rewritten"),
        ("ALTER PUBLICATION {p} OWNER TO pg_database_owner", "the publication itself was altered"),
        (
            (
                "CREATE TABLE q (id int PRIMARY KEY, body text) PARTITION BY RANGE (id); "
                "CREATE TABLE q1 PARTITION OF q FOR VALUES FROM (0) TO (100); ALTER TABLE q DETACH PARTITION q1"
            ),
            "may have been a partition of it",
        ),
        ("CREATE TABLE z (id int); ALTER TABLE z ADD PRIMARY KEY (id)", "may have been a partition of it"),
    ],
)
def test_what_the_catalog_shows_as_it_shows_a_loss_is_named_as_well(
    database: Database, statements: str, reason: str
) -> None:
    """Nothing was lost, and docs/guarantees.md says that these tables are read again all the same."""
    assert_named(database, "r", statements, reason)


_UNLOGGED = "it may have been unlogged for a moment"


@pytest.mark.parametrize("scope", ["ALL TABLES", "TABLES IN SCHEMA public"])
@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("VACUUM FULL t", None),
        ("CLUSTER t USING t_pkey", None),
        ("REPACK t USING INDEX t_pkey", None),
        ("REPACK (CONCURRENTLY) t", _UNLOGGED),
        ("ALTER TABLE t SET UNLOGGED; ALTER TABLE t SET LOGGED", _UNLOGGED),
    ],
)
def test_a_rewrite_with_new_toast_is_a_reason_where_the_publication_does_not_name_the_table(
    database: Database, scope: str, statement: str, reason: str | None
) -> None:
    """REPACK (CONCURRENTLY) leaves the rows of the catalog that SET UNLOGGED and SET LOGGED leave."""
    if scope != "ALL TABLES":
        since(database, 15, "publications of a schema")
    _, said = looks(database, "t", statement, scope=scope)
    assert (said is None) == (reason is None)
    assert (reason or "") in (said or "")


def test_what_an_added_column_reads_as_in_older_rows_is_the_exact_text(database: Database) -> None:
    options = options_of(database)
    defaults = {
        "a text": ("'x,\"{}\\y NULL'", 'x,"{}\\y NULL'),
        "b text": ("'NULL'", "NULL"),
        "c text": ("''", ""),
        "d int[]": ("'{1,NULL}'", "{1,NULL}"),
        "e box": ("'(1,1),(0,0)'", "(1,1),(0,0)"),
        "f box[]": ("'{(1,1),(0,0);(3,3),(2,2)}'", "{(1,1),(0,0);(3,3),(2,2)}"),
        "g char(4)": ("'q'", "q   "),
        "h bool": ("true", "t"),
        "i timestamptz": ("'2024-07-01 12:00+02'", "2024-07-01 10:00:00+00"),
        "j numeric(6,2)": ("1.5", "1.50"),
        "k bytea": ("'\\x00ff'", "\\x00ff"),
    }
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        *(f"ALTER TABLE t ADD COLUMN {column} DEFAULT {value}" for column, (value, _) in defaults.items()),
        "ALTER TABLE t ADD COLUMN z text",
        f"CREATE PUBLICATION {options.publication} FOR TABLE t",
    )
    with closing(Catalog(open_query(options))) as catalog:
        (facts,) = catalog.published_tables(options.publication)
    assert [column.missing for column in facts.columns] == [None, *(text for _, text in defaults.values()), None]

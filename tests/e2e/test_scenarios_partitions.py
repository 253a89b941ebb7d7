"""Scenarios of partitioned tables that are published as their root, and of schemas that are
published whole.

What the server does not send under a published root (TRUNCATE of a leaf, ATTACH, DETACH, old rows
of another identity) must turn the table stale by name.
"""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.e2e.mirror import Mirror
from tests.e2e.scenario import Scenario, World, names, play, scenarios, without
from tests.support.extent import slow
from tests.support.source_setup import since
from tests.support.sources import fresh_database
from tools.local.postgres import PostgresServer

_ROOT = """
    CREATE TABLE r (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY RANGE (k)
    CREATE TABLE low PARTITION OF r FOR VALUES FROM (0) TO (10)
    CREATE TABLE high PARTITION OF r FOR VALUES FROM (10) TO (20)
    INSERT INTO r SELECT i, i, 'v' FROM generate_series(1, 18) i
"""

_TEXTS = {
    "levels": """
        -- publish: r | equal: r | absent: east, east_low, east_high, other
        CREATE TABLE r (id int, k int, region text, body text, PRIMARY KEY (id, k, region)) \
          PARTITION BY LIST (region)
        CREATE TABLE east PARTITION OF r FOR VALUES IN ('e') PARTITION BY RANGE (k)
        CREATE TABLE east_low PARTITION OF east FOR VALUES FROM (0) TO (10)
        CREATE TABLE other (body text, spare int, region text NOT NULL, k int NOT NULL, id int NOT NULL, \
          PRIMARY KEY (id, k, region))
        ALTER TABLE other DROP COLUMN spare
        ALTER TABLE r ATTACH PARTITION other DEFAULT
        ALTER TABLE r ALTER body SET STORAGE EXTERNAL
        ALTER TABLE east_low ALTER body SET STORAGE EXTERNAL
        ALTER TABLE other ALTER body SET STORAGE EXTERNAL
        INSERT INTO r SELECT i, i % 10, CASE WHEN i % 2 = 0 THEN 'e' ELSE 'w' END, repeat('body' || i, 900) \
          FROM generate_series(1, 12) i
        -- then
        UPDATE r SET region = 'w' WHERE id = 2
        UPDATE r SET region = 'e' WHERE id IN (1, 3)
        UPDATE r SET id = id + 100 WHERE region = 'w'
        CREATE TABLE east_high PARTITION OF east FOR VALUES FROM (10) TO (20)
        UPDATE r SET k = k + 10 WHERE region = 'e' AND id IN (4, 6)
        UPDATE r SET body = 'new' WHERE id = 6
        DELETE FROM r WHERE id IN (8, 105)
        INSERT INTO r VALUES (50, 15, 'e', NULL), (51, 15, 'n', 'n')
    """,
    "full_on_both": """
        -- publish: r | equal: r
        CREATE TABLE r (a int, b text) PARTITION BY RANGE (a)
        CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)
        CREATE TABLE r2 (b text, a int)
        ALTER TABLE r ATTACH PARTITION r2 FOR VALUES FROM (10) TO (20)
        ALTER TABLE r REPLICA IDENTITY FULL
        ALTER TABLE r1 REPLICA IDENTITY FULL
        ALTER TABLE r2 REPLICA IDENTITY FULL
        INSERT INTO r SELECT i % 4 * 4, nullif(i % 3, 0)::text FROM generate_series(1, 40) i
        -- then
        DELETE FROM r WHERE tableoid = 'r2'::regclass AND ctid = (SELECT min(ctid) FROM r2)
        UPDATE r SET a = a + 10 WHERE a < 8 AND b = '1'
        UPDATE r SET b = NULL WHERE a = 12
    """,
    "root_and_leaf": """
        -- publish: r; low | equal: r | absent: low, high
        -- root
        -- then
        UPDATE r SET k = k + 10 WHERE k < 5
        INSERT INTO low VALUES (90, 9, 'by leaf')
        DELETE FROM high WHERE id = 12
    """,
    "truncated_leaf": """
        -- publish: r | stopped: r: stale: low was truncated
        -- root
        -- then
        TRUNCATE low
        INSERT INTO r VALUES (1, 1, 'again')
    """,
    "made_below_what_was_attached": """
        -- publish: r | equal: r
        -- root
        CREATE TABLE apart (LIKE r INCLUDING ALL) PARTITION BY RANGE (k)
        ALTER TABLE r ATTACH PARTITION apart FOR VALUES FROM (100) TO (200)
        CREATE TABLE deep PARTITION OF apart FOR VALUES FROM (100) TO (150)
        -- then
        CREATE TABLE deeper PARTITION OF apart FOR VALUES FROM (150) TO (200)
        INSERT INTO r VALUES (1, 120, 'x'), (2, 160, 'x')
    """,
    "false_nulls": """
        -- publish: r | stopped: r: quarantined: false NULLs
        -- root
        ALTER TABLE r REPLICA IDENTITY FULL
        -- then
        UPDATE r SET v = 'u'
    """,
    "false_nulls_later": """
        -- publish: r | stopped: r: quarantined: false NULLs
        -- root
        ALTER TABLE r REPLICA IDENTITY FULL
        ALTER TABLE low REPLICA IDENTITY FULL
        ALTER TABLE high REPLICA IDENTITY FULL
        -- then
        ALTER TABLE low REPLICA IDENTITY DEFAULT
        UPDATE r SET v = 'u'
    """,
    "filtered_root": """
        -- publish: r WHERE (k < 12) | since: 15
        -- root
        ALTER TABLE r ALTER v SET STORAGE PLAIN
        -- then
        UPDATE r SET k = k + 10 WHERE k < 4
        UPDATE r SET k = k - 10 WHERE k IN (15, 16)
        UPDATE r SET v = 'u' WHERE k IN (5, 17)
        DELETE FROM r WHERE k = 8
    """,
    "listed_root": """
        -- publish: r (id, k, v) | since: 15
        -- root
        ALTER TABLE r ADD COLUMN hidden text DEFAULT 'h'
        -- then
        UPDATE r SET k = k + 10, hidden = 'x' WHERE k < 4
        UPDATE r SET v = 'u' WHERE k = 5
        UPDATE r SET hidden = NULL
        DELETE FROM r WHERE k = 8
    """,
}
PARTITIONS = scenarios(_TEXTS, root=_ROOT)
LEFT_OUT = ("root_and_leaf", "made_below_what_was_attached", "false_nulls_later")

WHOLE = Scenario(
    "whole",
    before="""
        CREATE SCHEMA elsewhere
        CREATE TABLE stays (id int PRIMARY KEY)
        CREATE TABLE leaves (id int PRIMARY KEY)
        CREATE TABLE returns (id int PRIMARY KEY)
        CREATE TABLE elsewhere.comes (id int PRIMARY KEY)
        INSERT INTO stays VALUES (1)
        INSERT INTO leaves VALUES (1)
        INSERT INTO returns VALUES (1)
        INSERT INTO elsewhere.comes VALUES (1)
    """,
    after="""
        CREATE TABLE made (id int PRIMARY KEY)
        INSERT INTO made VALUES (1)
        INSERT INTO stays VALUES (2)
        ALTER TABLE elsewhere.comes SET SCHEMA whole
        INSERT INTO comes VALUES (2)
        ALTER TABLE leaves SET SCHEMA elsewhere
        INSERT INTO elsewhere.leaves VALUES (2)
        ALTER TABLE returns SET SCHEMA elsewhere
        INSERT INTO elsewhere.returns VALUES (2)
        ALTER TABLE elsewhere.returns SET SCHEMA whole
    """,
    equal=("stays", "made", "comes"),
    stopped={
        "leaves": ("detached", "no longer carries it"),
        "returns": ("stale", "left the publication and came back"),
    },
    since=15,
)
"""Its schema is published, not its tables."""


@pytest.fixture(scope="module")
def world(mirror: Mirror) -> World:
    return play(
        mirror, without(LEFT_OUT, PARTITIONS), publication="FOR {entries} WITH (publish_via_partition_root = true)"
    )


@pytest.fixture(scope="module")
def whole_schema(
    postgres: PostgresServer, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """By itself: one publication cannot have column lists and whole schemas."""
    with fresh_database(postgres) as database:
        since(database, WHOLE.since, "publishing whole schemas")
        yield play(
            Mirror(database, spark, tmp_path_factory.mktemp("whole")), [WHOLE], publication="FOR TABLES IN SCHEMA whole"
        )


@names(PARTITIONS, left_out=LEFT_OUT)
def test_a_published_root_equals_the_source_or_is_stopped_by_name(world: World, name: str) -> None:
    world.check(name)


def test_rows_that_leave_and_enter_a_filter_by_moving_between_partitions(world: World) -> None:
    world.played("filtered_root")
    assert world.lake_rows("filtered_root", "r") == world.filtered("SELECT * FROM filtered_root.r WHERE k < 12")


def test_a_column_list_of_a_root_holds_for_its_leaves(world: World) -> None:
    world.played("listed_root")
    assert world.lake_rows("listed_root", "r") == world.filtered("SELECT id, k, v FROM listed_root.r")


@slow
def test_a_whole_schema_has_the_tables_that_are_in_it_and_one_that_was_away_is_stale(whole_schema: World) -> None:
    whole_schema.check("whole")

"""Scenarios of what a publication sends of a table: row filters, column lists, generated columns,
tables that leave, come and come back.

The lake holds what is published. Where an event was not sent because of it, the table is stale by
name.
"""

import pytest

from tests.e2e.mirror import Mirror
from tests.e2e.scenario import World, names, play, scenarios, without
from tests.support.extent import cases
from tests.support.source_setup import since

_LIST = """
    CREATE TABLE t (id int PRIMARY KEY, a text, hidden text, b int)
    INSERT INTO t SELECT i, 'a', 'h', i FROM generate_series(1, 6) i
"""
_PLAIN = """
    CREATE TABLE t (id int PRIMARY KEY, v text)
    INSERT INTO t VALUES (1, 'x'), (2, 'x')
"""

_TEXTS = {
    "filter_on_key": """
        -- publish: t WHERE (id > 10)
        CREATE TABLE t (id int PRIMARY KEY, n int)
        INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i
        -- then
        UPDATE t SET n = 1
        UPDATE t SET id = id + 100 WHERE id IN (3, 4)
        UPDATE t SET id = id - 40 WHERE id IN (19, 20)
        DELETE FROM t WHERE id IN (1, 11)
        INSERT INTO t VALUES (2000, 2), (-1, 2)
        BEGIN
        UPDATE t SET id = -5 WHERE id = 12
        UPDATE t SET n = 5 WHERE id = -5
        UPDATE t SET id = 12 WHERE id = -5
        COMMIT
    """,
    "filter_on_values": """
        -- publish: t WHERE (region = 'in')
        CREATE TABLE t (id int PRIMARY KEY, region text, body text)
        ALTER TABLE t REPLICA IDENTITY FULL
        ALTER TABLE t ALTER body SET STORAGE EXTERNAL
        INSERT INTO t SELECT i, CASE WHEN i % 2 = 0 THEN 'in' ELSE 'out' END, repeat('body' || i, 900) \
          FROM generate_series(1, 12) i
        INSERT INTO t VALUES (13, NULL, NULL)
        -- then
        UPDATE t SET region = 'in' WHERE id IN (1, 13)
        UPDATE t SET region = 'out' WHERE id = 2
        UPDATE t SET region = NULL WHERE id = 4
        UPDATE t SET id = 60 WHERE id = 6
        BEGIN
        UPDATE t SET region = 'out' WHERE id = 8
        UPDATE t SET body = 'changed out of sight' WHERE id = 8
        UPDATE t SET region = 'in' WHERE id = 8
        COMMIT
        DELETE FROM t WHERE id IN (3, 10)
        UPDATE t SET region = 'in', id = 70 WHERE id = 7
    """,
    "filter_on_a_large_value": """
        -- publish: t WHERE (body > 'c')
        CREATE TABLE t (id int PRIMARY KEY, n int, body text)
        ALTER TABLE t REPLICA IDENTITY FULL
        ALTER TABLE t ALTER body SET STORAGE EXTERNAL
        INSERT INTO t SELECT i, 0, repeat(chr(96 + i), 3000) FROM generate_series(1, 6) i
        -- then
        UPDATE t SET n = 1
        UPDATE t SET body = 'b' || body WHERE id = 1
        UPDATE t SET body = NULL WHERE id = 5
        UPDATE t SET n = 2, body = repeat('c', 4000) WHERE id = 2
    """,
    "filter_and_truncate": """
        -- publish: t WHERE (id > 10)
        CREATE TABLE t (id int PRIMARY KEY)
        INSERT INTO t SELECT generate_series(1, 20)
        -- then
        TRUNCATE t
        INSERT INTO t VALUES (1), (15)
    """,
    "listed": """
        -- publish: t (b, id, a)
        -- list
        -- then
        UPDATE t SET hidden = 'x'
        UPDATE t SET a = 'u', hidden = 'y' WHERE id = 1
        UPDATE t SET id = 20 WHERE id = 2
        DELETE FROM t WHERE id = 3
        INSERT INTO t VALUES (9, 'n', 'n', 9)
    """,
    "unlisted_columns_come_and_go": """
        -- publish: t (id, a)
        -- list
        -- then
        ALTER TABLE t DROP COLUMN hidden
        UPDATE t SET a = 'u' WHERE id = 1
        ALTER TABLE t ADD COLUMN late int
        UPDATE t SET late = id
    """,
    "listed_column_dropped": """
        -- publish: t (id, a) | stopped: t: detached
        -- list
        -- then
        ALTER TABLE t DROP COLUMN a CASCADE
        UPDATE t SET hidden = 'u'
    """,
    "list_changed": """
        -- publish: t (id, a) | stopped: t: stale: column list changed
        -- list
        -- then
        UPDATE t SET b = -b
        BEGIN
        ALTER PUBLICATION {publication} DROP TABLE t
        ALTER PUBLICATION {publication} ADD TABLE t (id, b)
        COMMIT
        UPDATE t SET b = 100
    """,
    "identity_changed_under_a_list": """
        -- publish: t (id, code)
        CREATE TABLE t (id int PRIMARY KEY, code int NOT NULL UNIQUE, hidden text)
        INSERT INTO t VALUES (1, 10, 'h'), (2, 20, 'h')
        -- then
        UPDATE t SET hidden = 'x'
        ALTER TABLE t REPLICA IDENTITY USING INDEX t_code_key
        UPDATE t SET code = 11 WHERE id = 1
        DELETE FROM t WHERE code = 20
    """,
    "generated": """
        -- publish: t (id, double) | since: 18
        CREATE TABLE t (id int PRIMARY KEY, n int, double int GENERATED ALWAYS AS (n * 2) STORED)
        INSERT INTO t SELECT i, i FROM generate_series(1, 5) i
        -- then
        UPDATE t SET n = 50 WHERE id = 1
        INSERT INTO t VALUES (6, NULL), (7, 7)
        DELETE FROM t WHERE id = 2
        UPDATE t SET id = 30 WHERE id = 3
    """,
    "left_and_came_back": """
        -- publish: t | stopped: t: stale: left the publication and came back
        -- plain
        -- then
        UPDATE t SET v = 'sent' WHERE id = 1
        ALTER PUBLICATION {publication} DROP TABLE t
        UPDATE t SET v = 'unsent'
        ALTER PUBLICATION {publication} ADD TABLE t
        INSERT INTO t VALUES (3, 'sent')
    """,
    "came_later": """
        -- equal: t
        -- plain
        -- then
        INSERT INTO t VALUES (3, 'before')
        ALTER PUBLICATION {publication} ADD TABLE t
        BEGIN
        UPDATE t SET v = 'with' WHERE id = 1
        DELETE FROM t WHERE id = 2
        COMMIT
    """,
    "truncated_beside_unpublished": """
        -- publish: t | equal: t | absent: unpublished
        -- plain
        CREATE TABLE unpublished (id int PRIMARY KEY, t int REFERENCES t)
        -- then
        INSERT INTO unpublished VALUES (1, 1)
        TRUNCATE t CASCADE
        INSERT INTO t VALUES (9, 'new')
        INSERT INTO unpublished VALUES (2, 9)
    """,
}
PUBLISHED = scenarios(_TEXTS, list=_LIST, plain=_PLAIN)
LEFT_OUT = (
    *("filter_on_a_large_value", "filter_and_truncate", "unlisted_columns_come_and_go"),
    *("identity_changed_under_a_list", "generated", "came_later"),
)

FILTERED = {
    ("filter_on_key", "t"): "SELECT * FROM filter_on_key.t WHERE id > 10",
    ("filter_on_values", "t"): "SELECT * FROM filter_on_values.t WHERE region = 'in'",
    ("filter_on_a_large_value", "t"): "SELECT * FROM filter_on_a_large_value.t WHERE body > 'c'",
    ("filter_and_truncate", "t"): "SELECT * FROM filter_and_truncate.t WHERE id > 10",
    ("listed", "t"): "SELECT id, a, b FROM listed.t",
    ("unlisted_columns_come_and_go", "t"): "SELECT id, a FROM unlisted_columns_come_and_go.t",
    ("generated", "t"): "SELECT id, double FROM generated.t",
}
"""What the publication sends of a table, as a query over the source."""


@pytest.fixture(scope="module")
def world(mirror: Mirror) -> World:
    since(mirror.database, 15, "row filters and column lists")
    return play(mirror, without(LEFT_OUT, PUBLISHED), publication="FOR {entries}")


@names(PUBLISHED, left_out=LEFT_OUT)
def test_what_is_published_is_carried_or_the_table_is_stopped_by_name(world: World, name: str) -> None:
    world.check(name)


@pytest.mark.parametrize(("name", "table"), cases(FILTERED, quick=[one for one in FILTERED if one[0] not in LEFT_OUT]))
def test_the_lake_holds_exactly_what_filter_and_list_let_through(world: World, name: str, table: str) -> None:
    world.played(name)
    expected = world.filtered(FILTERED[name, table])
    assert expected
    assert world.lake_rows(name, table) == expected


def test_every_table_that_is_left_out_is_named(world: World) -> None:
    expected = {".".join(one.qualified(table)) for one in world.scenarios for table in one.stopped}
    # A table whose snapshot is later than the boundary is named too, and comes with the next one.
    assert {name for name, state in world.mirror.complete().left_out.items() if state != "snapshot"} == expected

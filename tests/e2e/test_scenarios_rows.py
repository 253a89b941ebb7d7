"""Scenarios with plain options, under a publication of all tables: rows, keys, identities, types,
TRUNCATE, and leaves that are published as themselves.

docs/protocol.md says which of the server's own scenarios each of them answers to.
"""

import pytest

from tests.e2e.mirror import Mirror
from tests.e2e.scenario import World, names, play, scenarios, without
from tests.support.source_setup import server_major

_TEXTS = {
    "included_columns": """
        -- equal: t
        CREATE TABLE t (id int, label text, n int, CONSTRAINT t_id PRIMARY KEY (id) INCLUDE (label, n))
        INSERT INTO t SELECT i, 'label ' || i, i FROM generate_series(1, 8) i
        -- then
        UPDATE t SET label = upper(label) WHERE id < 3
        UPDATE t SET id = id + 10, n = -n WHERE id IN (4, 5)
        DELETE FROM t WHERE id IN (1, 14)
    """,
    "without_columns": """
        -- equal: bare, whole, computed, emptied, gained
        CREATE TABLE bare ()
        INSERT INTO bare DEFAULT VALUES
        CREATE TABLE whole ()
        ALTER TABLE whole REPLICA IDENTITY FULL
        INSERT INTO whole DEFAULT VALUES
        INSERT INTO whole DEFAULT VALUES
        INSERT INTO whole DEFAULT VALUES
        CREATE TABLE computed (v int GENERATED ALWAYS AS (7) STORED)
        INSERT INTO computed DEFAULT VALUES
        CREATE TABLE emptied ()
        ALTER TABLE emptied REPLICA IDENTITY FULL
        INSERT INTO emptied DEFAULT VALUES
        CREATE TABLE gained ()
        ALTER TABLE gained REPLICA IDENTITY FULL
        INSERT INTO gained DEFAULT VALUES
        -- then
        INSERT INTO bare DEFAULT VALUES
        INSERT INTO bare DEFAULT VALUES
        INSERT INTO bare DEFAULT VALUES
        DELETE FROM whole WHERE ctid = '(0,1)'
        INSERT INTO whole DEFAULT VALUES
        DELETE FROM whole WHERE ctid = '(0,2)'
        INSERT INTO computed DEFAULT VALUES
        INSERT INTO computed DEFAULT VALUES
        TRUNCATE emptied
        INSERT INTO gained DEFAULT VALUES
        ALTER TABLE gained ADD COLUMN v int DEFAULT 3
        INSERT INTO gained VALUES (4)
    """,
    "foreign_keys": """
        -- equal: owner, pet
        CREATE TABLE owner (id int PRIMARY KEY)
        CREATE TABLE pet (id int PRIMARY KEY, owner int REFERENCES owner ON DELETE CASCADE ON UPDATE CASCADE \
          DEFERRABLE)
        ALTER TABLE pet ADD COLUMN friend int REFERENCES pet ON DELETE SET NULL
        INSERT INTO owner SELECT generate_series(1, 5)
        INSERT INTO pet SELECT i, i % 5 + 1, i FROM generate_series(1, 15) i
        UPDATE pet SET friend = 16 - id
        -- then
        BEGIN
        SET CONSTRAINTS ALL DEFERRED
        INSERT INTO pet VALUES (20, 9, 3)
        INSERT INTO owner VALUES (9)
        COMMIT
        UPDATE owner SET id = 30 WHERE id = 3
        BEGIN
        DELETE FROM owner WHERE id = 1
        INSERT INTO owner VALUES (1)
        INSERT INTO pet VALUES (5, 1, 20)
        COMMIT
        DELETE FROM owner WHERE id IN (2, 9)
    """,
    "rewritten_among_rows": """
        -- equal: grown | stopped: recast: stale: column v
        -- stopped: packed: stale: rewritten and column n was added
        CREATE TABLE grown (id int PRIMARY KEY, v text)
        CREATE TABLE recast (id int PRIMARY KEY, v int)
        CREATE TABLE packed (id int PRIMARY KEY, v text)
        INSERT INTO grown VALUES (1, '1'), (2, '2')
        INSERT INTO recast VALUES (1, '1'), (2, '2')
        -- then
        BEGIN
        INSERT INTO grown VALUES (3, 'three')
        ALTER TABLE grown ADD COLUMN n int NOT NULL DEFAULT 4
        UPDATE grown SET v = 'u' WHERE id = 1
        INSERT INTO grown VALUES (5, 'five', 5)
        DELETE FROM grown WHERE id = 2
        COMMIT
        INSERT INTO packed VALUES (3, 'three')
        ALTER TABLE packed ADD COLUMN n int DEFAULT 4
        VACUUM FULL packed
        BEGIN
        INSERT INTO recast VALUES (3, 3)
        ALTER TABLE recast ALTER COLUMN v TYPE text USING 'no. ' || v
        INSERT INTO recast VALUES (4, 'x')
        COMMIT
    """,
    "repacked_among_rows": """
        -- equal: t, narrow | stopped: packed: stale: rewritten and column n was added
        -- stopped: doubted: stale: may have been unlogged for a moment | since: 19
        CREATE TABLE t (id int PRIMARY KEY, v text)
        INSERT INTO t SELECT i, 'old' FROM generate_series(1, 300) i
        CREATE TABLE packed (id int PRIMARY KEY, v text)
        INSERT INTO packed VALUES (1, 'old')
        CREATE TABLE doubted (id int PRIMARY KEY, v text)
        INSERT INTO doubted VALUES (1, 'old')
        CREATE TABLE narrow (id int PRIMARY KEY, n int)
        INSERT INTO narrow SELECT i, 0 FROM generate_series(1, 300) i
        -- then
        DELETE FROM t WHERE id % 3 = 0
        REPACK t
        UPDATE t SET v = 'u' WHERE id % 5 = 0
        DELETE FROM t WHERE id % 7 = 0
        UPDATE narrow SET n = 1 WHERE id % 2 = 0
        REPACK (CONCURRENTLY) narrow
        DELETE FROM narrow WHERE id % 3 = 0
        UPDATE doubted SET v = 'new'
        REPACK (CONCURRENTLY) doubted
        REPACK t USING INDEX t_pkey
        INSERT INTO t VALUES (3, 'again')
        INSERT INTO packed VALUES (3, 'three')
        ALTER TABLE packed ADD COLUMN n int DEFAULT 4
        REPACK (CONCURRENTLY) packed
    """,
    "truncates": """
        -- equal: top, below
        CREATE TABLE top (id serial PRIMARY KEY, v text)
        CREATE TABLE below (id int PRIMARY KEY, top int REFERENCES top)
        INSERT INTO top (v) SELECT 'old' FROM generate_series(1, 5)
        INSERT INTO below SELECT i, i FROM generate_series(1, 5) i
        -- then
        TRUNCATE top RESTART IDENTITY CASCADE
        INSERT INTO top (v) VALUES ('new'), ('new')
        BEGIN
        TRUNCATE top CASCADE
        ROLLBACK
        INSERT INTO below VALUES (2, 2)
        BEGIN
        INSERT INTO below VALUES (7, 1)
        TRUNCATE below, top
        INSERT INTO top VALUES (3, 'newer')
        COMMIT
        INSERT INTO below VALUES (8, 3)
    """,
    "keys_equal_but_for_case": """
        -- equal: t
        CREATE TABLE t (k citext PRIMARY KEY, v int)
        INSERT INTO t VALUES ('abc', 1), ('Def', 2), ('ghi', 3)
        -- then
        UPDATE t SET k = 'ABC' WHERE k = 'aBc'
        UPDATE t SET v = 20 WHERE k = 'DEF'
        DELETE FROM t WHERE k = 'GHI'
        INSERT INTO t VALUES ('dEF', 9) ON CONFLICT (k) DO UPDATE SET k = excluded.k
    """,
    "temporal_keys": """
        -- equal: t | since: 18
        CREATE TABLE t (id int4range, during daterange, v text, PRIMARY KEY (id, during WITHOUT OVERLAPS))
        INSERT INTO t SELECT int4range(i, i + 1), daterange('2020-01-01', '2030-01-01'), \
          'v' FROM generate_series(1, 5) i
        -- then
        UPDATE t SET v = 'u' WHERE id = '[1,2)'
        UPDATE t SET during = daterange(lower(during), '2025-01-01') WHERE id IN ('[1,2)', '[2,3)')
        INSERT INTO t VALUES ('[1,2)', '[2025-01-01,)', 'later')
        DELETE FROM t WHERE id = '[3,4)'
        UPDATE t SET id = '[9,10)' WHERE id = '[4,5)'
    """,
    "identity_moves": """
        -- equal: moved, lost, widened
        CREATE TABLE moved (a int NOT NULL UNIQUE, b int NOT NULL UNIQUE)
        ALTER TABLE moved REPLICA IDENTITY USING INDEX moved_a_key
        CREATE TABLE lost (a int NOT NULL)
        CREATE UNIQUE INDEX lost_a ON lost (a)
        ALTER TABLE lost REPLICA IDENTITY USING INDEX lost_a
        CREATE TABLE widened (id int PRIMARY KEY, v text)
        INSERT INTO moved VALUES (1, 10), (2, 20)
        INSERT INTO lost VALUES (1), (2)
        INSERT INTO widened VALUES (1, 'x'), (2, 'x')
        -- then
        UPDATE moved SET b = 11 WHERE a = 1
        ALTER TABLE moved REPLICA IDENTITY USING INDEX moved_b_key
        UPDATE moved SET a = 3 WHERE b = 20
        DELETE FROM lost WHERE a = 1
        DROP INDEX lost_a
        INSERT INTO lost VALUES (2)
        UPDATE widened SET id = 3 WHERE id = 1
        ALTER TABLE widened REPLICA IDENTITY FULL
        UPDATE widened SET id = 1 WHERE id = 3
        DELETE FROM widened WHERE id = 2
        ALTER TABLE widened REPLICA IDENTITY DEFAULT
        INSERT INTO widened VALUES (2, 'y')
    """,
    "not_in_the_log": """
        -- equal: hardened | absent: quick, passing
        CREATE UNLOGGED TABLE quick (id int PRIMARY KEY)
        CREATE UNLOGGED TABLE hardened (id int PRIMARY KEY)
        INSERT INTO quick VALUES (1)
        INSERT INTO hardened VALUES (1)
        -- then
        CREATE TEMPORARY TABLE passing (id int)
        INSERT INTO passing VALUES (1)
        UPDATE passing SET id = 2
        UPDATE quick SET id = 2
        BEGIN
        INSERT INTO quick VALUES (3)
        COMMIT
        ALTER TABLE hardened SET LOGGED
        INSERT INTO hardened VALUES (2)
    """,
    "full_with_dropped_and_late_columns": """
        -- equal: t
        CREATE TABLE t (gone int, a int, also_gone text)
        ALTER TABLE t REPLICA IDENTITY FULL
        INSERT INTO t SELECT 0, a, 'x' FROM unnest('{1,1,2,3}'::int[]) a
        ALTER TABLE t DROP COLUMN gone, DROP COLUMN also_gone
        -- then
        ALTER TABLE t ADD COLUMN b text DEFAULT 'late', ADD COLUMN c numeric(6,2) DEFAULT 1.50
        DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t WHERE a = 1)
        UPDATE t SET a = 20 WHERE a = 2
        UPDATE t SET b = NULL WHERE a = 3
        INSERT INTO t VALUES (1)
        DELETE FROM t WHERE a = 20
    """,
    "many_equal_rows": """
        -- equal: t
        CREATE TABLE t (a int, b text, c float8)
        CREATE INDEX ON t (lower(b), (a % 2)) WHERE a > 0
        ALTER TABLE t REPLICA IDENTITY FULL
        INSERT INTO t SELECT nullif(i % 3, 0), nullif(repeat('b', i % 2), ''), 0 FROM generate_series(1, 240) i
        -- then
        DELETE FROM t WHERE ctid IN (SELECT ctid FROM t WHERE a = 1 LIMIT 17)
        UPDATE t SET c = NULL WHERE ctid IN (SELECT ctid FROM t WHERE a IS NULL LIMIT 9)
        INSERT INTO t SELECT 1, NULL, 0 FROM generate_series(1, 5)
        DELETE FROM t WHERE a = 2 AND b = 'b'
        UPDATE t SET a = NULL, b = NULL WHERE a = 1
        DELETE FROM t WHERE ctid IN (SELECT ctid FROM t WHERE num_nulls(a, b, c) = 3)
    """,
    "types_of_extensions_and_users": """
        -- equal: t, bag
        CREATE TYPE grade AS ENUM ('low', 'high', 'it''s')
        CREATE TYPE spot AS (at point, grades grade[])
        CREATE TYPE trip AS (name text, spots spot[], during tstzrange)
        CREATE DOMAIN even AS int CHECK (VALUE % 2 = 0)
        CREATE DOMAIN evens AS even[]
        CREATE TABLE t (id int PRIMARY KEY, h hstore, c citext, g grade[], s spot, trips trip[], e even, \
          es evens, r int4multirange)
        CREATE TABLE bag (h hstore, c citext, g grade[], s spot)
        ALTER TABLE bag REPLICA IDENTITY FULL
        INSERT INTO t SELECT i, hstore('k' || i, NULLIF(i, 2)::text), 'MiXed' || i, ARRAY['low', NULL, \
          'it''s']::grade[], ROW(point(i, 0.1), \
          '{high}')::spot, ARRAY[ROW('a "b"', ARRAY[ROW(NULL, '{}')::spot], '[2024-01-01,)')::trip], i * 2, \
            ARRAY[i * 2, NULL]::evens, \
          int4multirange(int4range(i, i + 2)) FROM generate_series(1, 6) i
        INSERT INTO bag SELECT h, c, g, s FROM t, generate_series(1, 2)
        -- then
        UPDATE t SET h = h || 'b=>"q\\"t"'::hstore, c = upper(c::text) WHERE id = 1
        UPDATE t SET g = array_append(g, 'high'), s.grades = NULL WHERE id = 2
        UPDATE t SET trips[2] = trips[1], es[3] = 8, r = r + '{[90,91)}' WHERE id = 3
        DELETE FROM t WHERE id = 4
        UPDATE t SET id = 50, e = NULL WHERE id = 5
        DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE c = 'mixed1')
        UPDATE bag SET h = NULL WHERE c = 'mixed2'
        DELETE FROM bag WHERE s IS NULL OR c = 'mixed3'
    """,
    "published_leaves": """
        -- equal: r1, r2, own | absent: r
        CREATE TABLE r (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY RANGE (k)
        CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (10)
        CREATE TABLE r2 (v text, gone int, k int NOT NULL, id int NOT NULL, PRIMARY KEY (id, k))
        ALTER TABLE r2 DROP COLUMN gone
        CREATE TABLE own (id int, k int, v text, PRIMARY KEY (id, k))
        ALTER TABLE r ATTACH PARTITION r2 FOR VALUES FROM (10) TO (20)
        INSERT INTO r SELECT i, i, 'v' FROM generate_series(1, 18) i
        INSERT INTO own VALUES (1, 100, 'own')
        -- then
        UPDATE r SET k = k + 10 WHERE k < 5
        UPDATE r SET v = 'u' WHERE k > 8
        ALTER TABLE r ATTACH PARTITION own FOR VALUES FROM (100) TO (200)
        UPDATE r SET k = 150 WHERE k = 15
        ALTER TABLE r DETACH PARTITION r1
        INSERT INTO r1 VALUES (70, 700, 'alone')
        UPDATE r SET id = id + 1000
        BEGIN
        TRUNCATE r2
        INSERT INTO r VALUES (1, 11, 'after')
        COMMIT
    """,
    "commands_of_many_kinds": """
        -- equal: t, audit | absent: counted, seen, alone
        CREATE TABLE t (id int PRIMARY KEY, v text, n int DEFAULT 0)
        CREATE TABLE audit (id bigserial PRIMARY KEY, what text)
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN INSERT INTO audit (what) \
          VALUES (TG_OP || NEW.id); NEW.n := NEW.n + 1; \
          RETURN NEW; END$$
        CREATE TRIGGER noting BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION note()
        INSERT INTO t VALUES (1, 'a'), (2, 'b')
        -- then
        CREATE MATERIALIZED VIEW counted AS SELECT count(*) FROM t
        CREATE VIEW seen AS SELECT * FROM t
        CREATE SEQUENCE alone
        SELECT nextval('alone'), setval('audit_id_seq', 100)
        INSERT INTO t VALUES (1, 'c'), (3, 'c') ON CONFLICT (id) DO UPDATE SET v = excluded.v
        INSERT INTO t VALUES (1, 'never') ON CONFLICT DO NOTHING
        WITH gone AS (DELETE FROM t WHERE id = 2 RETURNING v) INSERT INTO t SELECT 20, v FROM gone
        DO $$BEGIN IF current_setting('server_version_num')::int >= 150000 THEN EXECUTE \
          'MERGE INTO t USING (VALUES (1), (7)) s (id) ON t.id = \
          s.id WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT VALUES (s.id, ''merged'')'; END IF; END$$
        DO $$BEGIN FOR i IN 100..105 LOOP BEGIN INSERT INTO t VALUES (i, 'loop'); \
          IF i % 2 = 0 THEN RAISE EXCEPTION 'undo'; END IF; EXCEPTION \
          WHEN OTHERS THEN NULL; END; END LOOP; END$$
        INSERT INTO seen VALUES (9, 'through a view')
        REFRESH MATERIALIZED VIEW counted
    """,
    "sessions_that_cross": """
        -- equal: t
        CREATE TABLE t (id int PRIMARY KEY, v text)
        INSERT INTO t SELECT i, 'old' FROM generate_series(1, 6) i
        -- then
        one: BEGIN
        one: UPDATE t SET v = 'one' WHERE id = 1
        two: BEGIN
        two: UPDATE t SET v = 'two' WHERE id = 2
        two: DELETE FROM t WHERE id = 3
        one: INSERT INTO t VALUES (7, 'one')
        two: COMMIT
        three: UPDATE t SET v = v || ' three' WHERE id IN (2, 4)
        one: UPDATE t SET id = 30 WHERE id = 4
        one: INSERT INTO t VALUES (3, 'again')
        one: COMMIT
    """,
    "large_values_under_moving_keys": """
        -- equal: t
        CREATE TABLE t (id text PRIMARY KEY, body text, n int)
        ALTER TABLE t ALTER body SET STORAGE EXTERNAL, ALTER id SET STORAGE EXTERNAL
        INSERT INTO t SELECT 'key' || s || repeat('k', 2000), (SELECT string_agg(md5(i::text || s), '') \
          FROM generate_series(1, 200) i), 0 FROM \
          generate_series(1, 4) s
        -- then
        UPDATE t SET n = 1
        UPDATE t SET id = 'moved' || id WHERE id LIKE 'key2%'
        UPDATE t SET n = 2 WHERE id LIKE 'moved%'
        DELETE FROM t WHERE id LIKE 'key3%'
    """,
    "renamed_schema": """
        -- equal: new_home.t
        CREATE SCHEMA old_home
        CREATE TABLE old_home.t (id int PRIMARY KEY)
        INSERT INTO old_home.t VALUES (1)
        -- then
        ALTER SCHEMA old_home RENAME TO new_home
        INSERT INTO new_home.t VALUES (2)
    """,
}
ROWS = scenarios(_TEXTS)
LEFT_OUT = (
    *("included_columns", "without_columns", "foreign_keys", "temporal_keys", "identity_moves"),
    *("published_leaves", "commands_of_many_kinds", "truncates"),
)


@pytest.fixture(scope="module")
def world(mirror: Mirror) -> World:
    mirror.execute("CREATE EXTENSION hstore", "CREATE EXTENSION citext")
    return play(mirror, without(LEFT_OUT, ROWS), publication="FOR ALL TABLES")


@names(ROWS, left_out=LEFT_OUT)
def test_the_lake_holds_what_the_source_holds_or_the_table_is_stopped_by_name(world: World, name: str) -> None:
    world.check(name)


def test_every_other_table_is_live_and_none_is_left_out_unnamed(world: World) -> None:
    major = server_major(world.database)
    here = [one for one in world.scenarios if one.since <= major]
    expected = {".".join(one.qualified(table)) for one in here for table in one.stopped}
    assert set(world.mirror.complete().left_out) == expected

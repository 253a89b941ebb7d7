"""What happens between two looks at the catalog (while ingest is down, or within one interval) and leaves the lake wrong with a green status."""

from pathlib import Path

import pytest

from tests.support.ingesting import Pipeline
from tests.support.oracle import Spool

PARTED = (
    "CREATE TABLE r (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
    "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (100)",
    "INSERT INTO r SELECT i, i FROM generate_series(1, 10) i",
    "CREATE PUBLICATION {p} FOR TABLE r WITH (publish_via_partition_root = true)",
)
MOOD = (
    "CREATE TYPE mood AS ENUM ('sad', 'ok')",
    "CREATE TABLE t (id int PRIMARY KEY, m mood)",
    "INSERT INTO t VALUES (1, 'sad'), (2, 'ok')",
    "CREATE PUBLICATION {p} FOR TABLE t",
)
PLAIN = ("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')", "CREATE PUBLICATION {p} FOR TABLE t")
ATTACHED = (
    "BEGIN; CREATE TABLE r2 (id int PRIMARY KEY, v int); INSERT INTO r2 SELECT i, i FROM generate_series(100, 109) i;"
    " ALTER TABLE r ATTACH PARTITION r2 FOR VALUES FROM (100) TO (200); COMMIT",
    "INSERT INTO r VALUES (50, 50)",
)
CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "attach_in_one_transaction": (PARTED, ATTACHED),
    "root_default_then_drop_default": (
        PARTED,
        ("BEGIN; ALTER TABLE r ADD COLUMN c int NOT NULL DEFAULT 5; ALTER TABLE r ALTER COLUMN c DROP DEFAULT; COMMIT", "INSERT INTO r VALUES (50, 50, 50)"),
    ),
    "partition_born_and_dropped": (
        PARTED,
        ("CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (100) TO (200)", "INSERT INTO r SELECT i, i FROM generate_series(100, 109) i", "DROP TABLE r2"),
    ),
    "partition_born_and_truncated": (
        PARTED,
        ("CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (100) TO (200)", "INSERT INTO r SELECT i, i FROM generate_series(100, 109) i", "TRUNCATE r2"),
    ),
    "partition_born_and_detached": (
        PARTED,
        (
            "CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (100) TO (200)",
            "INSERT INTO r SELECT i, i FROM generate_series(100, 109) i",
            "ALTER TABLE r DETACH PARTITION r2",
        ),
    ),
    "unlogged_for_a_moment": (
        (*PLAIN[:2], "CREATE PUBLICATION {p} FOR ALL TABLES"),
        ("ALTER TABLE t SET UNLOGGED", "INSERT INTO t VALUES (3, 'c'), (4, 'd')", "UPDATE t SET v = 'x' WHERE id = 1", "ALTER TABLE t SET LOGGED"),
    ),
    "label_renamed_and_back": (
        MOOD,
        ("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", "INSERT INTO t VALUES (3, 'blue')", "ALTER TYPE mood RENAME VALUE 'blue' TO 'sad'"),
    ),
    "label_added_and_renamed": (
        MOOD,
        ("ALTER TYPE mood ADD VALUE 'new'", "INSERT INTO t VALUES (3, 'new')", "ALTER TYPE mood RENAME VALUE 'new' TO 'newer'"),
    ),
    "column_born_dropped_and_born_again": (
        PLAIN,
        (
            "ALTER TABLE t ADD COLUMN c text",
            "INSERT INTO t VALUES (3, 'c', 'first life')",
            "ALTER TABLE t DROP COLUMN c",
            "ALTER TABLE t ADD COLUMN c text DEFAULT 'second'",
        ),
    ),
    "primary_key_dropped_under_full": (
        (*PLAIN[:2], "ALTER TABLE t REPLICA IDENTITY FULL", PLAIN[2]),
        ("ALTER TABLE t DROP CONSTRAINT t_pkey", "INSERT INTO t VALUES (1, 'second row of id 1')"),
    ),
    "primary_key_widened_under_full": (
        (*PLAIN[:2], "ALTER TABLE t REPLICA IDENTITY FULL", PLAIN[2]),
        ("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, v)", "INSERT INTO t VALUES (1, 'second row of id 1')"),
    ),
    "leaf_identity_toggled": (
        (*PARTED[:3], "ALTER TABLE r REPLICA IDENTITY FULL", "ALTER TABLE r1 REPLICA IDENTITY FULL", "ALTER TABLE r DROP CONSTRAINT r_pkey", PARTED[3]),
        (
            "ALTER TABLE r1 ADD PRIMARY KEY (id)",
            "ALTER TABLE r1 REPLICA IDENTITY DEFAULT",
            "DELETE FROM r WHERE id = 3",
            "ALTER TABLE r1 REPLICA IDENTITY FULL",
        ),
    ),
    "root_column_of_a_domain_with_a_default": (
        ("CREATE DOMAIN dom AS int DEFAULT 5", *PARTED),
        ("ALTER TABLE r ADD COLUMN c dom", "INSERT INTO r VALUES (50, 50, 50)"),
    ),
    "attach_in_one_transaction_all_tables": (
        (*PARTED[:3], "CREATE PUBLICATION {p} FOR ALL TABLES WITH (publish_via_partition_root = true)"),
        ATTACHED,
    ),
    "attach_subtree_in_one_transaction": (
        PARTED,
        (
            "BEGIN; CREATE TABLE r2 (id int PRIMARY KEY, v int) PARTITION BY RANGE (id); CREATE TABLE r21 PARTITION OF r2 FOR VALUES FROM (100) TO (150);"
            " INSERT INTO r2 SELECT i, i FROM generate_series(100, 109) i; ALTER TABLE r ATTACH PARTITION r2 FOR VALUES FROM (100) TO (200); COMMIT",
        ),
    ),
    "unlogged_for_a_moment_in_schema": (
        (*PLAIN[:2], "CREATE PUBLICATION {p} FOR TABLES IN SCHEMA public"),
        ("ALTER TABLE t SET UNLOGGED", "DELETE FROM t", "ALTER TABLE t SET LOGGED"),
    ),
    "primary_key_dropped_with_identity_nothing": (
        (*PLAIN[:2], "ALTER TABLE t REPLICA IDENTITY NOTHING", PLAIN[2]),
        ("ALTER TABLE t DROP CONSTRAINT t_pkey", "INSERT INTO t VALUES (1, 'second row of id 1')"),
    ),
    "composite_born_and_altered": (
        PLAIN,
        (
            "CREATE TYPE pair AS (a int, b text)",
            "ALTER TABLE t ADD COLUMN c pair",
            "INSERT INTO t VALUES (3, 'c', '(1,x)')",
            "ALTER TYPE pair ADD ATTRIBUTE z int",
        ),
    ),
    "column_with_new_enum_and_renamed_label": (
        PLAIN,
        (
            "CREATE TYPE mood AS ENUM ('sad', 'ok')",
            "ALTER TABLE t ADD COLUMN m mood",
            "INSERT INTO t VALUES (3, 'c', 'sad')",
            "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
        ),
    ),
    "root_column_dropped_and_added_again": (
        PARTED,
        (
            "ALTER TABLE r ADD COLUMN c text",
            "INSERT INTO r VALUES (50, 50, 'first life')",
            "ALTER TABLE r DROP COLUMN c",
            "ALTER TABLE r ADD COLUMN c text",
            "INSERT INTO r VALUES (51, 51, 'second life')",
        ),
    ),
    "regclass_renamed": (
        ("CREATE TABLE other (id int)", "CREATE TABLE t (id int PRIMARY KEY, c regclass)", "INSERT INTO t VALUES (1, 'other')", PLAIN[2]),
        ("ALTER TABLE other RENAME TO another", "INSERT INTO t VALUES (2, 'another')"),
    ),
}


def set_up(pipeline: Pipeline, statements: tuple[str, ...]) -> None:
    pipeline.database.execute(*(statement.format(p=pipeline.database.publication) for statement in statements))


def verdicts(pipeline: Pipeline, tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool" / "test")
    spool.read()
    with pipeline.database.connect() as connection:
        for verdict in spool.verdicts(connection, pipeline.database.publication):
            print("VERDICT", verdict)
        spool.assert_equal(connection, pipeline.database.publication)


@pytest.mark.parametrize("name", CASES)
def test_while_ingest_was_down(pipeline: Pipeline, tmp_path: Path, name: str) -> None:
    before, after = CASES[name]
    set_up(pipeline, before)
    pipeline.run(tables=())
    set_up(pipeline, after)
    pipeline.run(tables=(), watch_interval_s=0.2)
    pipeline.run(tables=(), watch_interval_s=0.2)
    verdicts(pipeline, tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_within_one_interval(pipeline: Pipeline, tmp_path: Path, name: str) -> None:
    before, after = CASES[name]
    set_up(pipeline, before)
    with pipeline.running(tables=(), watch_interval_s=4.0) as running:
        running.wait_until(lambda: all(table.state == "live" for table in pipeline.state().tables.values()) and pipeline.state().tables)
        seen = running.ingest.view.catalog_beat
        running.wait_until(lambda: running.ingest.view.catalog_beat > seen)
        for statement in after:
            set_up(pipeline, (statement,))
        for _ in range(2):
            seen = running.ingest.view.catalog_beat
            running.wait_until(lambda: running.ingest.view.catalog_beat > seen)
    pipeline.run(tables=())
    verdicts(pipeline, tmp_path)

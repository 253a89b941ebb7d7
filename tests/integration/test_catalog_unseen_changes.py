"""What is done and undone between two looks at the catalog, while ingest is down or within one
interval, is followed or named.
"""

import pytest

from tests.support.catalog_stories import changed_while_down
from tests.support.extent import cases, slow
from tests.support.ingesting import IngestPipeline
from tests.support.source_setup import since

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
PLAIN = (
    "CREATE TABLE t (id int PRIMARY KEY, v text)",
    "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
    "CREATE PUBLICATION {p} FOR TABLE t",
)
LEAF = "CREATE TABLE r2 PARTITION OF r FOR VALUES FROM (100) TO (200)"
APART = "CREATE TABLE r2 (id int PRIMARY KEY, v int)"
FILL = "INSERT INTO r SELECT i, i FROM generate_series(100, 109) i"
FILL_APART = FILL.replace("INTO r", "INTO r2")
ATTACH = "ALTER TABLE r ATTACH PARTITION r2 FOR VALUES FROM (100) TO (200)"
DETACH = "ALTER TABLE r DETACH PARTITION r2"
ATTACHED = (f"BEGIN; {APART}; {FILL_APART}; {ATTACH}; COMMIT", "INSERT INTO r VALUES (50, 50)")
MOMENT = (ATTACH, FILL_APART, DETACH)
MOMENT_AGAIN = (ATTACH, FILL_APART.replace("100, 109", "110, 119"), DETACH)
ROOT_Q = "CREATE TABLE q (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)"
FULL = (*PLAIN[:2], "ALTER TABLE t REPLICA IDENTITY FULL", PLAIN[2])
SECOND = "INSERT INTO t VALUES (1, 'second row of id 1')"
BLUE = "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"
CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "attach_in_one_transaction": (PARTED, ATTACHED),
    "root_default_then_drop_default": (
        PARTED,
        (
            "BEGIN; ALTER TABLE r ADD c int NOT NULL DEFAULT 5; ALTER TABLE r ALTER c DROP DEFAULT; COMMIT",
            "INSERT INTO r VALUES (50, 50, 50)",
        ),
    ),
    "partition_born_and_truncated": (PARTED, (LEAF, FILL, "TRUNCATE r2")),
    "unlogged_for_a_moment": (
        (*PLAIN[:2], "CREATE PUBLICATION {p} FOR ALL TABLES"),
        (
            "ALTER TABLE t SET UNLOGGED",
            "INSERT INTO t VALUES (3, 'c'), (4, 'd')",
            "UPDATE t SET v = 'x' WHERE id = 1",
            "ALTER TABLE t SET LOGGED",
        ),
    ),
    "label_renamed_and_back": (
        MOOD,
        (BLUE, "INSERT INTO t VALUES (3, 'blue')", "ALTER TYPE mood RENAME VALUE 'blue' TO 'sad'"),
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
    "primary_key_dropped_under_full": (FULL, ("ALTER TABLE t DROP CONSTRAINT t_pkey", SECOND)),
    "primary_key_widened_under_full": (FULL, ("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, v)", SECOND)),
    "leaf_identity_toggled": (
        (
            *PARTED[:3],
            "ALTER TABLE r REPLICA IDENTITY FULL",
            "ALTER TABLE r1 REPLICA IDENTITY FULL",
            "ALTER TABLE r DROP CONSTRAINT r_pkey",
            PARTED[3],
        ),
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
    "attach_subtree_in_one_transaction": (
        PARTED,
        (
            (
                f"BEGIN; {APART} PARTITION BY RANGE (id); "
                f"CREATE TABLE r21 PARTITION OF r2 FOR VALUES FROM (100) TO (150); {FILL_APART}; {ATTACH}; COMMIT"
            ),
        ),
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
    "attached_for_a_moment": ((*PARTED, APART), MOMENT),
    "attached_for_a_moment_below_the_root": (
        (*PARTED, APART, "CREATE TABLE r3 PARTITION OF r FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (id)"),
        tuple(statement.replace("TABLE r ", "TABLE r3 ") for statement in MOMENT),
    ),
    "attached_for_a_moment_and_a_column_added": ((*PARTED, APART), (*MOMENT, "ALTER TABLE r ADD COLUMN w int")),
    "attached_for_a_moment_to_an_empty_root": ((*PARTED, APART, "DROP TABLE r1"), MOMENT),
    "detached_before_and_attached_for_a_moment": ((*PARTED, APART, *MOMENT), MOMENT_AGAIN),
    "subtree_attached_for_a_moment": (
        (
            *PARTED,
            f"{APART} PARTITION BY RANGE (id)",
            "CREATE TABLE r21 PARTITION OF r2 FOR VALUES FROM (100) TO (200)",
        ),
        MOMENT,
    ),
    "partition_born_and_detached": (PARTED, (LEAF, FILL, DETACH)),
}
LIMITS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "label_added_and_renamed": (
        MOOD,
        (
            "ALTER TYPE mood ADD VALUE 'new'",
            "INSERT INTO t VALUES (3, 'new')",
            "ALTER TYPE mood RENAME VALUE 'new' TO 'newer'",
        ),
    ),
    "partition_born_and_dropped": (PARTED, (LEAF, FILL, "DROP TABLE r2")),
    "attached_for_a_moment_and_dropped": ((*PARTED, APART), (*MOMENT, "DROP TABLE r2")),
    "attached_for_a_moment_and_then_elsewhere": (
        (*PARTED, APART, ROOT_Q),
        (*MOMENT, "ALTER TABLE q ATTACH PARTITION r2 FOR VALUES FROM (100) TO (200)"),
    ),
    "born_attached_and_detached_in_one_transaction": (PARTED, (f"BEGIN; {APART}; {'; '.join(MOMENT)}; COMMIT",)),
    "attached_for_a_moment_and_each_got_a_column": (
        (*PARTED, APART),
        (*MOMENT, "ALTER TABLE r2 ADD w int", "ALTER TABLE r ADD x int"),
    ),
    "attached_for_a_moment_from_another_root": (
        (
            *PARTED[:-1],
            ROOT_Q,
            LEAF.replace("OF r ", "OF q "),
            "CREATE PUBLICATION {p} FOR TABLE r, q WITH (publish_via_partition_root)",
        ),
        ("ALTER TABLE q DETACH PARTITION r2", *MOMENT),
    ),
    "regclass_renamed": (
        (
            "CREATE TABLE other (id int)",
            "CREATE TABLE t (id int PRIMARY KEY, c regclass)",
            "INSERT INTO t VALUES (1, 'other')",
            PLAIN[2],
        ),
        ("ALTER TABLE other RENAME TO another", "INSERT INTO t VALUES (2, 'another')"),
    ),
}
MOVED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "name_of_a_column_moved_twice": (
        PLAIN,
        (
            "ALTER TABLE t DROP v",
            "ALTER TABLE t ADD w text",
            "ALTER TABLE t RENAME w TO v",
            "INSERT INTO t VALUES (3, 'of the new one')",
            "ALTER TABLE t RENAME v TO z",
        ),
    ),
}
"""Likewise limits, but none for an ingest that keeps up: it follows each of these changes."""


def columns_made_anew_behind_rows_of_a_later_number(pipeline: IngestPipeline) -> None:
    """A transaction that began before them made the columns of `t` anew. Ingest is down meanwhile."""
    with pipeline.database.connect() as earlier:
        earlier.execute("BEGIN")
        earlier.execute("INSERT INTO beat VALUES (1)")
        pipeline.execute("INSERT INTO t VALUES (3, 'of the old one')")
        earlier.execute("ALTER TABLE t DROP v")
        earlier.execute("ALTER TABLE t ADD v text")
        earlier.execute("COMMIT")


WITHIN_ONE_INTERVAL = (
    "attached_for_a_moment",
    "attach_in_one_transaction",
    "column_born_dropped_and_born_again",
    "label_renamed_and_back",
    "partition_born_and_truncated",
    "primary_key_dropped_under_full",
    "unlogged_for_a_moment",
)
"""One of each kind; those that come by way of the stream take another way than while ingest is
down.
"""


def while_ingest_was_down(pipeline: IngestPipeline, before: tuple[str, ...], after: tuple[str, ...]) -> None:
    if any("TABLES IN SCHEMA" in statement for statement in before):
        since(pipeline.database, 15, "publications of a schema")
    changed_while_down(pipeline, before, after, runs=2, tables=())


@pytest.mark.parametrize(
    "name",
    cases(
        CASES,
        quick=[
            "unlogged_for_a_moment",
            "leaf_identity_toggled",
            "attached_for_a_moment_and_a_column_added",
        ],
    ),
)
def test_what_was_done_and_undone_while_ingest_was_down_is_named(pipeline: IngestPipeline, name: str) -> None:
    while_ingest_was_down(pipeline, *CASES[name])
    assert pipeline.silent_differences() == []
    assert "stale" in pipeline.states()


@pytest.mark.parametrize(
    "name",
    cases(WITHIN_ONE_INTERVAL, quick=["attach_in_one_transaction", "attached_for_a_moment"]),
)
def test_what_was_done_and_undone_within_one_interval_is_named(pipeline: IngestPipeline, name: str) -> None:
    before, after = CASES[name]
    pipeline.execute(*before)
    with pipeline.running(tables=(), watch_interval_s=2.0) as running:
        running.wait_until_live()
        seen = running.status.catalog_beat
        running.wait_until(lambda: running.status.catalog_beat > seen)
        pipeline.execute(*after)
        running.wait_until(lambda: "stale" in pipeline.states())
    assert pipeline.silent_differences() == []


@slow
@pytest.mark.parametrize("name", LIMITS | MOVED)
def test_the_limits_that_the_guarantees_name_are_as_they_say(pipeline: IngestPipeline, name: str) -> None:
    """Not what anybody wants. When this fails the limit is gone: then its case belongs to the
    others, and its line in docs/ goes.
    """
    while_ingest_was_down(pipeline, *(LIMITS | MOVED)[name])
    assert pipeline.silent_differences() != []


@slow
def test_the_limit_of_columns_made_anew_by_an_older_transaction_is_as_it_says(pipeline: IngestPipeline) -> None:
    pipeline.run("CREATE TABLE beat (n int)", *PLAIN, tables=())
    columns_made_anew_behind_rows_of_a_later_number(pipeline)
    pipeline.run(times=2, tables=())
    assert pipeline.silent_differences() != []


@slow
@pytest.mark.parametrize("publication", ["ALL TABLES", "TABLES IN SCHEMA public"])
def test_a_streamed_truncate_of_a_table_that_is_not_named_stays_live(
    pipeline: IngestPipeline, publication: str
) -> None:
    while_ingest_was_down(
        pipeline,
        (*PLAIN[:2], f"CREATE PUBLICATION {{p}} FOR {publication}"),
        ("TRUNCATE t", "INSERT INTO t VALUES (9, 'z')"),
    )
    pipeline.assert_equal()


@pytest.mark.parametrize("value", cases(["v int", "v int NOT NULL"], quick=["v int NOT NULL"]))
def test_partitions_made_in_the_ordinary_ways_and_filled_through_their_root_stay_live(
    pipeline: IngestPipeline, value: str
) -> None:
    """Also beside tables that have their columns and never were one of them. Since 18 a column that may not be
    null is written twice when its table is created.
    """
    after = (
        LEAF,
        FILL,
        "CREATE INDEX ON r2 (v)",
        "GRANT SELECT ON r2, r1 TO PUBLIC",
        "BEGIN; CREATE TABLE r3 PARTITION OF r FOR VALUES FROM (200) TO (300); INSERT INTO r VALUES (200, 1); COMMIT",
        "ALTER TABLE r1 SET (fillfactor = 90)",
        "VACUUM ANALYZE r",
        "CREATE TABLE l (LIKE r INCLUDING ALL)",
        f"CREATE TABLE l2 (id int PRIMARY KEY, {value})",
        "ALTER TABLE l2 ADD w int, ALTER v SET STATISTICS 500",
    )
    parted = tuple(statement.replace("v int", value) for statement in PARTED)
    while_ingest_was_down(pipeline, parted, after)
    pipeline.assert_equal()


def test_a_partition_that_leaves_one_followed_table_is_no_reason_for_another_one(pipeline: IngestPipeline) -> None:
    """They have the same columns, as the tables of tenants have."""
    other = tuple(statement.replace(" r", " s") for statement in PARTED[:-1])
    both = (*other, *PARTED[:-1], PARTED[-1].replace("TABLE r", "TABLE r, s"))
    while_ingest_was_down(pipeline, both, ("ALTER TABLE s DETACH PARTITION s1",))
    assert {table.table_name: table.state for table in pipeline.state().tables.values()} == {"r": "live", "s": "stale"}

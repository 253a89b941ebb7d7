"""Columns that get a wider type, for which PostgreSQL writes the table anew: followed without a snapshot where
somebody says that they were cast, and read again where nobody does or where it was something else.
"""

from typing import Any

import pytest

from sluice.tables.policies import Policies, TablePolicy
from tests.integration.test_catalog_unseen_changes import PLAIN
from tests.support.extent import STREAMS_SOON, cases, slow
from tests.support.ingesting import IMMEDIATELY, IngestPipeline
from tests.support.source_setup import since

FOLLOW: dict[str, Any] = {"tables": (), "policies": Policies(TablePolicy(on_widen="follow"))}
DOUBT: dict[str, Any] = {"tables": (), "policies": Policies()}
BEFORE = (
    "CREATE TABLE t (id smallint PRIMARY KEY, i int, r real, n numeric(10,2), d date, big text)",
    "INSERT INTO t SELECT i, -i, i / 3.0, i + 0.25, '2020-02-29', repeat('x', 10) FROM generate_series(1, 5) i",
    "INSERT INTO t VALUES (10, 2147483647, 'NaN', 'NaN', 'infinity'), (11, NULL, '-0', NULL, '0044-03-15 BC')",
    "CREATE PUBLICATION {p} FOR TABLE t",
)
ADDED = ("ALTER TABLE t ADD x real DEFAULT 0.1, ADD y date DEFAULT '0001-01-01 BC'", "INSERT INTO t (id) VALUES (14)")
ROWS_BEFORE = (
    "INSERT INTO t VALUES (12, -2147483648, 3.4028235e+38, -12345678.25, '9999-12-31')",
    "INSERT INTO t VALUES (13, 0, 1e-45, 0, '10000-01-01')",
    "UPDATE t SET id = 100 WHERE id = 1",
    "UPDATE t SET big = 'y' WHERE id = 2",
    "DELETE FROM t WHERE id = 3",
)
WIDER = (
    "ALTER TABLE t ALTER id TYPE bigint, ALTER i TYPE bigint, ALTER n TYPE numeric(20,4), ALTER d TYPE timestamp(3)",
    "ALTER TABLE t ALTER r TYPE double precision, ALTER x TYPE double precision, ALTER y TYPE timestamp",
)
ROWS_AFTER = (
    "INSERT INTO t VALUES (3000000000, 3000000000, 0.1, 1234567890123.0625, '2021-01-01 12:34:56.789')",
    "UPDATE t SET id = 4000000000 WHERE id = 100",
    "UPDATE t SET i = 3 WHERE id = 2",
    "DELETE FROM t WHERE id = 4",
)


@pytest.mark.parametrize(
    "way", cases(["rows", "silence", "one transaction", "streamed"], quick=["streamed" if STREAMS_SOON else "rows"])
)
def test_columns_that_were_cast_to_a_wider_type_are_followed_without_a_snapshot(
    pipeline: IngestPipeline, way: str
) -> None:
    options = dict(FOLLOW)
    if way == "streamed":
        since(pipeline.database, 16, "streaming of small transactions")
        options["streaming"] = "parallel"
    pipeline.run(*BEFORE, **options)
    pipeline.run(*ADDED, **options)
    pipeline.dsn = pipeline.database.dsn + (IMMEDIATELY if way == "streamed" else "")
    if way in ("one transaction", "streamed"):
        pipeline.database.transact(*ROWS_BEFORE, *WIDER, *ROWS_AFTER)
    else:
        pipeline.execute(*ROWS_BEFORE, *WIDER)
        if way == "silence":
            pipeline.run(**options)
            pipeline.assert_equal({})
        pipeline.execute(*ROWS_AFTER)
    pipeline.run(times=2, **options)
    pipeline.assert_equal({})
    table = pipeline.table("public.t")
    assert table.schemas[table.schema_version].key_columns[0].lake.sql == "bigint"


@slow
@pytest.mark.parametrize("identity", ["FULL", "USING INDEX by_id"])
def test_old_rows_that_were_sent_whole_are_followed_to_wider_types(pipeline: IngestPipeline, identity: str) -> None:
    bare = BEFORE[0].replace("smallint PRIMARY KEY", "smallint NOT NULL")
    pipeline.execute(bare, "CREATE UNIQUE INDEX by_id ON t (id)", f"ALTER TABLE t REPLICA IDENTITY {identity}")
    pipeline.run(*BEFORE[1:], **FOLLOW)
    pipeline.run(*ADDED, **FOLLOW)
    pipeline.run(*ROWS_BEFORE, *WIDER, *ROWS_AFTER, **FOLLOW)
    pipeline.assert_equal({})


def test_a_wider_type_costs_one_snapshot_unless_somebody_says_that_it_is_a_cast(pipeline: IngestPipeline) -> None:
    pipeline.run(*BEFORE, **DOUBT)
    pipeline.run("ALTER TABLE t ALTER i TYPE bigint", "INSERT INTO t VALUES (20, 3000000000)", **DOUBT)
    pipeline.assert_equal({"rewrite": 1})


OTHER = {
    "same_type": ("ALTER TABLE t ALTER i TYPE int USING i + 1",),
    "same_type_beside": ("ALTER TABLE t ALTER id TYPE bigint, ALTER i TYPE int USING i + 1",),
    "narrower": ("ALTER TABLE t ALTER i TYPE smallint USING 1",),
    "fewer_digits": ("ALTER TABLE t ALTER n TYPE numeric(20,1)",),
    "volatile_default": ("ALTER TABLE t ALTER i TYPE bigint, ADD z float8 DEFAULT random()",),
    "with_time_zone": ("ALTER TABLE t ALTER d TYPE timestamptz",),
}


@pytest.mark.parametrize("name", cases(OTHER, quick=["same_type"]))
def test_a_rewrite_that_is_no_wider_type_is_read_again_all_the_same(pipeline: IngestPipeline, name: str) -> None:
    pipeline.run(*BEFORE[:2], BEFORE[3], **FOLLOW)
    pipeline.run(*OTHER[name], "INSERT INTO t (id) VALUES (20)", times=2, **FOLLOW)
    pipeline.assert_equal({"rewrite": 1})


REWRITTEN_TWICE = {
    "numeric": ("numeric(10,2)", "1.25", ("TYPE numeric(10,1)", "TYPE numeric(12,3)")),
    "date": ("date", "2020-01-01", ("TYPE timestamp", "TYPE date", "TYPE timestamp")),
    "int": ("int", "70000", ("TYPE smallint USING (x % 7)", "TYPE bigint")),
}


@slow
@pytest.mark.parametrize("name", REWRITTEN_TWICE)
def test_two_rewrites_of_a_column_between_two_looks_are_the_limit_that_is_named(
    pipeline: IngestPipeline, name: str
) -> None:
    """Nobody sees the first one, as docs/guarantees.md says. A comparison finds what it did to values."""
    kind, value, changes = REWRITTEN_TWICE[name]
    pipeline.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, x {kind})",
        f"INSERT INTO t VALUES (1, '{value}')",
        "CREATE PUBLICATION {p} FOR TABLE t",
    )
    pipeline.run(**FOLLOW)
    pipeline.execute(*(f"ALTER TABLE t ALTER x {change}" for change in changes[:1]))
    if name == "date":
        pipeline.execute("UPDATE t SET x = '2020-01-01 12:00'")
    pipeline.run(*(f"ALTER TABLE t ALTER x {change}" for change in changes[1:]), times=2, **FOLLOW)
    (found,) = pipeline.verdicts()
    assert (found.state, bool(found.differences)) == ("live", True)


def test_a_key_that_was_dropped_and_added_again_is_a_doubt_although_its_column_got_wider(
    pipeline: IngestPipeline,
) -> None:
    pipeline.run(*PLAIN, **FOLLOW)
    pipeline.execute(
        "ALTER TABLE t DROP CONSTRAINT t_pkey",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t VALUES (1, 'second')",
        "DELETE FROM t WHERE v = 'a'",
        "ALTER TABLE t ADD PRIMARY KEY (id)",
        "ALTER TABLE t REPLICA IDENTITY DEFAULT",
        "ALTER TABLE t ALTER id TYPE bigint",
    )
    pipeline.run(times=2, **FOLLOW)
    pipeline.assert_equal()


@slow
def test_a_rewrite_that_a_wider_type_does_not_need_is_a_doubt(pipeline: IngestPipeline) -> None:
    """PostgreSQL casts varchar to text without writing the table anew: something else was done."""
    pipeline.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(10))",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        "CREATE PUBLICATION {p} FOR TABLE t",
    )
    pipeline.run(**FOLLOW)
    pipeline.run("ALTER TABLE t ALTER v TYPE text USING v || '!'", "INSERT INTO t VALUES (3, 'c')", times=2, **FOLLOW)
    pipeline.assert_equal()
    assert pipeline.table("public.t").resyncs.counts == {"rewrite": 1}

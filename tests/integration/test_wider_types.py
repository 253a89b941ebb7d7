"""Columns that get a wider type, for which PostgreSQL writes the table anew: followed without a snapshot where
somebody says that they were cast, and read again where nobody does or where it was something else.
"""

from pathlib import Path
from typing import Any

import pytest

from sluice.tables.policies import Policies, TablePolicy
from tests.integration.test_plan import planned
from tests.support.catalog_stories import assert_equal, set_up
from tests.support.extent import cases
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


@pytest.mark.parametrize("way", ["rows", "silence", "one transaction", "streamed"])
def test_columns_that_were_cast_to_a_wider_type_are_followed_without_a_snapshot(
    pipeline: IngestPipeline, tmp_path: Path, way: str
) -> None:
    options = dict(FOLLOW)
    if way == "streamed":
        since(pipeline.database, 16, "streaming of small transactions")
        options["streaming"] = "parallel"
    set_up(pipeline, BEFORE)
    pipeline.run(**options)
    set_up(pipeline, ADDED)
    pipeline.run(**options)
    pipeline.dsn = pipeline.database.dsn + (IMMEDIATELY if way == "streamed" else "")
    if way in ("one transaction", "streamed"):
        with pipeline.database.connect() as connection, connection.transaction():
            for statement in (*ROWS_BEFORE, *WIDER, *ROWS_AFTER):
                connection.execute(statement.encode())
    else:
        set_up(pipeline, (*ROWS_BEFORE, *WIDER))
        if way == "silence":
            pipeline.run(**options)
            assert_equal(pipeline, tmp_path, resyncs={})
        set_up(pipeline, ROWS_AFTER)
    pipeline.run(**options)
    pipeline.run(**options)
    assert_equal(pipeline, tmp_path, resyncs={})
    assert pipeline.table("public.t").schemas[pipeline.table("public.t").schema_version].key_columns[0].lake.sql == (
        "bigint"
    )


@pytest.mark.parametrize("identity", ["FULL", "USING INDEX by_id"])
def test_old_rows_that_were_sent_whole_are_followed_to_wider_types(
    pipeline: IngestPipeline, tmp_path: Path, identity: str
) -> None:
    bare = BEFORE[0].replace("smallint PRIMARY KEY", "smallint NOT NULL")
    set_up(pipeline, (bare, "CREATE UNIQUE INDEX by_id ON t (id)", f"ALTER TABLE t REPLICA IDENTITY {identity}"))
    set_up(pipeline, BEFORE[1:])
    pipeline.run(**FOLLOW)
    set_up(pipeline, ADDED)
    pipeline.run(**FOLLOW)
    set_up(pipeline, (*ROWS_BEFORE, *WIDER, *ROWS_AFTER))
    pipeline.run(**FOLLOW)
    assert_equal(pipeline, tmp_path, resyncs={})


def test_a_wider_type_costs_one_snapshot_unless_somebody_says_that_it_is_a_cast(
    pipeline: IngestPipeline, tmp_path: Path
) -> None:
    set_up(pipeline, BEFORE)
    pipeline.run(**DOUBT)
    set_up(pipeline, ("ALTER TABLE t ALTER i TYPE bigint", "INSERT INTO t VALUES (20, 3000000000)"))
    pipeline.run(**DOUBT)
    assert_equal(pipeline, tmp_path, resyncs={"rewrite": 1})


OTHER = {
    "same_type": ("ALTER TABLE t ALTER i TYPE int USING i + 1",),
    "same_type_beside": ("ALTER TABLE t ALTER id TYPE bigint, ALTER i TYPE int USING i + 1",),
    "narrower": ("ALTER TABLE t ALTER i TYPE smallint USING 1",),
    "fewer_digits": ("ALTER TABLE t ALTER n TYPE numeric(20,1)",),
    "volatile_default": ("ALTER TABLE t ALTER i TYPE bigint, ADD z float8 DEFAULT random()",),
    "with_time_zone": ("ALTER TABLE t ALTER d TYPE timestamptz",),
}


@pytest.mark.parametrize("name", cases(OTHER, quick=["same_type", "volatile_default", "with_time_zone"]))
def test_a_rewrite_that_is_no_wider_type_is_read_again_all_the_same(
    pipeline: IngestPipeline, tmp_path: Path, name: str
) -> None:
    set_up(pipeline, (*BEFORE[:2], BEFORE[3]))
    pipeline.run(**FOLLOW)
    set_up(pipeline, (*OTHER[name], "INSERT INTO t (id) VALUES (20)"))
    pipeline.run(**FOLLOW)
    pipeline.run(**FOLLOW)
    assert_equal(pipeline, tmp_path, resyncs={"rewrite": 1})


def test_a_plan_says_which_columns_get_wider_and_whether_rows_are_read_again(
    pipeline: IngestPipeline, tmp_path: Path
) -> None:
    set_up(pipeline, BEFORE)
    pipeline.run(**DOUBT)
    set_up(pipeline, ("ALTER TABLE t ALTER i TYPE bigint",))
    assert planned(pipeline, tmp_path)[0].preview.effect == "snapshot"
    found = planned(pipeline, tmp_path, more=", on_widen: follow")[0].preview
    assert (found.effect, found.why) == ("followed", "column i changed from integer to bigint")

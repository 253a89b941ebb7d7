"""Columns that were cast to wider types at the source get them in the lake, whatever way commits rows, and
whoever reads meanwhile sees the whole table.
"""

from pathlib import Path

from pyspark.sql import SparkSession

from sluice.tables.policies import Policies, TablePolicy
from tests.e2e.mirror import REBUILT, Mirror
from tests.e2e.test_tables_live import polled
from tests.integration.test_wider_types import ADDED, BEFORE, FOLLOW, ROWS_AFTER, ROWS_BEFORE, WIDER
from tests.support.extent import slow
from tests.support.sources import Database

TABLES = ("t_direct", "grown_log")
NARROW = {"tables": (), "policies": Policies(TablePolicy(contract="ignore_new", on_widen="follow"))}


@slow
def test_wider_types_reach_the_lake_without_a_snapshot_whatever_way_commits(mirror: Mirror) -> None:
    def execute(*statements: str) -> None:
        mirror.execute(*(statement.replace(" t ", f" {table} ") for statement in statements for table in TABLES))

    def follow() -> None:
        mirror.pipeline.run(**FOLLOW)
        mirror.apply(ways={"public.t_direct": "direct"})

    execute(*BEFORE[:3])
    mirror.execute(f"CREATE PUBLICATION {mirror.database.publication} FOR TABLE {', '.join(TABLES)}")
    follow()
    execute(*ADDED)
    follow()
    execute(*ROWS_BEFORE, *WIDER, *ROWS_AFTER)
    with polled(mirror, "t_direct") as seen:
        follow()
    assert seen <= {8, 9}
    mirrors = TABLES[:-1]
    mirror.assert_equal(*mirrors)
    execute("UPDATE t SET big = 'z' WHERE id IN (5, 12, 13)", "DELETE FROM t WHERE id = 4000000000")
    mirror.execute(*(f"DELETE FROM {table} WHERE id = 3000000000" for table in TABLES))
    follow()
    mirror.assert_equal(*mirrors)
    states = [mirror.pipeline.table(f"public.{table}") for table in TABLES]
    assert [(state.state, state.resyncs.counts) for state in states] == [("live", {})] * len(TABLES)
    changes = mirror.rows("grown_log")
    inserted = {row["id"]: row for row in changes if row["_sluice_op"] == "i"}
    assert inserted[12]["r"] == float.fromhex("0x1.fffffep+127")
    assert inserted[13]["_sluice_special"] == {"d": "10000-01-01 00:00:00", "y": "0001-01-01 00:00:00 BC"}
    removed = [row["_sluice_old"] for row in changes if row["_sluice_op"] == "d"]
    assert sorted(row["id"] for row in removed) == [3, 4, 3000000000, 4000000000]
    mirror.fork(REBUILT)
    mirror.apply(REBUILT, ways={"public.t_direct": "merge"})
    mirror.assert_equal(*mirrors, lake=REBUILT)


@slow
def test_one_window_over_wider_types_and_columns_left_out_is_equal_by_executors(
    database: Database, spark: SparkSession, tmp_path: Path
) -> None:
    mirror = Mirror(database, spark, tmp_path)
    mirror.execute(
        *BEFORE[:3],
        "CREATE TABLE narrow (id int PRIMARY KEY, d date, big text)",
        "INSERT INTO narrow SELECT i, 'infinity', repeat(md5(i::text), 200) FROM generate_series(1, 40) i",
        f"CREATE PUBLICATION {mirror.database.publication} FOR TABLE t, narrow",
    )
    ways = {"public.t": "distributed", "public.narrow": "distributed"}
    mirror.pipeline.run(**NARROW)
    mirror.apply(ways=ways)
    mirror.execute(*ADDED)
    mirror.pipeline.run(**FOLLOW)
    mirror.execute(*ROWS_BEFORE, *WIDER, *ROWS_AFTER)
    mirror.execute(
        "UPDATE narrow SET d = NULL WHERE id = 1",
        "ALTER TABLE narrow ADD x date DEFAULT '-infinity', ADD y text DEFAULT repeat('y', 9000)",
        "UPDATE narrow SET y = repeat(md5('y'), 300) WHERE id < 10",
        "INSERT INTO narrow VALUES (50, 'infinity', 'b', 'infinity', 'y')",
        "UPDATE narrow SET id = id + 100 WHERE id < 20",
        "ALTER TABLE narrow ALTER id TYPE bigint, ALTER d TYPE timestamp",
        "UPDATE narrow SET id = id + 3000000000 WHERE id > 110",
        "UPDATE narrow SET x = '2022-01-01' WHERE id > 30",
        "DELETE FROM narrow WHERE id IN (21, 101)",
    )
    mirror.pipeline.run(**NARROW)
    mirror.apply(ways=ways)
    mirror.fork(REBUILT)
    mirror.apply(REBUILT, ways={"public.t": "merge", "public.narrow": "merge"})
    for lake in ({}, {"lake": REBUILT}):
        mirror.assert_equal("t", **lake)
        rows = {row["id"]: (row["d"], row["big"], row["_sluice_special"]) for row in mirror.rows("narrow", **lake)}
        wanted = {one[0]: one[1:] for one in mirror.database.all("SELECT id, d = 'infinity', big FROM narrow")}
        assert {key: (mark is not None and mark == {"d": "infinity"}, big) for key, (_, big, mark) in rows.items()} == {
            key: (bool(never), big) for key, (never, big) in wanted.items()
        }

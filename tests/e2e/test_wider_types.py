"""Columns that were cast to wider types at the source get them in the lake, whatever way commits rows, and
whoever reads meanwhile sees the whole table.
"""

from tests.e2e.mirror import REBUILT, Mirror
from tests.e2e.test_tables_live import polled
from tests.integration.test_wider_types import ADDED, BEFORE, FOLLOW, ROWS_AFTER, ROWS_BEFORE, WIDER
from tests.support.extent import slow

TABLES = ("t_direct", "grown_log")


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

"""Wider types and columns left out in windows that Spark's executors commit, and by MERGE."""

from sluice.tables.policies import Policies, TablePolicy
from tests.e2e.mirror import REBUILT, Mirror
from tests.integration.test_wider_types import ADDED, BEFORE, FOLLOW, ROWS_AFTER, ROWS_BEFORE, WIDER
from tests.support.extent import slow

NARROW = {"tables": (), "policies": Policies(TablePolicy(contract="ignore_new", on_widen="follow"))}


@slow
def test_one_window_over_wider_types_and_columns_left_out_is_equal_by_executors(mirror: Mirror) -> None:
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
        with mirror.database.connect() as connection:
            wanted = {one[0]: one[1:] for one in connection.execute("SELECT id, d = 'infinity', big FROM narrow")}
        assert {key: (mark is not None and mark == {"d": "infinity"}, big) for key, (_, big, mark) in rows.items()} == {
            key: (bool(never), big) for key, (never, big) in wanted.items()
        }
    found = {one.table_name: (one.state, one.resyncs.counts) for one in mirror.pipeline.state().tables.values()}
    print("RESULT", found)

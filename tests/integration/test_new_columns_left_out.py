"""A contract of ignore_new: columns that are added are not carried, and said; whatever else happens to the
table is followed; evolve brings them by one snapshot.
"""

from typing import Any

import pytest

from sluice.tables.policies import Policies, TablePolicy
from tests.integration.test_plan import planned
from tests.support.extent import STREAMS_SOON, cases, slow
from tests.support.ingesting import IMMEDIATELY, IngestPipeline
from tests.support.source_setup import since

IGNORE: dict[str, Any] = {"tables": (), "policies": Policies(TablePolicy(contract="ignore_new"))}
EVOLVE: dict[str, Any] = {"tables": (), "policies": Policies()}
BEFORE = (
    "CREATE TABLE t (id int PRIMARY KEY, v text)",
    "INSERT INTO t SELECT i, 'old' FROM generate_series(1, 5) i",
    "CREATE PUBLICATION {p} FOR TABLE t",
)
CHANGES = (
    "ALTER TABLE t ADD w int DEFAULT 7",
    "INSERT INTO t VALUES (10, 'ten', 10)",
    "ALTER TABLE t ADD r float8 DEFAULT random()",
    "UPDATE t SET w = 8, v = 'new' WHERE id = 1",
    "ALTER TABLE t RENAME w TO x",
    "ALTER TABLE t RENAME v TO w",
    "INSERT INTO t VALUES (11, 'eleven', 11)",
    "ALTER TABLE t ALTER x TYPE text USING 'changed'",
    "UPDATE t SET id = 12, x = '12' WHERE id = 2",
    "ALTER TABLE t DROP r",
    "DELETE FROM t WHERE id = 3",
)


def shape(pipeline: IngestPipeline) -> tuple[list[str], list[str]]:
    """The columns of the lake table, and those that are left out."""
    state = pipeline.table("public.t")
    schema = state.schemas[state.schema_version]
    return [one.name for one in schema.carried.columns], [one.name for one in schema.ignored_columns]


@pytest.mark.parametrize(
    "way",
    cases(
        ["one by one", "catalog ahead", "one transaction", "streamed"],
        quick=["streamed" if STREAMS_SOON else "catalog ahead"],
    ),
)
def test_added_columns_are_left_out_and_everything_else_is_followed(pipeline: IngestPipeline, way: str) -> None:
    options = dict(IGNORE)
    if way == "streamed":
        since(pipeline.database, 16, "streaming of small transactions")
        options["streaming"] = "parallel"
    pipeline.run(*BEFORE, **options)
    pipeline.dsn = pipeline.database.dsn + (IMMEDIATELY if way == "streamed" else "")
    again = (" r", "v TO w", "TYPE")  # what leaves no trace when it is looked at later
    changes = CHANGES if way == "one by one" else tuple(one for one in CHANGES if not any(map(one.__contains__, again)))
    if way in ("one transaction", "streamed"):
        pipeline.database.transact(*changes)
    for statement in changes if way in ("one by one", "catalog ahead") else ():
        pipeline.execute(statement)
        if way == "one by one":
            pipeline.run(**options)
    pipeline.run(times=2, **options)
    pipeline.assert_equal({})
    assert shape(pipeline) == (["id", "w" if way == "one by one" else "v"], ["x"])


@slow
@pytest.mark.usefixtures("read_again_at_once")
def test_columns_left_out_stay_so_over_a_snapshot_and_come_by_one_when_they_are_wanted(
    pipeline: IngestPipeline,
) -> None:
    pipeline.run(*BEFORE, **IGNORE)
    pipeline.execute("ALTER TABLE t ADD w int DEFAULT 7", "INSERT INTO t VALUES (10, 'ten', 10)")
    assert planned(pipeline, more=", contract: ignore_new")[0].preview.why == "column w added and left out"
    pipeline.run(**IGNORE)
    pipeline.run("ALTER TABLE t ALTER v TYPE text USING v || '!'", "ALTER TABLE t ADD y int", times=2, **IGNORE)
    pipeline.assert_equal({"rewrite": 1})
    assert shape(pipeline) == (["id", "v"], ["w", "y"])
    found = planned(pipeline)[0].preview
    assert (found.effect, "no longer leaves out w, y" in found.why) == ("snapshot", True)
    pipeline.run(**EVOLVE)
    pipeline.assert_equal({"rewrite": 1, "schema": 1})
    assert shape(pipeline) == (["id", "v", "w", "y"], [])
    pipeline.run(**IGNORE)
    assert shape(pipeline) == (["id", "v", "w", "y"], [])


def test_a_column_of_the_key_is_never_left_out(pipeline: IngestPipeline) -> None:
    pipeline.run(*BEFORE, **IGNORE)
    pipeline.execute("ALTER TABLE t ADD k int NOT NULL DEFAULT 1, ADD z int", "INSERT INTO t VALUES (6, 'six', 6, 6)")
    pipeline.run(**IGNORE)
    assert shape(pipeline) == (["id", "v"], ["k", "z"])
    pipeline.execute(
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, k)", "INSERT INTO t VALUES (6, 's', 7)"
    )
    pipeline.run(times=2, **IGNORE)
    pipeline.assert_equal()
    assert sum(pipeline.table("public.t").resyncs.counts.values()) == 1
    assert shape(pipeline) == (["id", "v", "k"], ["z"])


def test_a_column_that_the_lake_has_goes_on_being_followed(pipeline: IngestPipeline) -> None:
    """It came under evolve, and the catalog was not looked at since."""
    pipeline.run(*BEFORE, **EVOLVE)
    added: list[str] = []
    with pipeline.running(**EVOLVE, watch_interval_s=3600.0) as running:
        # One that a look has seen all the same is no case of this.
        while not added or f'"{added[-1]}"' in pipeline.table("public.t").fingerprint:
            assert len(added) < 5
            added.append(f"r{len(added)}")
            row = f"INSERT INTO t (id, {added[-1]}) VALUES ({20 + len(added)}, 20)"
            pipeline.execute(f"ALTER TABLE t ADD {added[-1]} int", row)
            running.wait_until(lambda: added[-1] in shape(pipeline)[0])
    pipeline.run(f"ALTER TABLE t ALTER {added[-1]} TYPE int USING coalesce({added[-1]}, 0) + 1", times=2, **IGNORE)
    assert shape(pipeline) == (["id", "v", *added], [])
    pipeline.assert_equal({"rewrite": 1})

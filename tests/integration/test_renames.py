"""Tables are followed by their oid: another name, another schema, two names exchanged, a name that is
used again.
"""

from typing import Any

import pytest

from sluice.contract.lake_names import LakeNames
from sluice.contract.lake_targets import LakeTarget
from sluice.contract.table_policy import OnRename
from sluice.contract.table_state import State
from sluice.health.problems import Problem
from sluice.manifest.targets import target_path
from sluice.tables.policies import Policies, TablePolicy
from tests.support.catalog_stories import RESYNC, changed_in_a_streamed_transaction, changed_while_down
from tests.support.extent import cases, slow
from tests.support.ingesting import IngestPipeline

MOVE: dict[str, Any] = {"tables": (), "policies": Policies(TablePolicy(on_rename="move"))}
TWO = (
    "CREATE SCHEMA other",
    "CREATE TABLE a (id int PRIMARY KEY, v text)",
    "CREATE TABLE b (id int PRIMARY KEY, v text)",
    "INSERT INTO a VALUES (1, 'a'), (2, 'a')",
    "INSERT INTO b VALUES (1, 'b'), (3, 'b')",
    "CREATE PUBLICATION {p} FOR ALL TABLES",
)
SWAP = "ALTER TABLE a RENAME TO x; ALTER TABLE b RENAME TO a; ALTER TABLE x RENAME TO b"
STORIES: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "renamed_between_rows_of_one_transaction": (
        ("BEGIN; INSERT INTO a VALUES (3, 'n'); ALTER TABLE a RENAME TO c; UPDATE c SET v = 'm'; COMMIT",),
        {"public.c": "public/a", "public.b": "public/b"},
    ),
    "moved_to_another_schema": (
        ("INSERT INTO a VALUES (3, 'n')", "ALTER TABLE a SET SCHEMA other", "DELETE FROM other.a WHERE id = 1"),
        {"other.a": "public/a", "public.b": "public/b"},
    ),
    "names_exchanged_with_rows_on_both_sides": (
        (f"BEGIN; INSERT INTO a VALUES (9, 'a'); {SWAP}; INSERT INTO a VALUES (9, 'was b'); COMMIT",),
        {"public.a": "public/b", "public.b": "public/a"},
    ),
    "renamed_there_and_back": (
        ("ALTER TABLE a RENAME TO c", "INSERT INTO c VALUES (3, 'n')", "ALTER TABLE c RENAME TO a"),
        {"public.a": "public/a", "public.b": "public/b"},
    ),
    "renamed_in_silence": (("ALTER TABLE a RENAME TO c",), {"public.c": "public/a", "public.b": "public/b"}),
}


def paths(pipeline: IngestPipeline) -> dict[str, str]:
    """Of tables that are carried, by name."""
    carried = [table for table in pipeline.state().tables.values() if table.state != State.DETACHED]
    found = {f"{table.schema_name}.{table.table_name}": table.path for table in carried}
    assert len({table.path for table in carried}) == len(carried)
    return found


def displaced(pipeline: IngestPipeline) -> list[Problem]:
    report = pipeline.reporter().take()
    return [problem for problem in report.verdict.problems if problem.code == "table.path"]


@pytest.mark.parametrize(
    "name",
    cases(
        STORIES,
        quick=[
            "renamed_between_rows_of_one_transaction",
            "names_exchanged_with_rows_on_both_sides",
        ],
    ),
)
def test_a_table_with_another_name_goes_on_where_it_is(pipeline: IngestPipeline, name: str) -> None:
    statements, expected = STORIES[name]
    changed_while_down(pipeline, TWO, statements, runs=2, **RESYNC)
    pipeline.assert_equal({})
    assert paths(pipeline) == expected


@slow
def test_a_table_that_is_renamed_while_ingest_runs_is_known_by_its_new_name(pipeline: IngestPipeline) -> None:
    pipeline.execute(*TWO)
    with pipeline.running(watch_interval_s=0.2, **RESYNC) as running:
        running.wait_until(lambda: [table.state for table in pipeline.state().tables.values()] == ["live", "live"])
        pipeline.execute(f"BEGIN; {SWAP}; COMMIT", "INSERT INTO a VALUES (7, 'was b')")
        running.wait_until(lambda: paths(pipeline) == {"public.a": "public/b", "public.b": "public/a"})
    pipeline.run(**RESYNC)
    pipeline.assert_equal({})


@pytest.mark.parametrize("prepared", cases([False, True], quick=[True]))
def test_a_rename_between_the_rows_of_an_open_transaction_changes_nothing_in_them(
    pipeline: IngestPipeline, *, prepared: bool
) -> None:
    before = (*TWO, "CREATE TABLE other.c (id int PRIMARY KEY)")
    inside = (
        "INSERT INTO a SELECT i, 'before' FROM generate_series(10, 400) i",
        "ALTER TABLE a RENAME TO c",
        "UPDATE c SET v = 'after' WHERE id % 2 = 0",
        "SAVEPOINT s",
        "ALTER TABLE c RENAME TO d",
        "INSERT INTO d VALUES (-1, 'never')",
        "ROLLBACK TO s",
        "INSERT INTO c VALUES (1000, 'last')",
    )
    changed_in_a_streamed_transaction(pipeline, before, inside, prepared=prepared, **RESYNC)
    pipeline.assert_equal({})
    assert paths(pipeline)["public.c"] == "public/a"


@pytest.mark.parametrize("rows", [pytest.param((), marks=slow), ("INSERT INTO a VALUES (1, 'new')",)])
def test_a_table_created_again_takes_the_place_of_the_one_that_was_dropped(
    pipeline: IngestPipeline, rows: tuple[str, ...]
) -> None:
    pipeline.run(*TWO, **RESYNC)
    pipeline.execute("INSERT INTO a VALUES (5, 'old')", "DROP TABLE a")
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY, v text)", *rows, **RESYNC)
    pipeline.assert_equal({})
    assert paths(pipeline) == {"public.a": "public/a", "public.b": "public/b"}
    assert len(pipeline.state().tables) == 3


def test_a_name_that_is_used_again_while_its_lake_path_is_not_free_gets_a_path_of_its_own(
    pipeline: IngestPipeline,
) -> None:
    pipeline.run(*TWO, **RESYNC)
    pipeline.execute(
        "ALTER TABLE a RENAME TO a_old", "CREATE TABLE a (id int PRIMARY KEY, w int)", "INSERT INTO a VALUES (1, 1)"
    )
    pipeline.run(**RESYNC)
    pipeline.assert_equal({})
    fresh = pipeline.table("public.a")
    assert paths(pipeline) == {
        "public.a": f"public/a~t{fresh.table_id}",
        "public.a_old": "public/a",
        "public.b": "public/b",
    }


PARTITIONED = (
    "ALTER TABLE a RENAME TO a_first",
    "CREATE TABLE a (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "INSERT INTO a_first VALUES (3, 'late')",
)
ATTACHED = ("ALTER TABLE a ATTACH PARTITION a_first FOR VALUES FROM (0) TO (100)", "INSERT INTO a VALUES (4, 'new')")


@slow
@pytest.mark.parametrize("seen_between", [True, False])
def test_a_table_made_partitioned_under_its_name_takes_over_the_path_of_its_name(
    pipeline: IngestPipeline, seen_between: bool
) -> None:
    pipeline.run(*TWO[:-1], f"{TWO[-1]} WITH (publish_via_partition_root = true)", **RESYNC)
    pipeline.execute(*PARTITIONED)
    if seen_between:
        pipeline.run(**RESYNC)
        assert paths(pipeline)["public.a"] == f"public/a~t{pipeline.table('public.a').table_id}"
        (problem,) = displaced(pipeline)
        assert (problem.where, problem.severity) == ("public.a", "warning")
        assert paths(pipeline)["public.a"] in problem.message
    pipeline.run(*ATTACHED, times=3, **RESYNC)
    assert paths(pipeline) == {"public.a": "public/a", "public.b": "public/b"}
    assert displaced(pipeline) == []
    assert {verdict.differences for verdict in pipeline.verdicts()} == {()}


@slow
def test_a_table_takes_over_the_path_of_its_name_when_its_old_holder_is_dropped(pipeline: IngestPipeline) -> None:
    pipeline.run(*TWO, **RESYNC)
    pipeline.run("ALTER TABLE a RENAME TO a_old", "CREATE TABLE a (id int PRIMARY KEY, w int)", **RESYNC)
    pipeline.run("DROP TABLE a_old", "INSERT INTO a VALUES (1, 1)", times=3, **RESYNC)
    assert paths(pipeline) == {"public.a": "public/a", "public.b": "public/b"}
    assert {verdict.differences for verdict in pipeline.verdicts()} == {()}


def test_a_lake_table_moves_with_its_name_where_the_policy_says_so(pipeline: IngestPipeline) -> None:
    pipeline.run(*TWO, **MOVE)
    pipeline.execute("ALTER TABLE a RENAME TO c", "INSERT INTO c VALUES (4, 'n')", "CREATE TABLE a (id int)")
    pipeline.run(times=2, **MOVE)
    pipeline.assert_equal({"rename": 2})  # the new table moves to the path that is free then
    assert paths(pipeline)["public.c"] == "public/c"
    assert paths(pipeline)["public.b"] == "public/b"


@pytest.mark.parametrize(
    ("on_rename", "path"), cases([("keep", "public/a"), ("move", "public_a")], quick=[("move", "public_a")])
)
def test_another_template_moves_a_lake_table_only_where_lake_tables_move_with_their_names(
    pipeline: IngestPipeline, on_rename: OnRename, path: str
) -> None:
    pipeline.run(*TWO, tables=(), policies=Policies(TablePolicy(on_rename=on_rename)))
    changed = TablePolicy(on_rename=on_rename, names=LakeNames("{schema}_{target}"))
    pipeline.run(times=2, tables=(), policies=Policies(changed))
    pipeline.assert_equal({"rename": 2} if on_rename == "move" else {})
    assert paths(pipeline)["public.a"] == path


@slow
def test_a_table_that_is_selected_by_name_is_still_selected_when_it_has_another_one(pipeline: IngestPipeline) -> None:
    one: dict[str, Any] = {**RESYNC, "tables": ("public.a",)}
    pipeline.run(*TWO, **one)
    pipeline.run("ALTER TABLE a RENAME TO c", "INSERT INTO c VALUES (4, 'n')", times=2, **one)
    assert [(table.table_name, table.state) for table in pipeline.state().tables.values()] == [("c", "live")]
    assert [row["id"] for row in pipeline.rows("public.c")] == [4]


def test_a_table_whose_name_a_target_of_another_has_gets_a_path_of_its_own(pipeline: IngestPipeline) -> None:
    names = LakeNames("{schema}_{target}")
    policy = TablePolicy(targets=(LakeTarget(), LakeTarget(name="late"), LakeTarget(name="b")), names=names)
    options: dict[str, Any] = {"tables": (), "policies": Policies(TablePolicy(names=names), {"public.a": policy})}
    pipeline.run(*TWO, **options)
    pipeline.run("CREATE TABLE late (id int PRIMARY KEY)", "INSERT INTO late VALUES (1)", **options)
    pipeline.assert_equal({})
    tables = {table.table_name: table for table in pipeline.state().tables.values()}
    found = {name: target_path(table, LakeTarget(name="h")) for name, table in tables.items()}
    # Of the first two tables either may come first.
    assert tables["late"].path == f"public_late~t{tables['late'].table_id}"
    assert found["late"] == f"public_h~t{tables['late'].table_id}"
    every = {table.path for table in tables.values()} | {target_path(tables["a"], one) for one in policy.targets}
    assert len(every) == len(tables) + 2
    pipeline.run("ALTER TABLE late RENAME TO later", **options)
    assert pipeline.table("public.later").path in ("public_later", tables["late"].path)
    pipeline.assert_equal({})

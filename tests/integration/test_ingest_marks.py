"""A mark of a table goes when its cause does, and a shape on which the wire and the catalog agree
is recorded once.
"""

from pathlib import Path

import pytest

from sluice import faults
from tests.support.extent import slow
from tests.support.ingesting import IngestPipeline
from tests.support.least_rights import grant, options_as, pipeline_role
from tests.support.source_setup import since


def test_a_table_that_was_refused_is_carried_when_another_primary_key_is_published(pipeline: IngestPipeline) -> None:
    database = pipeline.database
    since(database, 15, "column lists")
    database.execute(
        "CREATE TABLE t (a int NOT NULL, b int NOT NULL, v text, PRIMARY KEY (a, b))",
        "INSERT INTO t VALUES (1, 1, 'x')",
        f"CREATE PUBLICATION {database.publication} FOR TABLE t (a, v)",
    )
    pipeline.run(tables=())
    assert pipeline.table("public.t").state == "quarantined"
    pipeline.run("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (a)", tables=())
    assert pipeline.table("public.t").state == "live"


@slow
def test_a_right_that_was_missing_for_a_moment_of_a_snapshot_costs_a_pause(
    pipeline: IngestPipeline, tmp_path: Path
) -> None:
    database = pipeline.database
    gate = tmp_path / "gate"
    database.execute("CREATE TABLE t (a int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'x')")
    with pipeline_role(database) as role:
        grant(database, role, tables="t")
        pipeline.dsn = options_as(database, role).dsn
        faults.arm(f"snapshot.lock.before=hold:{gate}@1")
        with pipeline.running(tables=(), watch_interval_s=0.5) as running:
            running.wait_until(lambda: faults.passages("snapshot.lock.before") > 0)
            database.execute(f"REVOKE SELECT ON t FROM {role}")
            gate.touch()
            running.wait_until(lambda: pipeline.table("public.t").state == "quarantined")
            database.execute(f"GRANT SELECT ON t TO {role}", "INSERT INTO t VALUES (2, 'y')")
            running.wait_until(lambda: pipeline.table("public.t").state == "live")


@pytest.mark.parametrize(
    ("state", "statement"),
    [
        ("stale", "ALTER TABLE t ALTER COLUMN v TYPE text USING 'w'"),
        pytest.param("quarantined", 'ALTER TABLE t ADD COLUMN "_sluice_x" int', marks=slow),
    ],
)
def test_a_marked_table_that_was_dropped_is_detached(pipeline: IngestPipeline, state: str, statement: str) -> None:
    database = pipeline.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "CREATE TABLE u (id int PRIMARY KEY)",
        f"CREATE PUBLICATION {database.publication} FOR TABLE t, u",
    )
    pipeline.run(tables=())
    pipeline.run(statement, "INSERT INTO t VALUES (1, 1)", times=2, tables=())
    assert pipeline.table("public.t").state == state
    pipeline.run("DROP TABLE t", tables=())
    assert pipeline.table("public.t").state == "detached"


def test_a_deferrable_primary_key_makes_one_schema_version(pipeline: IngestPipeline) -> None:
    """The wire does not flag its columns: PostgreSQL tells no rows apart by it."""
    database = pipeline.database
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY DEFERRABLE, v text)",
        "INSERT INTO t VALUES (0, 'x')",
        f"CREATE PUBLICATION {database.publication} FOR TABLE t",
    )
    for number in range(1, 5):
        pipeline.run(tables=())
        database.execute(f"INSERT INTO t VALUES ({number}, 'x')")
    pipeline.run(tables=())
    table = pipeline.table("public.t")
    assert (table.state, table.schema_version) == ("live", 1)

"""A table that was refused, and whose cause is gone, stays out: the facts by which it is tried again do not hold the cause."""

import time
from pathlib import Path

import psycopg

from service import faults
from tests.support.ingesting import Pipeline


def test_identity_not_published_is_put_right_by_another_primary_key(pipeline: Pipeline) -> None:
    database = pipeline.database
    database.execute(
        "CREATE TABLE t (a int NOT NULL, b int NOT NULL, v text, PRIMARY KEY (a, b))",
        "INSERT INTO t VALUES (1, 1, 'x')",
        f"CREATE PUBLICATION {database.publication} FOR TABLE t (a, v)",
    )
    with pipeline.running(tables=(), watch_interval_s=0.3) as running:
        running.wait_until(lambda: pipeline.state().tables and pipeline.table("public.t").state == "quarantined")
        print("REASON", pipeline.table("public.t").reason)
        database.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (a)")
        time.sleep(6)
        print("STATE", pipeline.table("public.t").state, pipeline.table("public.t").reason)
        assert pipeline.table("public.t").state == "live"


def test_right_revoked_and_granted_again_within_one_interval(pipeline: Pipeline, tmp_path: Path) -> None:
    database = pipeline.database
    role = f"r_{database.name}"
    database.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION",
        "CREATE TABLE t (a int PRIMARY KEY, v text)",
        "INSERT INTO t VALUES (1, 'x')",
        f"GRANT SELECT ON t TO {role}",
        f"GRANT EXECUTE ON FUNCTION pg_control_system() TO {role}",
        f"GRANT EXECUTE ON FUNCTION pg_control_checkpoint() TO {role}",
        f"CREATE PUBLICATION {database.publication} FOR TABLE t",
    )
    pipeline.dsn = database.server.dsn(dbname=database.name, user=role) if "user" in database.server.dsn.__code__.co_varnames else database.dsn.replace("//postgres", f"//{role}")
    gate = tmp_path / "gate"
    faults.arm(f"copy.lock.before=hold:{gate}@1")
    try:
        with pipeline.running(tables=(), watch_interval_s=3.0) as running:
            running.wait_until(lambda: faults.passages("copy.lock.before") > 0)
            seen = running.ingest.view.catalog_beat
            running.wait_until(lambda: running.ingest.view.catalog_beat > seen)
            time.sleep(0.5)
            database.execute(f"REVOKE SELECT ON t FROM {role}")
            gate.touch()
            running.wait_until(lambda: pipeline.table("public.t").state == "quarantined")
            database.execute(f"GRANT SELECT ON t TO {role}", "INSERT INTO t VALUES (2, 'y')")
            for _ in range(3):
                seen = running.ingest.view.catalog_beat
                running.wait_until(lambda: running.ingest.view.catalog_beat > seen)
            time.sleep(2)
            print("STATE", pipeline.table("public.t").state, pipeline.table("public.t").reason)
            assert pipeline.table("public.t").state == "live"
    finally:
        faults.arm("")
        with database.connect() as connection:
            connection.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = %s", (role,))
        database.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")

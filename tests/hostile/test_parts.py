"""Parts of ingest that end while the process stays green; states that nothing leaves again; versions without end."""

import time
from pathlib import Path

import psycopg
import pytest

from service import faults
from service.errors import ServiceError
from service.runtime import ingest as ingest_module
from tests.support.ingesting import Pipeline
from tests.support.oracle import Spool
from tests.support.pgproxy import PgProxy


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ingest_module, "RECONNECT_SECONDS", (0.3,))
    yield
    faults.arm("")


def test_copier_that_fails_while_the_stream_is_away_is_dead_for_ever(pipeline: Pipeline, tmp_path: Path) -> None:
    """An unexpected error of a copy at a moment without a session ends the copier's task, and nothing else."""
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)", f"CREATE PUBLICATION {database.publication} FOR TABLE t")
    gate = tmp_path / "gate"
    faults.arm(f"copy.taken=hold:{gate}+raise:KeyError@1")
    with pipeline.running(tables=(), watch_interval_s=0.2) as running:
        running.wait_until(lambda: faults.passages("copy.taken") > 0)
        ingest = running.ingest
        # The stream is lost for a moment: here by its walsender, as after a timeout or an administrator's command.
        with database.connect() as connection:
            connection.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", (database.slot,)
            )
        running.wait_until(lambda: ingest._session is None and ingest.view.state == "reconnecting")
        gate.touch()
        running.wait_until(lambda: ingest.view.state == "streaming" and ingest.view.connected)
        deadline = time.monotonic() + 25
        while time.monotonic() < deadline and pipeline.table("public.t").state != "live":
            time.sleep(0.5)
        done = [task.done() for task in ingest._background]
        beat_age = time.time() - ingest.copier.totals.beat
        print("STATE", pipeline.table("public.t").state, "tasks done", done, "copier beat age", round(beat_age, 1), "view", ingest.view.state, ingest.view.connected)
        from service.runtime.presence import Presence  # noqa: F401 - only to see what is watched

        print("ERRORS", ingest.errors.recent())
        assert running.thread.is_alive()
        assert pipeline.table("public.t").state == "live", "streaming goes on, and nobody copies any more"


def test_watch_that_fails_while_the_stream_is_away_is_dead_for_ever(pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)", f"CREATE PUBLICATION {database.publication} FOR TABLE t")
    pipeline.run(tables=())
    with pipeline.running(tables=(), watch_interval_s=0.5) as running:
        running.wait_until(lambda: running.ingest is not None and running.ingest.view.connected)
        ingest = running.ingest
        real, failed = ingest._watch.run_once, []

        def once() -> None:
            if not failed and ingest._session is None:
                failed.append(1)
                raise KeyError("an unexpected one")
            real()

        # As `catalog watch` calls it; what the connection itself calls at its start stays whole.
        background = ingest._attempt

        async def attempt(action, what):
            await background(once if what == "catalog" else action, what)

        ingest._attempt = attempt
        monkeypatch.setattr(ingest_module, "RECONNECT_SECONDS", (3.0,))
        with database.connect() as connection:
            connection.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", (database.slot,))
        running.wait_until(lambda: bool(failed))
        running.wait_until(lambda: ingest.view.state == "streaming" and ingest.view.connected)
        database.execute("ALTER TABLE t ADD COLUMN drawn float8 DEFAULT random()")
        time.sleep(15)
        print("STATE", pipeline.table("public.t").state, [task.done() for task in ingest._background], "beat age", time.time() - ingest.view.catalog_beat)
        assert pipeline.table("public.t").state != "live"


def test_prepared_transaction_that_ended_while_the_publication_was_away_blocks_its_gid(pipeline: Pipeline, tmp_path: Path) -> None:
    database = pipeline.database
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", f"CREATE PUBLICATION {database.publication} FOR TABLE t")
    pipeline.run(tables=(), two_phase=True)
    database.execute(*prepared("gid1", 1))
    pipeline.run(tables=(), two_phase=True)
    assert [one.gid for one in pipeline.state().prepared.values()] == ["gid1"]
    database.execute(
        f"DROP PUBLICATION {database.publication}",
        "INSERT INTO t VALUES (2)",
        "COMMIT PREPARED 'gid1'",
        f"CREATE PUBLICATION {database.publication} FOR TABLE t",
    )
    pipeline.run(tables=(), two_phase=True)
    print("PREPARED", [one.gid for one in pipeline.state().prepared.values()], "STATE", pipeline.table("public.t").state)
    database.execute(*prepared("gid1", 3), "COMMIT PREPARED 'gid1'")
    try:
        pipeline.run(tables=(), two_phase=True)
    except ServiceError as error:
        print("FIRST", type(error).__name__, error.disposition, error, error.hint)
        with pytest.raises(ServiceError) as again:
            pipeline.run(tables=(), two_phase=True)
        print("AGAIN", type(again.value).__name__, again.value)
        raise
    assert not pipeline.state().prepared, "at the source no prepared transaction is left"


def prepared(gid: str, number: int) -> tuple[str, ...]:
    return (f"BEGIN; INSERT INTO t VALUES ({number}); PREPARE TRANSACTION '{gid}'",)

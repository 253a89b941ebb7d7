"""Snapshots wait while the source is loaded, say why, and are the table afterwards."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg

from sluice import faults
from sluice.health.process_state import ProcessState
from sluice.health.snapshots import snapshots
from sluice.ingest.snapshot.load_gate import LoadGate, LoadLimits
from sluice.ingest.status import SnapshotCounts, SnapshotWait
from sluice.telemetry.recent_errors import RecentErrors
from tests.integration.test_snapshot_chunks import CHUNKS, SETUP, assert_equal, chunks_of
from tests.support.ingesting import IngestPipeline, Running
from tests.support.least_rights import grant, options_as, pipeline_role
from tests.support.source_setup import options_of
from tests.support.sources import Database

HELD = """SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND backend_xmin IS NOT NULL
    AND backend_type = 'client backend'"""
"""Sessions of the pipeline that hold a snapshot, and VACUUM with it."""


def limited(**limits: Any) -> dict[str, Any]:
    return {**CHUNKS, "snapshot": replace(CHUNKS["snapshot"], load=LoadLimits(**limits))}


def waits(running: Running) -> SnapshotWait | None:
    return running.status.snapshots.load_wait


def is_live(pipeline: IngestPipeline, name: str) -> bool:
    return any(one.table_name == name and one.state == "live" for one in pipeline.state().tables.values())


@contextmanager
def active_sessions(database: Database, count: int) -> Iterator[None]:
    """So many sessions run a statement until the block ends."""
    with ExitStack() as stack:
        for _ in range(count):
            connection = psycopg.connect(database.dsn, autocommit=True)
            stack.callback(connection.close)
            stack.callback(connection.cancel_safe)
            connection.pgconn.send_query(b"SELECT pg_sleep(600)")
        yield


def test_a_snapshot_that_waits_for_too_long_is_released_and_the_rest_is_read_from_another(
    pipeline: IngestPipeline, tmp_path: Path
) -> None:
    database, gate = pipeline.database, tmp_path / "chunk.open"
    database.execute(*SETUP)
    pipeline.publish("t")
    faults.arm(f"snapshot.chunk.after=hold:{gate}@1")
    # The server is shared with other tests.
    with pipeline.running(**limited(active_sessions=30, hold_s=1.0)) as running:
        running.wait_until(lambda: faults.passages("snapshot.chunk.after") > 0)
        with active_sessions(database, 40), database.connect() as admin:
            gate.touch()
            running.wait_until(lambda: (now := waits(running)) is not None and now.holding)
            running.wait_until(lambda: (now := waits(running)) is not None and not now.holding)
            process = ProcessState(running.status, RecentErrors(), None)
            said = snapshots(pipeline.state(), process.facts().snapshot).waits
            assert said is not None
            assert said.endswith("active sessions are above 30")
            assert ("snapshots", said) in {(one.what, one.reason) for one in process.facts().waits}
            # A look at the catalog has a snapshot too, for milliseconds.
            running.wait_until(lambda: admin.execute(HELD, (database.slot,)).fetchone() == (0,))
            database.execute("UPDATE t SET n = n + 1 WHERE id % 3 = 0")
        running.wait_until(lambda: is_live(pipeline, "t"))
        assert waits(running) is None
    assert len({chunk.snapshot_lsn for chunk in chunks_of(pipeline)}) == 2
    assert pipeline.table("public.t").generation == 1
    assert_equal(pipeline)


def test_a_snapshot_waits_until_the_stream_has_caught_up(pipeline: IngestPipeline, tmp_path: Path) -> None:
    pipeline.execute("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline.publish("a")
    pipeline.run(**CHUNKS)
    gate = tmp_path / "decode.open"
    faults.arm(f"decode.before=hold:{gate}")
    pipeline.execute(
        "INSERT INTO a SELECT generate_series(1, 40000)",
        "CREATE TABLE t (id int PRIMARY KEY)",
        "ALTER PUBLICATION {p} ADD TABLE t",
    )
    with pipeline.running(**limited(stream_lag=1 << 20)) as running:
        running.wait_until(lambda: waits(running) is not None)
        found = waits(running)
        assert found is not None
        assert (found.signals, found.holding) == (("stream_lag",), False)
        gate.touch()
        running.wait_until(lambda: is_live(pipeline, "t"))


def test_a_role_that_cannot_see_sessions_waits_for_the_right_by_its_name(pipeline: IngestPipeline) -> None:
    database = pipeline.database
    database.execute("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    with pipeline_role(database) as role:
        grant(database, role, tables="a")
        source = options_as(database, role)
        with pipeline.running(**limited(active_sessions=100_000), source=source) as running:
            running.wait_until(lambda: waits(running) is not None)
            found = waits(running)
            assert found is not None
            assert "GRANT pg_read_all_stats" in found.reason
            database.execute(f"GRANT pg_read_all_stats TO {role}")
            running.wait_until(lambda: is_live(pipeline, "a"))


def test_a_wait_that_nobody_waits_for_any_more_is_over_and_the_next_one_begins_anew(database: Database) -> None:
    counts = SnapshotCounts()
    limits = LoadLimits(active_sessions=-1)
    with closing(LoadGate(options_of(database), limits, counts=counts, stop=threading.Event())) as gate:
        gate.is_open()
        first = counts.load_wait
        gate.rest()
        between = counts.load_wait
        gate.is_open()
        second = counts.load_wait
    assert between is None
    assert first is not None
    assert second is not None
    assert second.began_at > first.began_at


def test_limits_that_change_while_a_snapshot_waits_hold_for_it_at_once(pipeline: IngestPipeline) -> None:
    pipeline.execute(*SETUP)
    pipeline.publish("t")
    with pipeline.running(**limited(stream_lag=-1)) as running:
        running.wait_until(lambda: waits(running) is not None)
        ingest = running.ingest
        running.call(lambda: ingest.reconfigure(pipeline.options(**limited(active_sessions=-1))))
        running.wait_until(lambda: (found := waits(running)) is not None and found.signals == ("active_sessions",))
        running.call(lambda: ingest.reconfigure(pipeline.options(**limited())))
        running.wait_until(lambda: is_live(pipeline, "t") and waits(running) is None)
    pipeline.run()
    assert_equal(pipeline)

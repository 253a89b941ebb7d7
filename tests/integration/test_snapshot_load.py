"""Snapshots wait while the source is loaded, say why, and are the table afterwards. A process that stands still in the
middle of one gives the source free by itself.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from sluice import faults
from sluice.health.process_state import ProcessState
from sluice.health.snapshots import snapshots
from sluice.ingest.snapshot.load_gate import LoadGate, LoadLimits
from sluice.ingest.status import SnapshotCounts, SnapshotWait
from sluice.telemetry.recent_errors import RecentErrors
from tests.integration.test_snapshot_chunks import CHUNKS, SETUP, assert_equal, chunks_of
from tests.support.extent import slow
from tests.support.ingesting import IngestPipeline, Running
from tests.support.least_rights import grant, options_as, pipeline_role
from tests.support.pipeline import wait_until
from tests.support.source_setup import options_of
from tests.support.sources import Database
from tools.local.sluice import Pipeline, SluiceProcess

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


@slow
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


LOCKS_AND_SNAPSHOTS = """
    SELECT (SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation AND c.relname = 'wide'
        WHERE l.pid <> pg_backend_pid()),
        (SELECT count(*) FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND backend_type = 'client backend'
            AND datname = current_database() AND pid <> pg_backend_pid())"""


def _held(database: Database) -> tuple[int, int]:
    """Locks on the table, and sessions that hold back VACUUM."""
    row = database.one(LOCKS_AND_SNAPSHOTS)
    return int(row[0]), int(row[1])


@pytest.fixture
def reading(database: Database, tmp_path: Path) -> Iterator[tuple[Pipeline, SluiceProcess]]:
    """An ingest that reads initial rows slowly, with the shortest bound there is."""
    database.execute(
        "CREATE TABLE wide (id int PRIMARY KEY, v text)",
        "INSERT INTO wide SELECT i, repeat('x', 1000) FROM generate_series(1, 60000) i",
        "CREATE PUBLICATION {p} FOR TABLE wide",
    )
    source = {"slot": database.slot, "publication": database.publication, "snapshot_hold": "0s"}
    settings = {"source": {**source, "snapshot_connections": 1}}
    pipeline = Pipeline(tmp_path, name="t", dsn=database.dsn, settings=settings)
    held = {"SLUICE_FAULTS": "segment.put.before=delay:3"}
    with pipeline.start("run", environment=held) as process:
        yield pipeline, process


def test_the_server_ends_the_snapshot_of_a_frozen_ingest_and_its_lock(
    reading: tuple[Pipeline, SluiceProcess], database: Database
) -> None:
    pipeline, process = reading
    wait_until(lambda: min(_held(database)) > 0, what="rows are read", processes=(process,))
    os.kill(process.pid, signal.SIGSTOP)
    try:
        wait_until(lambda: _held(database) == (0, 0), what="the source is free", timeout=60)
    finally:
        os.kill(process.pid, signal.SIGCONT)
    wait_until(
        lambda: (
            [table["state"] for table in pipeline.tables()] == ["snapshot"]
            and pipeline.tables()[0]["snapshot_rows"] == 60000
        ),
        what="the table is read",
        processes=(process,),
    )

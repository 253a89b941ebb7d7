"""What ingest shows of itself while a connection is lost and an entry waits for the store."""

import time

import pytest

from sluice import faults
from sluice.errors import DecodeError
from sluice.health.endpoint import Health
from sluice.health.reporter import Reporter
from sluice.telemetry.metrics import Metrics
from tests.integration.test_ingest_acknowledgement import HeldStore
from tests.support.extent import cases
from tests.support.ingesting import IngestPipeline, Running

SECONDS = 8.0


def begin(pipeline: IngestPipeline, held: HeldStore, running: Running) -> None:
    """Streams, and then an entry waits for a store that takes no writes."""
    running.wait_until(lambda: running.ingest is not None and running.ingest.status.connected)
    running.wait_until(lambda: pipeline.table("public.a").state == "live")
    held.closed.set()
    pipeline.database.execute("INSERT INTO a VALUES (1)")
    running.wait_until(held.refused.is_set)


def walsenders(pipeline: IngestPipeline) -> int:
    row = pipeline.database.one(
        "SELECT count(*) FROM pg_replication_slots WHERE active AND slot_name = %s", pipeline.database.slot
    )
    return int(row[0])


@pytest.mark.parametrize("only", cases(["entries", "everything"], quick=["entries"]))
def test_a_lost_connection_is_shown_while_an_entry_waits_for_the_store(pipeline: IngestPipeline, only: str) -> None:
    pipeline.database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline.run()
    held = HeldStore(pipeline.store)
    if only == "entries":
        held.put = pipeline.store.put  # type: ignore[method-assign]
    with IngestPipeline(pipeline.database, held).running() as running:
        try:
            begin(pipeline, held, running)
            pipeline.database.cut_stream()
            assert running.ingest is not None
            status = running.ingest.status
            reporter = Reporter(
                pipeline="test", store=pipeline.store, lake_uri="file:///nowhere", source=pipeline.options().source
            )
            metrics = Metrics("test", max_tables=10)
            observer = pipeline.observer(running.ingest, reporter=reporter, metrics=metrics, health=Health(metrics))
            until = time.monotonic() + SECONDS
            shown = (-1, "", True, "", True)
            while not (shown[0] == 1 or not (shown[2] or shown[4])) and time.monotonic() < until:
                running.call(running.ingest.refresh)
                observer.observe()
                observer.poll_source()
                verdict = observer.verdict()
                shown = (walsenders(pipeline), status.state, status.connected, verdict.state, verdict.carrying)
                time.sleep(0.05)
            observer.close()
            assert shown[0] == 1 or not (status.connected or shown[4]), shown
        finally:
            held.closed.clear()


def test_a_fatal_error_is_shown_while_an_entry_waits_for_the_store(pipeline: IngestPipeline) -> None:
    pipeline.database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline.run()
    held = HeldStore(pipeline.store)
    held.put = pipeline.store.put  # type: ignore[method-assign]
    with pytest.raises(DecodeError), IngestPipeline(pipeline.database, held).running() as running:
        _fail_while_an_entry_waits(pipeline, held, running)


def _fail_while_an_entry_waits(pipeline: IngestPipeline, held: HeldStore, running: Running) -> None:
    try:
        begin(pipeline, held, running)
        faults.arm("decode.before=raise:DecodeError")
        pipeline.database.execute("INSERT INTO a VALUES (2)")
        assert running.ingest is not None
        status = running.ingest.status
        until = time.monotonic() + 60
        while running.thread.is_alive() and status.connected and time.monotonic() < until:
            time.sleep(0.05)
        assert (status.state, status.connected) == ("failed", False)
    finally:
        faults.arm("")
        held.closed.clear()

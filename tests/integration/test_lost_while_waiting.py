"""What ingest shows of itself while a connection is lost and an entry waits for the store."""

import time

import pytest

from sluice import faults
from sluice.errors import DecodeError
from sluice.health.endpoint import Health
from sluice.telemetry.metrics import Metrics
from tests.support.extent import cases
from tests.support.forwarding import HeldStore
from tests.support.ingesting import IngestPipeline, Running

SECONDS = 8.0


def begin(pipeline: IngestPipeline, held: HeldStore, running: Running) -> None:
    """Streams, and then an entry waits for a store that takes no writes."""
    running.wait_until_connected()
    running.wait_until(lambda: pipeline.table("public.a").state == "live")
    held.closed.set()
    pipeline.execute("INSERT INTO a VALUES (1)")
    running.wait_until(held.refused.is_set)


@pytest.mark.parametrize("only", cases(["entries", "everything"], quick=["entries"]))
def test_a_lost_connection_is_shown_while_an_entry_waits_for_the_store(pipeline: IngestPipeline, only: str) -> None:
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)")
    held = HeldStore(pipeline.store, files=only == "entries")
    with IngestPipeline(pipeline.database, held).running() as running:
        try:
            begin(pipeline, held, running)
            pipeline.database.cut_stream()
            status = running.status
            metrics = Metrics("test", max_tables=10)
            reporter = pipeline.reporter(pipeline.options().source)
            observer = pipeline.observer(running.ingest, reporter=reporter, metrics=metrics, health=Health(metrics))
            walsenders = "SELECT count(*) FROM pg_replication_slots WHERE active AND slot_name = %s"
            until = time.monotonic() + SECONDS
            shown = (-1, "", True, "", True)
            while not (shown[0] == 1 or not (shown[2] or shown[4])) and time.monotonic() < until:
                running.call(running.ingest.refresh)
                observer.observe()
                observer.poll_source()
                verdict = observer.verdict()
                (active,) = pipeline.database.one(walsenders, pipeline.database.slot)
                shown = (active, status.state, status.connected, verdict.state, verdict.carrying)
                time.sleep(0.05)
            observer.close()
            assert shown[0] == 1 or not (status.connected or shown[4]), shown
        finally:
            held.closed.clear()


def test_a_fatal_error_is_shown_while_an_entry_waits_for_the_store(pipeline: IngestPipeline) -> None:
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)")
    held = HeldStore(pipeline.store, files=True)
    with pytest.raises(DecodeError), IngestPipeline(pipeline.database, held).running() as running:
        _fail_while_an_entry_waits(pipeline, held, running)


def _fail_while_an_entry_waits(pipeline: IngestPipeline, held: HeldStore, running: Running) -> None:
    try:
        begin(pipeline, held, running)
        faults.arm("decode.before=raise:DecodeError")
        pipeline.execute("INSERT INTO a VALUES (2)")
        status = running.status
        until = time.monotonic() + 60
        while running.thread.is_alive() and status.connected and time.monotonic() < until:
            time.sleep(0.05)
        assert (status.state, status.connected) == ("failed", False)
    finally:
        held.closed.clear()

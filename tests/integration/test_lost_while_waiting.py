"""What ingest shows of itself while it waits: for the server, for the store, for transactions of others; and what
becomes of requests meanwhile.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sluice import faults
from sluice.contract import keys
from sluice.contract.control import PAUSE, RESYNC
from sluice.errors import DecodeError
from sluice.health.endpoint import Health
from sluice.health.export.observer import Observer
from sluice.telemetry.metrics import Metrics
from tests.support.extent import cases, slow
from tests.support.forwarding import HeldStore
from tests.support.ingesting import IngestPipeline, Running
from tests.support.sources import fresh_database
from tools.local.postgres import temporary_server

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


@contextmanager
def observed(pipeline: IngestPipeline, running: Running) -> Iterator[Observer]:
    metrics = Metrics("test")
    observer = pipeline.observer(running.ingest, reporter=pipeline.reporter(), metrics=metrics, health=Health(metrics))
    try:
        yield observer
    finally:
        observer.close()


def waits(observer: Observer) -> dict[str, dict[str, Any]]:
    return {one["what"]: one for one in observer.status()["waits"]}


def test_a_slot_that_waits_for_an_older_transaction_names_it_and_how_long_it_is_open(pipeline: IngestPipeline) -> None:
    pipeline.execute("CREATE TABLE a (id int PRIMARY KEY)")
    with pipeline.database.connect() as older:
        older.execute("SET application_name = 'report of the night'")
        older.execute("BEGIN")
        older.execute("INSERT INTO a VALUES (1)")
        with pipeline.running() as running, observed(pipeline, running) as observer:
            running.wait_until(lambda: "the new replication slot" in waits(observer))
            said = waits(observer)["the new replication slot"]
            assert f"process {older.info.backend_pid} (report of the night), open for" in said["reason"]
            assert (said["for_seconds"] >= 0, said["retry_in_seconds"]) == (True, None)
            older.execute("COMMIT")
            running.wait_until(lambda: [one.state for one in pipeline.state().tables.values()] == ["live"])
            assert waits(observer) == {}


def test_a_source_that_is_away_is_tried_again_at_a_time_that_is_said(pipeline: IngestPipeline) -> None:
    away = IngestPipeline(pipeline.database, pipeline.store, dsn="postgresql://127.0.0.1:1/none")
    with away.running() as running, observed(away, running) as observer:
        running.wait_until(lambda: "the connection to the source" in waits(observer))
        (said,) = running.status.waits.now()
        assert said.retry_at is not None
        assert said.since is not None
        assert said.retry_at > said.since


@slow
def test_a_pause_is_taken_while_the_server_is_down_and_a_resync_says_what_it_waits_for(
    pipeline: IngestPipeline,
) -> None:
    with temporary_server() as server, fresh_database(server) as database:
        away = IngestPipeline(database, pipeline.store)
        database.execute(
            "CREATE TABLE a (id int PRIMARY KEY)",
            "CREATE TABLE b (id int PRIMARY KEY)",
            "CREATE PUBLICATION {p} FOR TABLE a, b",
        )
        away.run()
        with away.running(watch_interval_s=0.5) as running:
            running.wait_until(lambda: running.status.state == "streaming")
            waits = running.status.waits
            server.stop("immediate")
            away.request(RESYNC, table="b", place="1")
            away.request(PAUSE, table="a", place="2")
            running.wait_until(lambda: away.table("public.a").paused is not None)
            running.wait_until(lambda: any("resync public.b" in one.reason for one in waits.now()))
            server.start()
            running.wait_until(lambda: away.table("public.b").generation == 2, seconds=120)
            running.wait_until(lambda: not any("public.b" in one.reason for one in waits.now()))
        assert list(away.store.list(keys.CONTROL)) == []


def test_a_request_to_an_ingest_that_has_not_reached_the_server_is_said_by_name(pipeline: IngestPipeline) -> None:
    away = IngestPipeline(pipeline.database, pipeline.store, dsn="postgresql://127.0.0.1:1/none")
    away.request(PAUSE, table="orders")
    with away.running() as running:
        running.wait_until(lambda: any("pause public.orders" in one.reason for one in running.status.waits.now()))
    assert len(list(away.store.list(keys.CONTROL))) == 1

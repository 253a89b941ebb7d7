"""What ingest waits for is on /status by name while it lasts, and gone when it has ended."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sluice.health.endpoint import Health
from sluice.health.export.observer import Observer
from sluice.telemetry.metrics import Metrics
from tests.support.ingesting import IngestPipeline, Running


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

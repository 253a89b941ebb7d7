"""The report against a real server: a slot that lost changes is shown as lost, and one that is read
while it moves is not.
"""

import dataclasses
import time

import pytest

from sluice.errors import StoreUnavailable
from sluice.health.endpoint import Health
from sluice.health.report import Report
from sluice.health.reporter import Reporter
from sluice.ingest.supervisor import Ingest
from sluice.store.base import ObjectStore
from sluice.telemetry.metrics import Metrics
from tests.support.extent import slow
from tests.support.ingesting import IngestPipeline
from tests.support.sources import Database


@pytest.fixture
def reporter(pipeline: IngestPipeline) -> Reporter:
    return pipeline.reporter(pipeline.options().source)


def grievances(report: Report) -> list[str]:
    return [problem.message.partition(":")[0] for problem in report.verdict.problems if problem.part == "slot"]


class Failing:
    """A store that a test can make silent."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.away = False

    def __getattr__(self, name: str) -> object:
        if self.away:
            raise StoreUnavailable("the store does not answer")
        return getattr(self._inner, name)


def test_a_slot_that_is_lost_while_the_store_is_away_is_lost_in_the_verdict_too(
    pipeline: IngestPipeline, database: Database
) -> None:
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)")
    store, metrics = Failing(pipeline.store), Metrics("test")
    reporter = dataclasses.replace(pipeline, store=store).reporter(pipeline.options().source)  # type: ignore[arg-type]
    ingest = Ingest(pipeline.options(), pipeline.store)
    observer = pipeline.observer(ingest, reporter=reporter, metrics=metrics, health=Health(metrics))
    assert observer.verdict().state == "unknown", "nothing was read yet"
    observer.observe()
    assert observer.verdict().state == "stopped", "this process has not begun to stream"
    store.away = True
    database.execute(f"SELECT pg_drop_replication_slot('{database.slot}')")
    deadline = time.monotonic() + 60
    while "spool.away" not in {problem.code for problem in observer.verdict().problems}:
        observer.observe()  # a look may be a second old
        assert time.monotonic() < deadline
    observer.poll_source()
    verdict = observer.verdict()
    assert (verdict.state, [problem.code for problem in verdict.problems if problem.severity == "critical"][:2]) == (
        "lost",
        ["slot.lost", "spool.away"],
    )
    observer.count()
    observer.export_verdict()
    text = metrics.render().decode()
    assert 'sluice_health{pipeline="test",state="lost"} 1.0' in text
    assert 'sluice_problems{code="slot.lost",pipeline="test"} 1.0' in text
    observer.close()


def test_a_spool_that_vanishes_under_an_idle_ingest_is_unreadable(
    pipeline: IngestPipeline, database: Database, reporter: Reporter
) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    ingest, metrics = pipeline.run(), Metrics("test")
    observer = pipeline.observer(ingest, reporter=reporter, metrics=metrics, health=Health(metrics))
    observer.observe()
    assert "spool.unreadable" not in {problem.code for problem in observer.verdict().problems}
    for key in list(pipeline.store.list("")):
        pipeline.store.delete(key)
    deadline = time.monotonic() + 10
    while "spool.unreadable" not in {problem.code for problem in observer.verdict().problems}:
        observer.observe()  # a look may be a second old
        assert time.monotonic() < deadline
    assert {problem["code"] for problem in observer.status()["problems"]} >= {"spool.unreadable"}
    observer.close()


@slow
def test_a_slot_that_moves_while_it_is_looked_at_is_not_lost(
    pipeline: IngestPipeline, database: Database, reporter: Reporter
) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    with pipeline.running() as running:
        running.wait_until(lambda: running.status.state == "streaming")
        for number in range(40):
            database.execute(f"INSERT INTO a VALUES ({number})")
            report = reporter.take()
            assert (report.verdict.carrying, grievances(report)) == (True, [])
    stages = {stage.stage: stage for stage in reporter.take().stages}
    assert stages["flushed"].lsn == reporter.take().manifest.through_lsn
    assert stages["received"].lsn is None
    assert stages["flushed"].behind_seconds is not None

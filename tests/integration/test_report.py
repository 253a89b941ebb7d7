"""The report against a real server: a slot that lost changes is told as lost, and one that is read while it moves is not."""

from pathlib import Path

import pytest

from service.runtime.report import Report, Reporter
from tests.support.ingesting import Pipeline
from tests.support.sources import Database


@pytest.fixture
def reporter(pipeline: Pipeline, tmp_path: Path) -> Reporter:
    return Reporter(pipeline="test", store=pipeline.store, lake_uri=tmp_path.as_uri(), source=pipeline.options().source)


def grievances(report: Report) -> list[str]:
    return [problem.message.partition(":")[0] for problem in report.verdict.problems if problem.part == "slot"]


def test_a_slot_that_was_dropped_or_made_anew_is_lost(pipeline: Pipeline, database: Database, reporter: Reporter) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    pipeline.run()
    assert reporter.take().verdict.state == "stopped"
    database.execute(f"SELECT pg_drop_replication_slot('{database.slot}')")
    assert (reporter.take().verdict.state, grievances(reporter.take())) == ("lost", ["MISSING"])
    database.execute("INSERT INTO a VALUES (2)", f"SELECT pg_create_logical_replication_slot('{database.slot}', 'pgoutput')")
    anew = reporter.take()
    assert (anew.verdict.state, grievances(anew)) == ("lost", ["AHEAD"])
    assert anew.to_json()["problems"][0]["what_to_do"]


def test_a_slot_that_moves_while_it_is_looked_at_is_not_lost(pipeline: Pipeline, database: Database, reporter: Reporter) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    with pipeline.running() as running:
        running.wait_until(lambda: running.ingest is not None and running.ingest.view.state == "streaming")
        for number in range(40):
            database.execute(f"INSERT INTO a VALUES ({number})")
            report = reporter.take()
            assert (report.verdict.carrying, grievances(report)) == (True, [])
    stages = {stage.stage: stage for stage in reporter.take().stages}
    assert stages["flushed"].lsn == reporter.take().manifest.through_lsn
    assert stages["received"].lsn is None
    assert stages["flushed"].behind_seconds is not None


def test_headroom_is_what_the_server_says(pipeline: Pipeline, database: Database, reporter: Reporter) -> None:
    database.execute("CREATE TABLE a (id int PRIMARY KEY)")
    pipeline.run()
    room = reporter.take().headroom
    assert room is not None
    assert room.retained_bytes >= 0
    assert room.safe_bytes is None, "the test server sets no limit"

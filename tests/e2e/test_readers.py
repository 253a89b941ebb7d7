"""Readers of a lake that changes: every boundary that is offered is one moment of the source, and who waits for a
position never reads what was there before it, while processes are killed, tables resynced and files put in order.
"""

import json
import os
import random
import re
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession

from sluice_lake import Lake
from tests.e2e.readers import SUM, TOTAL, Transfers, bank, endpoint_says_so, lake_of, newest_of, read_once, reading
from tests.support.extent import FULL, slow
from tests.support.pipeline import must, wait_until
from tests.support.sources import Database, fresh_database
from tools.local.ports import free_port
from tools.local.postgres import PostgresServer
from tools.local.sluice import Pipeline, SluiceProcess

pytestmark = pytest.mark.timeout(1800)
KILLS, LOOPS = (12, 600) if FULL else (0, 8)
TIMEOUT_SECONDS = 500.0


def _published(lake: Lake, process: SluiceProcess, *, whole: bool = True) -> int:
    """Waits for a boundary later than the one now, with both tables. Its number."""
    known = newest_of(lake)
    before = known.number if known is not None else 0

    def later() -> bool:
        newest = newest_of(lake)
        return newest is not None and newest.number > before and (not whole or len(newest.tables) >= 2)

    wait_until(later, what="another boundary", processes=(process,), timeout=TIMEOUT_SECONDS)
    return lake.newest().number


@slow
def test_the_sum_is_constant_at_every_boundary_through_kills_resyncs_and_maintenance(
    database: Database, tmp_path: Path, spark: SparkSession
) -> None:
    """Read by Arrow, DuckDB and Spark. Every boundary that was ever published is still there at the end."""
    pipeline, choice = bank(database, tmp_path), random.Random(28)
    lake = lake_of(pipeline)
    transfers = Transfers(database.dsn)
    with transfers.going_on(), reading(lake, seed=1) as seen:
        process = pipeline.start("up")
        _published(lake, process)
        for kill in range(KILLS):
            must(pipeline, "resync", choice.choice(["public.checking", "public.savings"]))
            if kill % 2 == 0:
                process.kill()
            else:
                os.kill(process.pid, signal.SIGTERM)
                process.wait(TIMEOUT_SECONDS)
            process = pipeline.start("up")
            _published(lake, process)
        with process:
            _published(lake, process)
    assert seen.wrong == []
    assert transfers.count > 50
    offered = lake.boundaries()
    numbers = [one.number for one in offered]
    assert numbers == list(range(numbers[0], numbers[-1] + 1)), "a boundary is missing"
    assert [one.lsn for one in offered] == sorted(one.lsn for one in offered)
    assert [one.time for one in offered] == sorted(one.time for one in offered)
    both = [one for one in offered if len({table.table for table in one.tables} & {"checking", "savings"}) == 2]
    assert len(both) > KILLS
    for boundary in both:
        read_once(lake.as_of(lsn=boundary.lsn), seen)
    assert seen.wrong == []
    for boundary in choice.sample(both, min(len(both), 40 if FULL else 6)):
        lake.as_of(lsn=boundary.lsn).spark(spark, tables=["checking", "savings"])
        assert spark.sql(SUM).collect()[0][0] == TOTAL


@dataclass
class Served:
    """A pipeline whose applier answers at `port`, and the process that runs it, which is killed in between."""

    database: Database
    pipeline: Pipeline
    port: int
    process: SluiceProcess


@pytest.fixture(scope="module")
def served(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with fresh_database(postgres) as database:
        port = free_port()
        pipeline = bank(database, tmp_path_factory.mktemp("served"), telemetry={"apply_listen": f"127.0.0.1:{port}"})
        lake_of(pipeline)
        early = pipeline.run("query", "SELECT 1")
        assert (early.returncode, "offers no boundary" in early.stderr) == (75, True)
        found = Served(database, pipeline, port, pipeline.start("up"))
        try:
            _published(lake_of(pipeline), found.process)
            yield found
        finally:
            found.process.stop()


@slow
def test_who_waits_for_a_position_never_reads_what_was_there_before_it(served: Served) -> None:
    """By the package, the command and the endpoint, while the pipeline is killed and started again. One loop after the
    other: tests/chaos/test_read_your_writes.py has many side by side.
    """
    pipeline, lake, choice = served.pipeline, lake_of(served.pipeline), random.Random(29)
    kills = {choice.randrange(LOOPS // 4, LOOPS) for _ in range(KILLS)}
    with closing(psycopg.connect(served.database.dsn, autocommit=True)) as application:
        for loop in range(LOOPS):
            if loop in kills:
                served.process.kill()
                served.process = pipeline.start("up")
            application.execute("UPDATE checking SET note = %s WHERE id = 1", (str(loop),))
            row = application.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
            assert row is not None
            _wait_by_one_of_three_ways(pipeline, lake, served.port, str(row[0]), loop)
            found = lake.as_of().arrow("checking", columns=["note"], where="id = 1")["note"].to_pylist()
            assert int(found[0]) >= loop, "a stale read"


def _wait_by_one_of_three_ways(pipeline: Pipeline, lake: Lake, port: int, position: str, loop: int) -> None:
    if loop % 20 == 7:
        must(pipeline, "wait", "--lsn", position, "--timeout", "500s", "public.checking")
    elif loop % 2 == 0 or not endpoint_says_so(port, position):
        lake.wait_for(position, timeout=TIMEOUT_SECONDS)


def test_the_commands_that_read_say_what_they_read_and_how_it_failed(served: Served) -> None:
    pipeline = served.pipeline
    assert json.loads(must(pipeline, "wait", "--now", "--json", "public.checking", "public.savings"))["left_out"] == {}
    assert pipeline.run("wait", "--lsn", "FFF/0", "--timeout", "100ms").returncode == 75
    assert pipeline.run("wait").returncode == 2
    assert pipeline.run("wait", "--lsn", "nonsense").returncode == 2
    served.process.stop()
    shown = pipeline.run("query", SUM)
    assert (shown.returncode, str(TOTAL) in shown.stdout) == (0, True), shown.stderr
    position = re.findall(r"as of ([0-9A-F]+/[0-9A-F]+)", shown.stderr)[0]
    for moment, form in (product if FULL else zip)((position, "latest"), ("csv", "json")):
        assert str(TOTAL) in must(pipeline, "query", SUM, "--as-of", moment, "-o", form)
    assert pipeline.run("query", SUM, "--as-of", "FFF/0").returncode == 75
    expired = pipeline.run("query", SUM, "--as-of", "0/1")
    assert (expired.returncode, "does not offer 0/1" in expired.stderr) == (2, True), expired.stderr
    mistakes = ("SELEC", "syntax"), ("SELECT * FROM nothing", "nothing"), ("SELECT x FROM savings", "x")
    for wrong, says in mistakes if FULL else mistakes[:1]:
        refused = pipeline.run("query", wrong)
        assert (refused.returncode, says in refused.stderr) == (2, True), refused.stderr
    quoting = pipeline.run("query", "SELECT note::int FROM savings")
    assert (quoting.returncode, "xxx" in quoting.stderr) == (2, False), quoting.stderr

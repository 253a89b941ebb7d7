"""Requests of operators while PostgreSQL is away, or was never reached."""

from sluice.contract import keys
from sluice.contract.control import PAUSE, RESYNC
from tests.support.ingesting import IngestPipeline
from tests.support.sources import fresh_database
from tools.local.postgres import temporary_server


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

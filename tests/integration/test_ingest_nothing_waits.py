"""Manifest entries that cannot be stored for a while: nobody waits who need not, and all is stored in order."""

from typing import Any

from sluice.contract import keys
from sluice.contract.control import PAUSE
from sluice.contract.entries import Changes
from sluice.ingest.options import FlushPolicy
from tests.support.forwarding import HeldStore
from tests.support.ingesting import IngestPipeline


def test_rows_looks_and_requests_go_on_while_a_change_of_shape_cannot_be_stored(pipeline: IngestPipeline) -> None:
    database = pipeline.database
    pipeline.run(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY)",
        "CREATE TABLE c (id int PRIMARY KEY)",
    )
    store = HeldStore(pipeline.store, files=True)
    beside = IngestPipeline(database, store)
    with beside.running(flush=FlushPolicy(max_delay_s=3600, min_interval_s=3600), watch_interval_s=0.2) as running:
        running.wait_until(lambda: running.status.state == "streaming")
        status, epoch = running.status, running.ingest._epoch
        assert epoch is not None
        known = len(pipeline.entries())

        def decided(name: str) -> Any:
            return next(table for table in epoch.tables.states().values() if table.table_name == name)

        store.closed.set()
        database.execute("ALTER TABLE a ADD COLUMN v int", "INSERT INTO a VALUES (1, 1)")
        running.wait_until(lambda: decided("a").schema_version == 2)
        before = status.stream.transactions
        pipeline.request(PAUSE, table="b")
        running.wait_until(lambda: decided("b").paused is not None)
        database.execute("INSERT INTO c SELECT generate_series(1, 50)")
        running.wait_until(lambda: status.stream.transactions > before)
        running.wait_until(store.refused.is_set)
        assert len(pipeline.entries()) == known
        assert len(list(pipeline.store.list(keys.CONTROL))) == 1, "a request stays until what it asked for is stored"
        store.closed.clear()
        running.wait_until(lambda: pipeline.table("public.b").paused is not None)
        running.wait_until(lambda: list(pipeline.store.list(keys.CONTROL)) == [])
    [changed] = [
        entry.body
        for entry in pipeline.entries()
        if any(table.schema_name == "public" for table in entry.tables) and isinstance(entry.body, Changes)
    ]
    assert [table.table_name for table in changed.tables] == ["a"]
    assert {
        segment.schema_version for segment in changed.segments if segment.table_id == changed.tables[0].table_id
    } == {2}
    assert [row["v"] for row in pipeline.rows("public.a")] == [1]
    assert len(pipeline.rows("public.c")) == 50

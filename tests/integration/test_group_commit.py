"""When a manifest entry is written: at once where none is under way, else for all that ended meanwhile; and no
sooner after another than `spool.min_interval` says. Nobody waits for one who need not.
"""

from typing import Any

from sluice.contract import keys
from sluice.contract.control import PAUSE
from sluice.contract.entries import Changes
from sluice.ingest.options import FlushPolicy
from sluice.ingest.receive.stream import StreamLimits
from tests.support.forwarding import HeldStore
from tests.support.ingesting import IngestPipeline

HOUR = 3600.0
TIMELESS: dict[str, Any] = {"stream": StreamLimits(max_delay_s=HOUR), "watch_interval_s": HOUR}


def transactions(pipeline: IngestPipeline) -> list[int]:
    """How many each entry has, of those that have any."""
    counts = [len(entry.body.commits) for entry in pipeline.entries() if isinstance(entry.body, Changes)]
    return [count for count in counts if count]


def received(pipeline: IngestPipeline, position: str) -> bool:
    """Whether ingest has reported to the server that it received everything before `position`."""
    asked = "SELECT write_lsn >= %s::pg_lsn FROM pg_stat_replication WHERE application_name = %s"
    return pipeline.database.all(asked, position, pipeline.database.slot) == [(True,)]


def test_a_transaction_waits_for_nothing_where_no_entry_is_under_way(pipeline: IngestPipeline) -> None:
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)")
    before = len(transactions(pipeline))
    with pipeline.running(flush=FlushPolicy(max_delay_s=HOUR), **TIMELESS) as running:
        for number in range(1, 4):
            pipeline.execute(f"INSERT INTO a VALUES ({number})")
            running.wait_until(lambda number=number: len(transactions(pipeline)) == before + number)
    assert transactions(pipeline)[before:] == [1, 1, 1]


def test_transactions_that_end_while_an_entry_is_under_way_share_the_next_one(pipeline: IngestPipeline) -> None:
    database = pipeline.database
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)")
    before = len(transactions(pipeline))
    store = HeldStore(pipeline.store, files=True)
    beside = IngestPipeline(database, store)
    with beside.running(flush=FlushPolicy(max_delay_s=HOUR), **TIMELESS) as running:
        running.wait_until(lambda: running.status.state == "streaming")
        counts = running.status.stream
        store.closed.set()
        database.execute("INSERT INTO a VALUES (0)")
        running.wait_until(store.refused.is_set)
        with database.connect() as connection:
            for number in range(1, 101):
                connection.execute(b"INSERT INTO a VALUES (%s)", (number,))
        assert len(transactions(pipeline)) == before
        store.closed.clear()
        running.wait_until(lambda: sum(transactions(pipeline)[before:]) >= 101)
        assert counts.flushes["idle"] >= 2
        assert counts.flushes["age"] == 0
    assert transactions(pipeline)[before] == 1
    assert transactions(pipeline)[before + 1] >= 100


def test_no_entry_is_written_sooner_after_another_than_the_least_interval(pipeline: IngestPipeline) -> None:
    database = pipeline.database
    pipeline.run("CREATE TABLE a (id int PRIMARY KEY)")
    before = len(transactions(pipeline))
    with pipeline.running(flush=FlushPolicy(max_delay_s=HOUR, min_interval_s=HOUR), **TIMELESS) as running:
        begun = pipeline.wal_end()
        running.wait_until(lambda: received(pipeline, begun))
        for number in range(1, 4):
            database.execute(f"INSERT INTO a VALUES ({number})")
        end = pipeline.wal_end()
        running.wait_until(lambda: received(pipeline, end))
        assert len(transactions(pipeline)) == before
    assert sum(transactions(pipeline)[before:]) == 3, "a stop publishes what waits"


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

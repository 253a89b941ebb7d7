"""When a manifest entry is written: at once where none is under way, else for all that ended meanwhile; and no
sooner after another than `spool.min_interval` says.
"""

import threading
from typing import Any

from sluice.contract import keys
from sluice.contract.entries import Changes
from sluice.ingest.options import FlushPolicy
from sluice.ingest.receive.stream import StreamLimits
from sluice.store.base import ObjectStore
from tests.support.forwarding import Forwarding
from tests.support.ingesting import IngestPipeline

HOUR = 3600.0
TIMELESS: dict[str, Any] = {"stream": StreamLimits(max_delay_s=HOUR), "watch_interval_s": HOUR}


class Held(Forwarding):
    """The pipeline's store, which takes entries of the manifest only while it is open."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.open = threading.Event()
        self.open.set()
        self.waits = threading.Event()

    def create(self, key: str, data: bytes | memoryview) -> None:
        if key.startswith(keys.MANIFEST) and not self.open.is_set():
            self.waits.set()
            assert self.open.wait(60)
        super().create(key, data)


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
    store = Held(pipeline.store)
    beside = IngestPipeline(database, store)
    with beside.running(flush=FlushPolicy(max_delay_s=HOUR), **TIMELESS) as running:
        running.wait_until(lambda: running.status.state == "streaming")
        counts = running.status.stream
        store.open.clear()
        database.execute("INSERT INTO a VALUES (0)")
        running.wait_until(store.waits.is_set)
        with database.connect() as connection:
            for number in range(1, 101):
                connection.execute(b"INSERT INTO a VALUES (%s)", (number,))
        assert len(transactions(pipeline)) == before
        store.open.set()
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

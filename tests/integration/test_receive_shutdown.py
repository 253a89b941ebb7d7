"""A fast shutdown of the server while a stream reads: it is never held up, whatever the consumer does."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from sluice.errors import SourceError, SourceUnavailable
from sluice.ingest.receive.stream import ReplicationStream
from tests.support.extent import slow
from tests.support.sources import Database
from tests.support.streaming import QUICK, opened, prepare
from tools.local.postgres import PostgresServer, temporary_server


def stopped_while(
    consume: Callable[[ReplicationStream], Awaitable[None]], *, rows: int = 10
) -> tuple[float, SourceError]:
    """Seconds that a fast shutdown took while `consume` ran, and the error that ended the stream."""

    async def scenario(server: PostgresServer) -> tuple[float, SourceError]:
        database = Database(server, name="postgres", slot="stopping", publication="stopping")
        options, start = prepare(database)
        database.execute(f"INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, {rows}) i")
        stream = await opened(options, start, replace(QUICK, batch_bytes=256 * 1024))
        stream.acknowledge(start)  # the server waits for nobody who has acknowledged nothing
        consuming = asyncio.ensure_future(consume(stream))
        await asyncio.sleep(0.3)
        began = time.monotonic()
        await asyncio.to_thread(server.stop, "fast")
        took = time.monotonic() - began
        with pytest.raises(SourceError) as caught:
            await asyncio.wait_for(consuming, 10)
        await stream.close()
        return took, caught.value

    with temporary_server() as server:
        return asyncio.run(scenario(server))


def test_a_fast_shutdown_ends_quickly_when_everything_is_acknowledged() -> None:
    async def consume(stream: ReplicationStream) -> None:
        while True:
            batch = await stream.next_batch()
            if batch.flush or batch.shutdown:
                stream.acknowledge(batch.received_lsn)

    took, error = stopped_while(consume)
    assert took < 5
    assert isinstance(error, SourceUnavailable)
    assert "stopping" in str(error) or "lost" in str(error)


def test_a_sink_that_never_acknowledges_holds_a_fast_shutdown_for_seconds_only() -> None:
    shutdowns = []

    async def consume(stream: ReplicationStream) -> None:
        while True:
            batch = await stream.next_batch()
            if batch.shutdown:
                assert batch.flush
                shutdowns.append(batch)

    took, error = stopped_while(consume)
    assert took < 15
    assert shutdowns
    assert isinstance(error, SourceUnavailable)


@slow
def test_a_reader_that_is_stuck_holds_a_fast_shutdown_for_seconds_only() -> None:
    async def consume(stream: ReplicationStream) -> None:
        await stream.next_batch()
        while True:  # back-pressure: nobody asks for more
            if stream.closed:
                await stream.next_batch()
            await asyncio.sleep(0.05)

    took, error = stopped_while(consume, rows=60000)
    assert took < 15
    assert isinstance(error, SourceUnavailable)

"""The replication stream against a real server: liveness, acknowledgement, shutdown, and what ends
it. A fast shutdown of the server is never held up, whatever the consumer does.

Servers that a test stops or configures are its own; the others share the run's.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from sluice.errors import ProtocolViolation, SlotBusy, SourceError, SourceUnavailable
from sluice.ingest.receive.stream import ReplicationStream, StreamLimits
from sluice.source.sessions import SourceOptions
from sluice.source.slot_facts import slot_facts
from tests.support.extent import slow
from tests.support.pgproxy import Direction, PgProxy
from tests.support.sources import Database
from tests.support.streaming import QUICK, asynchronous, opened, prepare, read_until, tags
from tools.local.postgres import PostgresServer, temporary_server


@asynchronous
async def test_transactions_arrive_in_wire_order_and_the_acknowledgement_reaches_the_server(database: Database) -> None:
    options, start = prepare(database)
    stream = await opened(options, start)
    database.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')", "DELETE FROM t WHERE id = 1")
    batches = await read_until(stream, lambda seen: tags(seen).count("C") == 2)
    assert tags(batches) == "BRIICBDC"
    assert batches[-1].flush
    stream.acknowledge(batches[-1].received_lsn)
    await stream.close()
    assert confirmed(options, database) == batches[-1].received_lsn


def confirmed(options: SourceOptions, database: Database) -> int | None:
    with database.connect() as connection:
        facts = slot_facts(connection, options.slot)
    assert facts is not None
    return facts.confirmed_flush_lsn


@asynchronous
async def test_an_acknowledgement_neither_goes_back_nor_past_what_was_received(database: Database) -> None:
    options, start = prepare(database)
    stream = await opened(options, start)
    for position in (stream.received_lsn + 1, start - 1):
        with pytest.raises(ProtocolViolation):
            stream.acknowledge(position)
    assert stream.flushed_lsn == 0, "where a stream begins is acknowledged when the caller says so"
    stream.acknowledge(start)
    assert stream.flushed_lsn == start
    await stream.close()


@slow
@asynchronous
async def test_the_connection_outlives_a_reader_that_pauses_far_longer_than_wal_sender_timeout() -> None:
    with temporary_server(settings={"wal_sender_timeout": "1s"}) as server:
        database = Database(server, name="postgres", slot="pausing", publication="pausing")
        # More than socket buffers hold.
        options, start = prepare(database)
        database.execute("INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 60000) i")
        stream = await opened(options, start, replace(QUICK, batch_bytes=4096))
        await stream.next_batch()
        await asyncio.sleep(3.5)  # the pause itself is what is tested
        batches = await read_until(stream, lambda seen: "C" in tags(seen[-1:]))
        assert tags(batches).count("I") > 50000
        await stream.close()


@asynchronous
async def test_one_stream_at_a_time_and_closing_frees_the_slot_at_once(database: Database) -> None:
    options, start = prepare(database)
    stream = await opened(options, start)
    with pytest.raises(SlotBusy, match=options.slot):
        await opened(options, start)
    await stream.close()
    deadline = time.monotonic() + 5
    while True:
        try:
            second = await opened(options, start)
            break
        except SlotBusy:
            assert time.monotonic() < deadline
    await second.close()
    with pytest.raises(SourceUnavailable):
        await second.next_batch()


@asynchronous
async def test_another_server_behind_the_address_is_noticed_before_anything_streams(database: Database) -> None:
    options, start = prepare(database)
    with pytest.raises(SourceUnavailable, match="not the one that was just checked"):
        await opened(options, start, expect=("1", 1))


@asynchronous
async def test_asking_for_a_flush_ends_the_wait_at_once(database: Database) -> None:
    options, start = prepare(database)
    stream = await opened(options, start, StreamLimits(max_delay_s=60))
    waiting = asyncio.ensure_future(stream.next_batch())
    await asyncio.sleep(0)
    stream.ask_flush()
    batch = await asyncio.wait_for(waiting, 5)
    assert batch.flush
    assert not batch.shutdown
    await stream.close()


async def _free(options: SourceOptions, database: Database) -> None:
    async with asyncio.timeout(10):
        while True:
            with database.connect() as connection:
                facts = slot_facts(connection, options.slot)
            if facts is not None and facts.active_pid is None:
                return
            await asyncio.sleep(0.02)


@asynchronous
async def test_the_last_acknowledgement_arrives_though_the_server_is_in_the_middle_of_sending(
    database: Database,
) -> None:
    options, start = prepare(database, "INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 20000) i")
    database.execute("DELETE FROM t WHERE id = 1")
    stream = await opened(options, start)
    first = await read_until(stream, lambda seen: "C" in tags(seen))
    # More than fits into any buffer is on its way, and nobody reads it.
    database.execute("UPDATE t SET body = body || 'y'")
    await read_until(stream, lambda seen: "U" in tags(seen))
    stream.acknowledge(first[-1].received_lsn)
    await stream.close()
    await _free(options, database)
    assert confirmed(options, database) == first[-1].received_lsn


@asynchronous
async def test_closing_twice_is_harmless_and_leaves_no_session_behind(database: Database) -> None:
    options, start = prepare(database)
    stream = await opened(options, start)
    await stream.close()
    await stream.close()
    await _free(options, database)
    ours = "application_name = 'sluice_test' AND backend_type = 'walsender'"
    assert database.one(f"SELECT count(*) FROM pg_stat_activity WHERE {ours}") == (0,)


@asynchronous
async def test_a_connection_that_swallows_everything_is_noticed_although_nothing_breaks(database: Database) -> None:
    options, start = prepare(database)
    with PgProxy(database.server.port) as proxy:
        through = replace(options, dsn=proxy.dsn(dbname=database.name))
        stream = await opened(through, start, replace(QUICK, read_deadline_s=1.0))
        database.execute("INSERT INTO t VALUES (1, 'a')")
        await read_until(stream, lambda seen: "C" in tags(seen))
        for direction in Direction:
            proxy.hold(direction)
        began = time.monotonic()
        with pytest.raises(SourceUnavailable, match="silent"):
            await read_until(stream, lambda _: False)
        assert time.monotonic() - began < 5
        for direction in Direction:
            proxy.release(direction)


@asynchronous
async def test_an_idle_server_answers_pings_and_is_not_taken_for_dead(database: Database) -> None:
    options, start = prepare(database)
    with PgProxy(database.server.port) as proxy:
        through = replace(options, dsn=proxy.dsn(dbname=database.name))
        stream = await opened(through, start, replace(QUICK, read_deadline_s=0.6))
        waiting = asyncio.ensure_future(read_until(stream, lambda _: False))
        for count in range(1, 4):
            await asyncio.to_thread(proxy.wait_for_status, partial(_pinged, proxy, count))
        assert not waiting.done()
        await _given_up(waiting)
        await stream.close()


async def _given_up(waiting: "asyncio.Future[Any]") -> None:
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


def _pinged(proxy: PgProxy, wanted: int, _status: object) -> bool:
    """Whether that many status messages asked for an answer."""
    return sum(one.reply_requested for one in proxy.statuses) >= wanted


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


@slow
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

"""A replication stream on a table of its own, and what arrived on it."""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

from sluice.ingest.receive.stream import RawBatch, ReplicationStream, StreamLimits
from sluice.source.publication import ensure_publication
from sluice.source.sessions import SourceOptions
from sluice.source.slot import ensure_slot
from tests.support.source_setup import options_of
from tests.support.sources import Database

QUICK = StreamLimits(max_delay_s=0.05)


def prepare(database: Database, *statements: str) -> tuple[SourceOptions, int]:
    """A table `t`, published, with a slot; the options and the slot's position."""
    options = options_of(database)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, body text)", *statements)
    with database.connect() as connection:
        ensure_publication(connection, options.publication, [("public", "t")])
    facts = ensure_slot(options)
    assert facts.confirmed_flush_lsn is not None
    return options, facts.confirmed_flush_lsn


async def opened(
    options: SourceOptions, start_lsn: int, limits: StreamLimits = QUICK, *, expect: tuple[str, int] | None = None
) -> ReplicationStream:
    return await ReplicationStream.open(
        options,
        start_lsn=start_lsn,
        proto_version=1,
        streaming="off",
        two_phase=False,
        messages=False,
        origin="any",
        limits=limits,
        expect=expect,
    )


def tags(batches: list[RawBatch]) -> str:
    return "".join(chr(frame[25]) for batch in batches for frame in batch.frames if frame[0] == ord("w"))


async def read_until(stream: ReplicationStream, claim: Callable[[list[RawBatch]], bool]) -> list[RawBatch]:
    batches: list[RawBatch] = []
    async with asyncio.timeout(20):
        while not claim(batches):
            batches.append(await stream.next_batch())
    return batches


def asynchronous(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that is a coroutine, as an ordinary one."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        async def main() -> None:
            await test(*arguments, **named)

        asyncio.run(main())

    return run

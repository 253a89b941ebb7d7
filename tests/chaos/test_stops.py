"""Stops that are asked for: the first SIGTERM drains and acknowledges, the second exits at once,
and neither loses or doubles anything.
"""

import os
import signal

from tests.chaos.world import Gate, World, events
from tests.chaos.writer import Writer
from tests.support.extent import slow
from tests.support.pipeline import wait_until

LEAVES_SECONDS = 15.0
"""At once, on a machine that does other things as well: before the time of the stop is over."""


@slow
def test_sigterm_drains_and_acknowledges_though_the_source_goes_on_writing(started: World) -> None:
    """Nothing but the stop makes it publish: an entry would wait for an hour."""
    positions: list[int] = []
    with Writer(started.workload, started.database.dsn, pause_s=0.01, large_pause_s=0.5) as writer:
        with started.ingest(interval="1h") as ingest:
            started.streaming(ingest)
            before = started.proxy.flushed
            writer.ask(lambda workload: positions.append(workload.position()))
            started.proxy.wait_for_status(lambda status: status.write > positions[0])
            assert started.proxy.flushed == before
            assert ingest.stop() == 0
        started.wait_for_end_of_connection()
        started.check()
        assert started.confirmed() == started.proxy.flushed == started.spool.through_lsn > positions[0]
    started.catch_up()
    started.assert_exactly_once()


def test_a_second_sigterm_leaves_at_once_though_the_store_hangs(started: World) -> None:
    gate = Gate(started.pipeline.directory / "gate")
    with started.ingest(faults=gate.holding("commit.before")) as ingest:
        started.streaming(ingest)
        published = len(started.spool.transactions)
        gate.close()
        started.publish_up_to_the_entry(ingest)
        os.kill(ingest.pid, signal.SIGTERM)
        wait_until(lambda: "draining" in events(ingest), what="it drains", processes=(ingest,))
        os.kill(ingest.pid, signal.SIGTERM)
        assert ingest.wait(LEAVES_SECONDS) == 128 + signal.SIGTERM
    started.check()
    assert len(started.spool.transactions) == published
    assert started.confirmed() <= started.spool.through_lsn
    started.catch_up()
    started.assert_exactly_once()

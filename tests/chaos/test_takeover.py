"""A writer that was paused and replaced must not publish when it wakes up: it ends with 8, and each
transaction is in the log once.
"""

import os
import signal

import pytest

from sluice.errors import WriterFenced
from tests.chaos.world import Gate, World
from tests.support.extent import slow
from tests.support.pipeline import wait_until

WAKES_SECONDS = 90.0


@pytest.mark.parametrize("about_to", [pytest.param("wait", marks=slow), "append"])
def test_a_paused_writer_that_was_replaced_is_fenced_and_nothing_comes_twice(started: World, about_to: str) -> None:
    gate = Gate(started.pipeline.directory / "gate")
    started.check()
    before = started.spool.epoch

    def opened() -> bool:
        started.check()
        return started.spool.epoch > before

    with started.ingest(faults=gate.holding("commit.before")) as old:
        started.streaming(old)  # the first status comes before the epoch is opened
        wait_until(opened, what="the old writer opened its epoch", processes=(old,))
        if about_to == "append":
            gate.close()
            started.publish_up_to_the_entry(old)
        os.kill(old.pid, signal.SIGSTOP)
        started.database.cut_stream()
        with started.second() as second, second.ingest() as new:
            second.publish(new)
            gate.open()
            os.kill(old.pid, signal.SIGCONT)
            assert old.wait(WAKES_SECONDS) == WriterFenced.exit_code, old.log_tail(40)
            assert "owns the pipeline now" in old.log_tail(), old.log_tail(40)
            second.publish(new)
            assert new.stop() == 0, new.log_tail(40)
            second.check()
            assert second.spool.epoch == before + 2, "one epoch for each of the two writers"
    started.catch_up()
    started.assert_exactly_once()

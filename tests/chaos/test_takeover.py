"""A writer that was paused and replaced must not publish when it wakes up: it ends with 8, and each
transaction is in the log once.
"""

import os
import signal

import pytest

from sluice.errors import WriterFenced
from tests.chaos.world import Gate, World
from tests.support.extent import slow

WAKES_SECONDS = 90.0


@pytest.mark.parametrize("about_to", [pytest.param("wait", marks=slow), "append"])
def test_a_paused_writer_that_was_replaced_is_fenced_and_nothing_comes_twice(started: World, about_to: str) -> None:
    gate = Gate(started.pipeline.directory / "gate")
    with started.ingest(faults=gate.holding("commit.before")) as old:
        started.streaming(old)
        started.check()
        epoch = started.spool.epoch
        if about_to == "append":
            gate.close()
            started.publish_up_to_the_entry(old)
        os.kill(old.pid, signal.SIGSTOP)
        started.end_connection()
        with started.second() as second, second.ingest() as new:
            second.publish(new)
            gate.open()
            os.kill(old.pid, signal.SIGCONT)
            assert old.wait(WAKES_SECONDS) == WriterFenced.exit_code, old.log_tail(40)
            assert "owns the pipeline now" in old.log_tail(), old.log_tail(40)
            second.publish(new)
            assert new.stop() == 0, new.log_tail(40)
            second.check()
            assert second.spool.epoch == epoch + 1, "the old writer opened an epoch"
    started.catch_up()
    started.assert_exactly_once()

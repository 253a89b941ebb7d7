"""What a process waits for now: said while it lasts, and gone with its end."""

import pytest

from sluice.telemetry.waits import Wait, Waits


def test_a_wait_keeps_its_beginning_while_its_reason_changes_and_is_gone_at_its_end() -> None:
    times = iter((100.0, 130.0))
    waits = Waits(clock=lambda: next(times))
    waits.say("the slot", "older transactions: 2")
    waits.say("the slot", "older transactions: 1", retry_seconds=5.0)
    assert waits.now() == (Wait("the slot", "older transactions: 1", 100.0, 135.0),)
    waits.end("the slot")
    assert waits.now() == ()


def test_nothing_waits_any_more_behind_a_block_that_failed() -> None:
    waits = Waits()

    def wait() -> None:
        with waits.ended("the slot"):
            waits.say("the slot", "older transactions")
            raise OSError("refused")

    with pytest.raises(OSError, match="refused"):
        wait()
    assert waits.now() == ()

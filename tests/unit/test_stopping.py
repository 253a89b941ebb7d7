"""The one clock of a stop."""

import math
import threading

from sluice.stopping import FINISHING_SHARE, Stop


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_time_runs_from_the_first_question_and_is_never_given_again() -> None:
    clock = Clock()
    stop = Stop(20.0, clock=clock)
    assert (stop.asked, stop.left(), stop.left_to_finish()) == (False, math.inf, math.inf)
    clock.now += 1000
    assert stop.ask()
    assert (stop.asked, stop.left(), stop.left_to_finish()) == (True, 20.0, 20.0 * FINISHING_SHARE)
    clock.now += 15
    assert not stop.ask()
    assert (stop.left(), stop.left_to_finish()) == (5.0, 0.0)
    clock.now += 10
    assert (stop.left(), stop.left_to_finish()) == (0.0, 0.0)


def test_what_is_to_be_done_when_it_is_over_is_done_once_unless_the_end_came_first() -> None:
    over = threading.Event()
    stop = Stop(0.01)
    stop.when_over(over.set)
    stop.ask()
    assert over.wait(60)
    ended = threading.Event()
    other = Stop(3600.0)
    other.when_over(ended.set)
    other.ask()
    other.done()
    assert not ended.is_set()

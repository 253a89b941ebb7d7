"""Delays between tries."""

from sluice.backoff import Backoff, RetryTime, doubling


def test_the_last_delay_repeats_until_a_success() -> None:
    backoff = Backoff((1.0, 2.0, 5.0))
    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 5.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next() == 1.0


def test_jitter_adds_a_share_of_the_delay() -> None:
    draws = iter((0.0, 1.0, 0.5))
    backoff = Backoff((2.0,), jitter=0.5, draw=lambda: next(draws))
    assert [backoff.next() for _ in range(3)] == [2.0, 3.0, 2.5]


def test_something_is_due_until_it_fails_and_again_after_the_delay() -> None:
    retry = RetryTime((10.0, 30.0))
    assert retry.due(0.0)
    retry.failed(100.0)
    assert not retry.due(109.9)
    assert retry.due(110.0)
    retry.failed(110.0)
    assert not retry.due(139.9)


def test_delays_double_up_to_the_longest() -> None:
    assert doubling(0.1, 0.5) == (0.1, 0.2, 0.4, 0.5)
    assert doubling(0.1, 2.0) == (0.1, 0.2, 0.4, 0.8, 1.6, 2.0)

"""Behind a failed stage nothing begins, whatever was queued there already."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from sluice.errors import SessionBroken, SourceUnavailable
from sluice.ingest.circuit_breaker import CircuitBreaker


def failing(error: BaseException) -> None:
    raise error


def test_work_queued_behind_a_failure_is_refused_in_the_thread_that_failed() -> None:
    reported: list[BaseException] = []
    done: list[int] = []
    breaker = CircuitBreaker(on_break=reported.append)
    gate = threading.Event()
    lost = SourceUnavailable("the connection was lost")

    def first() -> None:
        gate.wait()
        failing(lost)

    with ThreadPoolExecutor(1) as stage:
        futures: list[Future[None]] = [stage.submit(breaker.guarded(first))]
        futures += [stage.submit(breaker.guarded(lambda number=number: done.append(number))) for number in range(5)]  # type: ignore[misc]
        gate.set()
    assert futures[0].exception() is lost
    assert [type(future.exception()) for future in futures[1:]] == [SessionBroken] * 5
    assert (done, reported) == ([], [lost])


def test_the_first_error_counts_and_a_refusal_is_none() -> None:
    reported: list[BaseException] = []
    breaker = CircuitBreaker(on_break=reported.append)
    breaker.fail(SessionBroken("of another connection"))
    breaker.check()
    first, second = SourceUnavailable("first"), SourceUnavailable("second")
    breaker.fail(first)
    breaker.fail(second)
    assert (breaker.error, reported) == (first, [first])
    with pytest.raises(SessionBroken, match="SourceUnavailable"):
        breaker.check()


def test_whoever_waits_is_woken_by_the_failure() -> None:
    breaker = CircuitBreaker(on_break=lambda _: None)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(breaker.wait, 60)
        breaker.fail(MemoryError())
        assert waiting.result(30)

"""The limit on initial rows holds for all threads together, and never keeps a stop waiting."""

import threading

from sluice.ingest.snapshot.rate import RateLimit


class _Stop(threading.Event):
    """Notes for how long it is waited for, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout or 0.0)
        return self.is_set()


def test_each_one_waits_for_what_all_have_read() -> None:
    stop = _Stop()
    limit = RateLimit(1000, stop)
    for _ in range(3):
        limit.take(500)
    assert [round(pause, 1) for pause in stop.pauses] == [0.5, 1.0, 1.5]


def test_without_a_limit_nobody_waits() -> None:
    stop = _Stop()
    RateLimit(0, stop).take(10**9)
    assert not stop.pauses

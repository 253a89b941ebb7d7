"""Delays between tries: a row of delays of which the last one repeats, and back to the first after
a success.

Pure: it neither sleeps nor reads a clock.
"""

import random
from collections.abc import Callable, Sequence


class Backoff:
    """Delays in seconds, one after the other. `jitter` adds up to that share of each at random, so
    that many processes do not try at the same moment.
    """

    def __init__(
        self, delays: Sequence[float], *, jitter: float = 0.0, draw: Callable[[], float] = random.random
    ) -> None:
        self._delays = tuple(delays)
        self._jitter = jitter
        self._draw = draw
        self._tries = 0

    def next(self) -> float:
        """How long to wait before the next try."""
        delay = self._delays[min(self._tries, len(self._delays) - 1)]
        self._tries += 1
        return delay + self._draw() * self._jitter * delay if self._jitter else delay

    def reset(self) -> None:
        """A try succeeded: the next failure waits for the first delay."""
        self._tries = 0


class RetryTime:
    """When something that failed may be tried again. It is due until `failed` is called. `now` is
    of a monotonic clock.
    """

    def __init__(self, delays: Sequence[float]) -> None:
        self._backoff = Backoff(delays)
        self._at = float("-inf")

    def failed(self, now: float) -> None:
        """It failed (once more): it is due after the next delay."""
        self._at = now + self._backoff.next()

    def left(self, now: float) -> float:
        """Seconds until it is due, 0 when it is."""
        return max(0.0, self._at - now)

    def due(self, now: float) -> bool:
        return now >= self._at


def doubling(first: float, longest: float) -> tuple[float, ...]:
    """Delays that double from `first` up to `longest`."""
    delays = [first]
    while delays[-1] < longest:
        delays.append(min(2 * delays[-1], longest))
    return tuple(delays)

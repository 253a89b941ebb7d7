"""The stop of one process: it begins once, and whatever waits takes what is left of its time from
here.

Invariant: the clock starts when the stop is asked for, not where it is noticed, and is never set
back: no chain of waits, each with patience of its own, can add up to more than `seconds`.
"""

import threading
import time
from collections.abc import Callable

FINISHING_SHARE = 0.6
"""Of the time, for finishing what is under way. The rest is for dropping it and ending in good
order.
"""


class Stop:
    """Thread-safe. `left` and `left_to_finish` are infinite until somebody asks."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._lock = threading.RLock()  # asked from signal handlers as well
        self._asked_at: float | None = None
        self._timer: threading.Timer | None = None
        self._over: Callable[[], None] | None = None

    @property
    def asked(self) -> bool:
        return self._asked_at is not None

    def ask(self) -> bool:
        """Starts the clock. Returns whether this was the first time; later ones change nothing."""
        with self._lock:
            if self._asked_at is not None:
                return False
            self._asked_at = self._clock()
            if self._over is not None:
                self._timer = threading.Timer(self.seconds, self._over)
                self._timer.daemon = True
                self._timer.start()
            return True

    def left(self) -> float:
        """Seconds until the process must be gone, 0 at least."""
        return float("inf") if self._asked_at is None else max(0.0, self._asked_at + self.seconds - self._clock())

    def left_to_finish(self) -> float:
        """Seconds that may still be spent on finishing what is under way, 0 at least."""
        return max(0.0, self.left() - self.seconds * (1 - FINISHING_SHARE))

    def when_over(self, end: Callable[[], None]) -> None:
        """`end` is called from a thread of its own when the time is over, unless `done` comes
        first. To be said before anybody asks.
        """
        self._over = end

    def done(self) -> None:
        """The process ends by itself."""
        with self._lock:
            self._over = None
            if self._timer is not None:
                self._timer.cancel()

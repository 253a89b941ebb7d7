"""How fast initial rows may be read: a limit that all threads share."""

import threading
import time


class RateLimit:
    """At most `per_second` on average (0: no limit). Thread-safe. Nobody waits once `stop` is set."""

    def __init__(self, per_second: int, stop: threading.Event) -> None:
        self._per_second = per_second
        self._stop = stop
        self._lock = threading.Lock()
        self._free_at = 0.0

    def take(self, count: int) -> None:
        """Counts what was read, and waits until that much may have been: the server waits meanwhile, as
        its connection is not read.
        """
        if self._per_second and count:
            with self._lock:
                now = time.monotonic()
                self._free_at = max(self._free_at, now) + count / self._per_second
                pause = self._free_at - now
            self._stop.wait(pause)

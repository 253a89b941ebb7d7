"""What a running process waits for now: said by whoever waits, read by whoever shows it.

Invariant: a wait that has ended is gone, and one that goes on keeps its beginning. Bounded by the
number of places that wait; a name holds one wait at a time.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Wait:
    """`what` waits because of `reason` since `since`. `retry_at` is when it is tried again, None when
    that is not by the clock. Times are in unix seconds.
    """

    what: str
    reason: str
    since: float | None
    retry_at: float | None = None


class Waits:
    """Thread-safe."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._present: dict[str, Wait] = {}
        self._lock = threading.Lock()

    def say(self, what: str, reason: str, *, retry_seconds: float | None = None) -> None:
        """`what` waits from now on, or still does: then its reason is the new one."""
        with self._lock:
            now = self._clock()
            wait = Wait(what, reason, now, None if retry_seconds is None else now + retry_seconds)
            before = self._present.get(what)
            self._present[what] = wait if before is None else replace(wait, since=before.since)

    def end(self, what: str) -> None:
        """`what` does not wait, or no longer."""
        with self._lock:
            self._present.pop(what, None)

    @contextmanager
    def ended(self, what: str) -> Iterator[None]:
        """Whatever is said of `what` inside the block, it does not wait behind it."""
        try:
            yield
        finally:
            self.end(what)

    def now(self) -> tuple[Wait, ...]:
        """The present waits, the longest first."""
        with self._lock:
            return tuple(self._present.values())

"""The errors that a running process met lately: what, where, how often, and what to do.

Invariant: an error that is not ours is known by its class alone, for a library's message may quote
a row. Bounded: no flood of errors grows it.
"""

import threading
import time
from collections.abc import Callable

from sluice.errors import ErrorSeen, ServiceError
from sluice.telemetry.error_counts import ErrorCounts

KEPT = 30
"""Different errors that are remembered; of more, those that have not come again for longest are
forgotten.
"""
RECENT_SECONDS = 3600.0


class RecentErrors(ErrorCounts):
    """An ErrorCounts that remembers what the errors of the last hour said. `note` and `recent` may
    be called from any thread.
    """

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._clock = clock
        self._known: dict[tuple[str, str], ErrorSeen] = {}
        self._known_lock = threading.Lock()

    def note(self, component: str, error: BaseException) -> None:
        super().note(component, error)
        now = self._clock()
        ours = isinstance(error, ServiceError)
        key = (component, type(error).__name__)
        with self._known_lock:
            before = self._known.pop(key, None)
            known = before if before is not None and _recent(before, now) else None
            self._known[key] = ErrorSeen(
                error=key[1],
                where=component,
                message=str(error) if ours else "",
                hint=error.hint if isinstance(error, ServiceError) else "",
                count=known.count + 1 if known else 1,
                first_at=known.first_at if known else now,
                last_at=now,
            )
            while len(self._known) > KEPT:
                del self._known[next(iter(self._known))]

    def kept(self) -> tuple[ErrorSeen, ...]:
        """All that are remembered, however old, the newest first."""
        with self._known_lock:
            return tuple(reversed(self._known.values()))

    def recent(self) -> tuple[ErrorSeen, ...]:
        """The errors of the last hour, the newest first."""
        now = self._clock()
        return tuple(one for one in self.kept() if _recent(one, now))


def _recent(one: ErrorSeen, now: float) -> bool:
    return now - one.last_at <= RECENT_SECONDS

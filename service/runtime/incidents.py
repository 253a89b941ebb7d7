"""The troubles that a running process met lately: what, where, how often, and what to do.

Invariant: an error that is not ours is known by its class alone, for a library's message may quote a row. Bounded: no flood of errors grows it.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from service.errors import ServiceError
from service.telemetry.tally import ErrorTally

KEPT = 30
"""Different troubles that are remembered; of more, those that have not come again for longest are forgotten."""
RECENT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Incident:
    """One kind of trouble at one place. Times are unix seconds; None where only a stored state is known. `last_at` belongs to `message`."""

    error: str
    where: str
    message: str
    hint: str
    count: int
    first_at: float | None = None
    last_at: float | None = None

    def to_json(self, *, now: float) -> dict[str, Any]:
        return {
            "class": self.error,
            "where": self.where,
            "message": self.message,
            "hint": self.hint,
            "count": self.count,
            "first_at": _iso(self.first_at),
            "last_at": _iso(self.last_at),
            "age_seconds": None if self.last_at is None else round(max(0.0, now - self.last_at), 1),
        }


class Incidents(ErrorTally):
    """An ErrorTally that remembers what the errors of the last hour said. `note` and `recent` may be called from any thread."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._clock = clock
        self._known: dict[tuple[str, str], Incident] = {}
        self._known_lock = threading.Lock()

    def note(self, component: str, error: BaseException) -> None:
        super().note(component, error)
        now = self._clock()
        ours = isinstance(error, ServiceError)
        key = (component, type(error).__name__)
        with self._known_lock:
            before = self._known.pop(key, None)
            known = before if before is not None and _recent(before, now) else None
            self._known[key] = Incident(
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

    def recent(self) -> tuple[Incident, ...]:
        """The troubles of the last hour, the newest first."""
        now = self._clock()
        with self._known_lock:
            return tuple(incident for incident in reversed(self._known.values()) if _recent(incident, now))


def _recent(incident: Incident, now: float) -> bool:
    return incident.last_at is not None and now - incident.last_at <= RECENT_SECONDS


def _iso(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat()

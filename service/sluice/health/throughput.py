"""What passed in each of the last sixty minutes, kept in memory by a running process.

Invariant: a minute holds what was counted within it; a total that fell was reset where it is kept,
and counts from zero. Nothing here is called per row.
"""

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

MINUTES = 60
_MINUTE_SECONDS = 60


@dataclass(slots=True)
class _Minute:
    number: int
    began_at: float
    counted: dict[str, float] = field(default_factory=dict)


class Throughput:
    """Takes totals that only grow and keeps what they grew by, minute by minute. `names` are the
    quantities. May be called from any thread.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._totals: dict[str, float] = {}
        self._minutes: deque[_Minute] = deque(maxlen=MINUTES)
        self._lock = threading.Lock()

    def add(self, totals: Mapping[str, float], *, now: float) -> None:
        """The totals at `now` (unix seconds). The first total of a quantity is where its counting
        begins.
        """
        with self._lock:
            minute = self._at(now)
            for name, total in totals.items():
                before = self._totals.get(name, total)
                minute.counted[name] = minute.counted.get(name, 0) + (total - before if total >= before else total)
                self._totals[name] = total

    def to_json(self, *, now: float) -> list[dict[str, Any]]:
        """Oldest first, one object a minute without gaps; `seconds` is how much of it has been
        counted.
        """
        with self._lock:
            self._at(now)
            return [self._minute_json(minute, now=now) for minute in self._minutes]

    def _at(self, now: float) -> _Minute:
        number = int(now // _MINUTE_SECONDS)
        if not self._minutes:
            self._minutes.append(_Minute(number, now))
        newest = self._minutes[-1]
        for missing in range(max(newest.number + 1, number - MINUTES + 1), number + 1):
            self._minutes.append(_Minute(missing, missing * _MINUTE_SECONDS))
        # A clock that was set back goes on counting in the newest minute.
        return self._minutes[-1]

    def _minute_json(self, minute: _Minute, *, now: float) -> dict[str, Any]:
        end = min(max(now, minute.began_at), (minute.number + 1) * _MINUTE_SECONDS)
        return {
            "at": datetime.fromtimestamp(minute.number * _MINUTE_SECONDS, UTC).isoformat(),
            "seconds": round(end - minute.began_at, 1),
            **{name: minute.counted.get(name, 0) for name in self._names},
        }

"""How old the lake is: for sampled commits, the time from the commit at the source to the applier's
statement that every table is complete through it.

Both ends are facts that others can check: the clerk's commit, and the time written in
`apply/log/<n>.json`. No polling error enters.
"""

import threading
from datetime import datetime
from pathlib import Path

from sluice.contract import keys
from sluice.contract.applied import AppliedLog

_EVERY = 5
"""One commit in this many is sampled."""


class Freshness:
    """Collects commits from any thread; reads the applier's statements below `spool`, one
    pipeline's own prefix.
    """

    def __init__(self, spool: Path) -> None:
        self._folder = spool / keys.APPLY_LOG
        self._lock = threading.Lock()
        self._seen = 0
        self._commits: list[tuple[int, float]] = []
        self._statements: list[tuple[int, float]] = []
        self._newest = ""

    def committed(self, *, position: int, at: float) -> None:
        """A commit whose end lies just behind WAL position `position`."""
        with self._lock:
            self._seen += 1
            if self._seen % _EVERY == 0:
                self._commits.append((position, at))

    def complete_through(self) -> int:
        """The LSN through which every table is complete by the newest statement, 0 before the first
        and while any is not live.
        """
        with self._lock:
            for path in sorted(self._folder.glob("*.json")):
                if path.name > self._newest:
                    statement = AppliedLog.decode(path.read_bytes())
                    through = min(
                        (
                            table.complete_through_lsn if table.state == "live" else 0
                            for table in statement.tables.values()
                        ),
                        default=0,
                    )
                    self._statements.append((through, datetime.fromisoformat(statement.written_at).timestamp()))
                    self._newest = path.name
            return self._statements[-1][0] if self._statements else 0

    def seconds(self, *, since: float) -> list[float]:
        """Sorted ages of the sampled commits made after `since` that the lake holds by now."""
        self.complete_through()
        ages = []
        with self._lock:
            for position, at in self._commits:
                stated = next((written for lsn, written in self._statements if lsn > position), None)
                if at >= since and stated is not None:
                    ages.append(max(0.0, stated - at))
        return sorted(ages)


def percentile(ages: list[float], share: float) -> float | None:
    """The age that `share` of the sorted `ages` do not exceed, None without any."""
    return ages[min(len(ages) - 1, int(len(ages) * share))] if ages else None

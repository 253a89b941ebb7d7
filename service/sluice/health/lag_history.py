"""How far each table was behind, and what reached the lake, over the last two hours: kept in memory by
a running process.

Invariants: bounded in time and in tables; survives nothing but the process, and says since when it
remembers. A step without a look at a table says nothing about it, and of several looks the worst lag
stays. Of the lake it counts what the applier's records grew by.
"""

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sluice.health.tables import TableReport

STEP_SECONDS = 120
STEPS = 60
MOST_TABLES = 5000
"""Tables that are remembered, some 40 MB; of more, those that were seen first."""


@dataclass(slots=True)
class _Step:
    """What was seen of one table within one step. `number` counts steps since 1970."""

    number: int
    lag_seconds: float | None = None
    rows: int = 0
    versions: int = 0

    def saw(self, lag_seconds: float | None) -> None:
        if lag_seconds is not None:
            self.lag_seconds = max(lag_seconds, self.lag_seconds or 0.0)


class _Line:
    """The steps of one table, oldest first, and the totals that they grow by."""

    __slots__ = ("_totals", "steps")

    def __init__(self) -> None:
        self.steps: deque[_Step] = deque(maxlen=STEPS)
        self._totals: tuple[int, int, int] | None = None

    def at(self, number: int) -> _Step:
        if not self.steps or self.steps[-1].number < number:
            self.steps.append(_Step(number))
        # A clock that was set back goes on in the newest step.
        return self.steps[-1]

    def grown(self, table: TableReport) -> tuple[int, int]:
        """Rows and versions since the last look. A generation begins at no rows; before the first look
        nothing is known.
        """
        if table.delta_version is None and self._totals is not None and self._totals[0] == table.generation:
            return 0, 0  # no record of the applier, for the moment
        version = table.delta_version if table.delta_version is not None else -1
        before, self._totals = self._totals, (table.generation, table.rows_applied, version)
        if before is None:
            return 0, 0
        generation, rows, versions = before
        new_rows = table.rows_applied - (rows if generation == table.generation else 0)
        # A lake table that was made anew counts its versions from 0.
        return max(0, new_rows), version - versions if version >= versions else version + 1


class History:
    """May be used from any thread. Times are unix seconds."""

    def __init__(self, *, began_at: float) -> None:
        self._began_at = began_at
        self._tables: dict[str, _Line] = {}
        self._all = _Line()
        self._spool = _Line()
        self._lock = threading.Lock()

    def note(self, tables: Sequence[TableReport], *, flush_seconds: float | None, now: float) -> None:
        """One look at all tables. `flush_seconds` is how far the spool is behind the source."""
        number = int(now // STEP_SECONDS)
        with self._lock:
            self._spool.at(number).saw(flush_seconds)
            whole = self._all.at(number)
            for table in tables:
                name = table.title
                if name not in self._tables and len(self._tables) >= MOST_TABLES:
                    continue
                line = self._tables.setdefault(name, _Line())
                step = line.at(number)
                rows, versions = line.grown(table)
                for one in (step, whole):
                    one.saw(table.lag_seconds)
                    one.rows += rows
                    one.versions += versions
            known = {table.title for table in tables}
            self._tables = {name: line for name, line in self._tables.items() if name in known}

    def to_json(self, names: Iterable[str], *, now: float) -> dict[str, Any]:
        """The steps of the whole pipeline, and of the tables in `names` that are remembered: lists of
        the same length, oldest step first, null where nothing was seen.
        """
        newest = int(now // STEP_SECONDS)
        first = max(newest - STEPS + 1, int(self._began_at // STEP_SECONDS))
        with self._lock:
            tables = {name: _json(line, first, newest) for name in names if (line := self._tables.get(name))}
            return {
                "since": datetime.fromtimestamp(max(self._began_at, first * STEP_SECONDS), UTC).isoformat(),
                "step_seconds": STEP_SECONDS,
                "steps": STEPS,
                "pipeline": _json(self._all, first, newest),
                "spool_lag_seconds": _json(self._spool, first, newest)["lag_seconds"],
                "tables": tables,
            }


def _json(line: _Line, first: int, newest: int) -> dict[str, list[float | None]]:
    seen = {step.number: step for step in line.steps}
    steps = [seen.get(number) for number in range(first, newest + 1)]
    return {
        "lag_seconds": [None if one is None or one.lag_seconds is None else round(one.lag_seconds, 1) for one in steps],
        "rows": [None if one is None else one.rows for one in steps],
        "versions": [None if one is None else one.versions for one in steps],
    }

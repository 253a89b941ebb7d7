"""Through which position the lake can be read, for those who wait for it: `GET /wait?lsn=X/Y&timeout=SECONDS`.

Invariant: a position is called readable only after the boundary that holds it was published. Who waits holds a thread:
there are at most MOST_WAITING at once, each for LONGEST_SECONDS at most. Nothing is asked of store or server.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sluice import lsn
from sluice.errors import UsageError
from sluice.printable import one_line

MOST_WAITING = 256
LONGEST_SECONDS, USUAL_SECONDS = 60.0, 10.0
Answer = tuple[int, dict[str, Any]]


class Readable:
    """The position of the newest boundary that this process has published or found."""

    def __init__(self) -> None:
        self._moved = threading.Condition()
        self._lsn = 0
        self._waiting = 0
        self._closed = False

    def reached(self, position: int) -> None:
        """The lake offers a boundary at `position`. One that was further is forgotten: a new log may begin earlier."""
        if position != self._lsn:
            with self._moved:
                self._lsn = position
                self._moved.notify_all()

    def close(self) -> None:
        """Whoever waits is answered that it has ended."""
        with self._moved:
            self._closed = True
            self._moved.notify_all()

    def wait(self, query: Mapping[str, Sequence[str]]) -> Answer:
        """The HTTP status, and what is said: 200 when the position can be read, 503 when not by then, 400 for a
        question of another form.
        """
        if strangers := sorted(query.keys() - {"lsn", "timeout"}):
            return 400, {"error": f"only lsn and timeout can be given, not {', '.join(map(one_line, strangers))}"}
        try:
            wanted = lsn.parse(_only(query, "lsn"))
            seconds = float(_only(query, "timeout", str(USUAL_SECONDS)))
        except (UsageError, ValueError) as error:
            return 400, {"error": str(error) if isinstance(error, UsageError) else "timeout is not a number of seconds"}
        if not 0 <= seconds <= LONGEST_SECONDS:
            return 400, {"error": f"timeout is from 0 to {LONGEST_SECONDS:g} seconds"}
        return self._wait(wanted, seconds)

    def _wait(self, wanted: int, seconds: float) -> Answer:
        with self._moved:
            if self._waiting >= MOST_WAITING:
                return 503, self._said(wanted, "too many requests wait already")
            self._waiting += 1
            try:
                self._moved.wait_for(lambda: self._closed or self._lsn >= wanted, timeout=seconds)
            finally:
                self._waiting -= 1
            if self._lsn >= wanted:
                return 200, self._said(wanted, "")
            return 503, self._said(wanted, "the applier ends" if self._closed else "not yet")

    def _said(self, wanted: int, reason: str) -> dict[str, Any]:
        reached = self._lsn >= wanted
        why = {} if reached else {"reason": reason}
        return {
            "schema_version": 1,
            "lsn": lsn.show(wanted),
            "reached": reached,
            "boundary_lsn": lsn.show(self._lsn),
            **why,
        }


def _only(query: Mapping[str, Sequence[str]], name: str, default: str = "") -> str:
    """Raises UsageError when it is given twice."""
    given = query.get(name, [default])
    if len(given) != 1:
        raise UsageError(f"{name} is given more than once")
    return given[0]


Waiting = Callable[[Mapping[str, Sequence[str]]], Answer]

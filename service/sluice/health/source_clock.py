"""Since when the source has had more than we have: the server's write position, and when it was
seen there.

Invariant: what is said is proven. `behind_since` is a time by which the source certainly was ahead,
`complete_at` one up to which nothing is missing; the truth lies between them, no further apart than
two looks at the server. A source where nothing is written is never behind and always complete.
Pure: no clock, no server.
"""

from bisect import bisect_right
from dataclasses import dataclass

MOST = 4096
"""Positions remembered. Past it every other one is dropped, which costs resolution and no truth."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The server stood at `lsn` at `first` and still at `last`."""

    lsn: int
    first: float
    last: float


class SourceClock:
    """Fed with each look at the server. One thread notes, others may ask."""

    def __init__(self) -> None:
        self._seen: tuple[_Seen, ...] = ()

    def note(self, at: float, wal_end_lsn: int) -> None:
        """At `at`, or later, the server's write position was `wal_end_lsn`. One that went back is
        another server's: the past is forgotten.
        """
        seen = self._seen
        if seen and (wal_end_lsn < seen[-1].lsn or at < seen[-1].last):
            seen = ()
        if seen and seen[-1].lsn == wal_end_lsn:
            self._seen = (*seen[:-1], _Seen(wal_end_lsn, seen[-1].first, at))
        else:
            self._seen = (*(seen if len(seen) < MOST else seen[::2]), _Seen(wal_end_lsn, at, at))

    def behind_since(self, lsn: int) -> float | None:
        """When the server was first seen beyond `lsn`; None when it was not."""
        seen = self._seen
        at = bisect_right(seen, lsn, key=lambda one: one.lsn)
        return seen[at].first if at < len(seen) else None

    def complete_at(self, lsn: int) -> float | None:
        """The latest time at which the server was seen with nothing beyond `lsn`; None when it
        never was.
        """
        seen = self._seen
        at = bisect_right(seen, lsn, key=lambda one: one.lsn)
        return seen[at - 1].last if at else None

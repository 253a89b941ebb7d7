"""Where the server's write position stood, and when: the one memory from which lag in seconds, the
write rate and the slot's forecast are computed.

Invariants: `complete_at` is proven by looks at the server: nothing was beyond the position then.
`seconds_behind` is a lower bound between two looks. Before the first look it goes by what manifest
entries state of their own time. A source where nothing is written is never behind. Pure values: no
clock, no server. (PostgreSQL: max_slot_wal_keep_size; pg_replication_slots.safe_wal_size)
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace

MOST = 4096
"""Positions remembered. Past it every other one is dropped, which costs resolution and no truth."""
RATE_SECONDS = 300.0
"""The write rate is that of the last minutes."""
SHORTEST_RATE_SECONDS = 60.0
"""A rate over less is a guess: one checkpoint or one switch of WAL files would be the forecast."""


@dataclass(frozen=True, slots=True)
class _Stood:
    """The server stood at `lsn` at `first` and still at `last`. Unless it was `asked`, it stood
    there or beyond.
    """

    lsn: int
    first: float
    last: float
    asked: bool = True


@dataclass(frozen=True, slots=True)
class SourceHistory:
    """Positions in the order of their times, which are unix seconds."""

    _stood: tuple[_Stood, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._stood)

    def noted(self, at: float, wal_end_lsn: int) -> "SourceHistory":
        """With one more look: at `at` or later the write position was `wal_end_lsn`. A position or a
        clock that went back begins a new history: the server is another one.
        """
        stood = self._stood
        if stood and (wal_end_lsn < stood[-1].lsn or at < stood[-1].last):
            stood = ()
        if stood and stood[-1].lsn == wal_end_lsn:
            return SourceHistory((*stood[:-1], replace(stood[-1], last=at, asked=True)))
        return SourceHistory((*(stood if len(stood) < MOST else stood[::2]), _Stood(wal_end_lsn, at, at)))

    def preceded_by(self, entries: Iterable[tuple[float, int]]) -> "SourceHistory":
        """With what manifest entries state of the time before the first look: when each was written,
        and its position. Entries that do not lie before the first look are left out.
        """
        if not self._stood:
            return self
        first = self._stood[0]
        before: list[_Stood] = []
        for at, lsn in entries:
            newest = before[-1] if before else None
            if at < first.first and lsn < first.lsn and (newest is None or (at > newest.last and lsn > newest.lsn)):
                before.append(_Stood(lsn, at, at, asked=False))
        return SourceHistory((*before, *self._stood))

    def seconds_behind(self, lsn: int, *, now: float) -> float | None:
        """For how long at least the server has been beyond `lsn`: 0 when it is not, None when that
        is not known.
        """
        stood = self._stood
        after = bisect_right(stood, lsn, key=lambda one: one.lsn)
        if after == len(stood):
            return 0.0 if stood else None
        beyond = stood[after]
        if after == 0:
            only = len(stood) == 1 and beyond.first == beyond.last
            return None if only else max(0.0, now - beyond.first)
        before = stood[after - 1]
        if before.asked:
            return max(0.0, now - beyond.first)
        # Nobody looked in between: as if the server had written evenly.
        share = (lsn - before.lsn) / (beyond.lsn - before.lsn)
        return max(0.0, now - before.last - share * (beyond.first - before.last))

    def complete_at(self, lsn: int) -> float | None:
        """The latest time at which the server was seen with nothing beyond `lsn`; None when it
        never was.
        """
        after = bisect_right(self._stood, lsn, key=lambda one: one.lsn)
        before = self._stood[after - 1] if after else None
        return before.last if before is not None and before.asked else None

    def bytes_per_second(self) -> float | None:
        """What the server writes; None until positions of a minute are known. Not how fast the slot
        falls behind: that stands still while the slot advances, and jumps when the limit is changed.
        """
        if not self._stood:
            return None
        end = self._stood[-1]
        begins = end.last - RATE_SECONDS
        # The newest position from before the window, so that the window is covered whole.
        at = max(0, bisect_right(self._stood, begins, key=lambda one: one.first) - 1)
        begin = self._stood[at]
        seconds = end.last - max(begin.first, min(begin.last, begins))
        return (end.lsn - begin.lsn) / seconds if seconds >= SHORTEST_RATE_SECONDS else None

    def seconds_until_lost(self, safe_wal_size: int | None) -> float | None:
        """Until the slot may be lost if it advances no further: None without a limit, while nothing
        is written and while no rate is known; 0 once the limit is reached, whatever is written.
        """
        if safe_wal_size is None:
            return None
        if safe_wal_size <= 0:
            return 0.0
        rate = self.bytes_per_second()
        return safe_wal_size / rate if rate else None

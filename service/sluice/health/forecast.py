"""How long a slot has until the server may take its WAL away.

The rate is the server's own: how fast its write position rose over the last minutes. Not how fast
the room shrinks or what is retained grows: both stand still while the slot advances, and jump when
the limit is changed, and neither says how long the pipeline may be away. Pure: no clock, no server.
(PostgreSQL: max_slot_wal_keep_size; pg_replication_slots.safe_wal_size)
"""

from collections import deque

WINDOW_SECONDS = 300.0
SHORTEST_SECONDS = 60.0
"""A rate over less is a guess: one checkpoint or one switch of WAL files would be the forecast."""


class SlotForecast:
    """Fed with each look at the server. Times are seconds of any clock that does not go back; one
    that does begins anew.
    """

    def __init__(self, *, window_seconds: float = WINDOW_SECONDS, shortest_seconds: float = SHORTEST_SECONDS) -> None:
        self._window = window_seconds
        self._shortest = shortest_seconds
        self._seen: deque[tuple[float, int]] = deque()

    def note(self, at: float, wal_end_lsn: int) -> None:
        """The server's write position was `wal_end_lsn`. One that went back belongs to another
        server, or to this one restored: the past is forgotten.
        """
        if self._seen and (wal_end_lsn < self._seen[-1][1] or at < self._seen[-1][0]):
            self._seen.clear()
        self._seen.append((at, wal_end_lsn))
        # One that is older than the window stays, so that the window is covered whole.
        while len(self._seen) > 1 and self._seen[1][0] <= at - self._window:
            self._seen.popleft()

    def bytes_per_second(self) -> float | None:
        """What the server writes; None until it has been watched for long enough."""
        if not self._seen:
            return None
        (begin, low), (end, high) = self._seen[0], self._seen[-1]
        return (high - low) / (end - begin) if end - begin >= self._shortest else None

    def seconds_until_lost(self, safe_wal_size: int | None) -> float | None:
        """None without a limit, while nothing is written and while no rate is known; 0 once the
        room is used up, whatever is written.
        """
        if safe_wal_size is None:
            return None
        if safe_wal_size <= 0:
            return 0.0
        rate = self.bytes_per_second()
        return safe_wal_size / rate if rate else None

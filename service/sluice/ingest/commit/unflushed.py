"""What has been decoded and is not durable yet: how old it is, and up to where nothing is missing.

Invariant: the answer never claims more than is durable. The decoder thread writes, the event loop
asks; each value is replaced whole, and a unit is listed as published before it ceases to be
pending, so that no look falls between the two.
"""

from collections import deque
from collections.abc import Sequence


class Unflushed:
    """One connection's. Begins with nothing at `start_lsn`."""

    def __init__(self, start_lsn: int) -> None:
        self._decoded: tuple[int, int | None] = (start_lsn, None)
        self._published: deque[tuple[int, int | None]] = deque()

    def decoded(self, through_lsn: int, commit_times_us: Sequence[int], *, pending: bool, now_us: int) -> None:
        """The decoder is through `through_lsn` and saw commits of these times. `pending`: something
        waits to be published, be it a message without commit.
        """
        first = self._decoded[1]
        if first is None:
            first = commit_times_us[0] if commit_times_us else now_us
        self._decoded = (through_lsn, first if pending else None)

    def published(self, through_lsn: int) -> None:
        """All that was decoded so far is on its way to the store."""
        first = self._decoded[1]
        if first is not None:
            self._published.append((through_lsn, first))
        self._decoded = (max(through_lsn, self._decoded[0]), None)

    def state(self, flushed_lsn: int) -> tuple[int, int | None]:
        """(position through which nothing that was received is missing from the manifest, commit
        time of the oldest transaction that is; None if none is).
        """
        decoded_lsn, pending = self._decoded
        while self._published and self._published[0][0] <= flushed_lsn:
            self._published.popleft()
        oldest = self._published[0][1] if self._published else pending
        return (decoded_lsn if oldest is None else flushed_lsn), oldest

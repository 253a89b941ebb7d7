"""How soon after others a manifest entry may be written. Pure arithmetic on a clock that is handed in.

Entries and segments are files, kept for `spool.retention`: a source that commits all the time must not make
ten of each in a second. A source that commits now and then waits for nothing.
"""

BURST = 30
"""Entries that may follow one another without a pause, after so many seconds of silence."""
REFILL_SECONDS = 0.5
"""Between two entries, once the burst is used up; twice the least interval, if that is more."""


class Pace:
    """A bucket of BURST tokens, of which each entry takes one; and `min_interval_s` between two entries."""

    def __init__(self, *, min_interval_s: float, now: float) -> None:
        self._min_interval_s = min_interval_s
        self._refill_s = max(REFILL_SECONDS, 2 * min_interval_s)
        self._written_at = now
        self._tokens = float(BURST)

    def written(self, now: float) -> None:
        """An entry was written at `now`, for whatever reason."""
        self._tokens = max(0.0, self._at(now) - 1.0)
        self._written_at = now

    def earliest(self, now: float) -> float:
        """When the next one may be written that need not be; not after `now` if at once."""
        missing = max(0.0, 1.0 - self._at(now))
        return max(self._written_at + self._min_interval_s, now + missing * self._refill_s)

    def _at(self, now: float) -> float:
        return min(float(BURST), self._tokens + (now - self._written_at) / self._refill_s)

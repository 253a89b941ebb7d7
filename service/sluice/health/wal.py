"""The WAL side of a report: how far each stage is behind the server, how much room the slot has,
and for how long.

Invariant: what one look cannot know is None, never a guess: seconds come from positions that were
seen with their time. Pure; must not read a clock. (PostgreSQL: pg_replication_slots;
max_slot_wal_keep_size.)
"""

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from sluice.health.forecast import SlotForecast
from sluice.lsn import show
from sluice.source.facts import ServerFacts, SlotFacts

HISTORY_SECONDS = 3600.0
"""How far back positions are remembered."""
_STEP_SECONDS = 10.0
"""Positions seen within this time of each other count as one: many looks must not crowd out the
hour.
"""


class WalHistory:
    """Where the server's log stood, and when. Times are unix seconds and may come from several
    clocks: one that goes back is not taken.
    """

    def __init__(self) -> None:
        self._times: list[float] = []
        self._lsns: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._times)

    def copy(self) -> "WalHistory":
        """As it is now, for a report that must not change."""
        other = WalHistory()
        other._times, other._lsns = self._times[:], self._lsns[:]
        return other

    def add(self, at: float, lsn: int) -> None:
        """The log stood at `lsn` at the time `at`. A position that goes back means another server,
        and begins a new history.
        """
        if self._lsns and lsn < self._lsns[-1]:
            self._times, self._lsns = [], []
        if self._times and at <= self._times[-1]:
            return
        # Only what lies between two points that are near each other is left out: a point before a
        # long pause says when the pause began.
        if len(self._times) > 1 and at - self._times[-2] < _STEP_SECONDS:
            self._times.pop()
            self._lsns.pop()
        self._times.append(at)
        self._lsns.append(lsn)
        kept = max(0, bisect_right(self._times, at - HISTORY_SECONDS) - 1)
        del self._times[:kept], self._lsns[:kept]

    def seconds_behind(self, lsn: int, *, now: float) -> float | None:
        """Age of the oldest WAL after `lsn`: 0 when there is none, None when the log was beyond it
        before the first look.
        """
        if not self._lsns:
            return None
        if lsn >= self._lsns[-1]:
            return 0.0
        after = bisect_right(self._lsns, lsn)
        if after == 0:
            return None
        begin, end = self._lsns[after - 1], self._lsns[after]
        share = (lsn - begin) / (end - begin)
        passed_at = self._times[after - 1] + share * (self._times[after] - self._times[after - 1])
        return max(0.0, now - passed_at)


@dataclass(frozen=True, slots=True)
class Stage:
    """One station of the WAL's way into the lake. What was not reached or is not known to this
    process is None.
    """

    stage: str
    lsn: int | None
    behind_bytes: int | None
    behind_seconds: float | None

    def to_json(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "lsn": shown(self.lsn),
            "behind_bytes": self.behind_bytes,
            "behind_seconds": None if self.behind_seconds is None else round(self.behind_seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class Headroom:
    """What the slot keeps, and what the server may still write before it may take the WAL away.
    Without a limit (`safe_bytes` None) the disk is the limit.

    `write_rate` is the server's, in bytes a second, None while no rate is known. `seconds_left` is
    until the slot may be lost if nothing were acknowledged any more and the server went on writing
    like that; None when that is not in sight.
    """

    retained_bytes: int
    safe_bytes: int | None
    write_rate: float | None
    seconds_left: float | None

    @property
    def limit_bytes(self) -> int | None:
        """What may be kept in all, to within one WAL segment."""
        return None if self.safe_bytes is None else self.retained_bytes + max(0, self.safe_bytes)

    @property
    def share(self) -> float | None:
        """The part of the limit that is left, from 1 to 0."""
        return None if self.safe_bytes is None or not self.limit_bytes else max(0, self.safe_bytes) / self.limit_bytes

    def to_json(self) -> dict[str, Any]:
        return {
            "retained_bytes": self.retained_bytes,
            "safe_bytes": self.safe_bytes,
            "limit_bytes": self.limit_bytes,
            "share_left": self.share,
            "write_rate_bytes": self.write_rate,
            "seconds_left": self.seconds_left,
        }


def headroom(server: ServerFacts | None, slot: SlotFacts | None, forecast: SlotForecast) -> Headroom | None:
    """None when the server was not reached or there is no slot that keeps anything."""
    if server is None or slot is None or slot.restart_lsn is None:
        return None
    safe = slot.safe_wal_size
    return Headroom(
        max(0, server.wal_end_lsn - slot.restart_lsn),
        safe,
        forecast.bytes_per_second(),
        forecast.seconds_until_lost(safe),
    )


def slot_json(server: ServerFacts, slot: SlotFacts) -> dict[str, Any]:
    """What is known of a slot, in the one spelling that `status` and `slot show` have."""
    return {
        "active": slot.active_pid is not None,
        "active_pid": slot.active_pid,
        "confirmed_flush_lsn": shown(slot.confirmed_flush_lsn),
        "restart_lsn": shown(slot.restart_lsn),
        "retained_wal_bytes": max(0, server.wal_end_lsn - slot.restart_lsn) if slot.restart_lsn else None,
        "safe_wal_bytes": slot.safe_wal_size,
        "wal_status": slot.wal_status,
        "invalidated": slot.invalidated or None,
        "two_phase": slot.two_phase,
    }


def shown(lsn: int | None) -> str | None:
    """A position as PostgreSQL writes it, None for none."""
    return show(lsn) if lsn else None

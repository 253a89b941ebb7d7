"""The WAL's way from the server into the lake: how far each stage is behind, what the slot keeps,
and for how long it is safe.

Invariant: /status and the metrics show the stages and the headroom that are made here. What cannot
be known is None, never a guess. Pure; must not read a clock. (PostgreSQL: pg_replication_slots;
max_slot_wal_keep_size.)
"""

from dataclasses import dataclass
from typing import Any

from sluice.health.source_history import SourceHistory
from sluice.lsn import show
from sluice.source.facts import ServerFacts, SlotFacts


@dataclass(frozen=True, slots=True)
class Positions:
    """Where the pipeline stands. LSNs are 0 where there is none yet.

    `server_lsn` is None while the server is not reached, `received_lsn` when no running process was
    asked. Through `complete_lsn` the process misses nothing that it received: the WAL of others
    leaves nothing to store. `oldest_unflushed_at` is the commit time of its oldest transaction that
    is not durable. `oldest_unapplied_at` is the commit time of the oldest change that a live table
    lacks; `has_live` is whether there is such a table.
    """

    history: SourceHistory
    server_lsn: int | None
    flushed_lsn: int
    confirmed_lsn: int | None = None
    applied_lsn: int = 0
    received_lsn: int | None = None
    complete_lsn: int = 0
    oldest_unflushed_at: float | None = None
    has_live: bool = False
    oldest_unapplied_at: float | None = None

    @property
    def durable_lsn(self) -> int:
        """Through which nothing is missing from the manifest."""
        return max(self.flushed_lsn, self.complete_lsn)

    def behind_bytes(self, lsn: int | None) -> int | None:
        """WAL between `lsn` and the server's write position; None when one of the two is not there."""
        return None if self.server_lsn is None or not lsn else max(0, self.server_lsn - lsn)

    def behind_seconds(self, lsn: int | None, *, now: float) -> float | None:
        """For how long at least the server has been beyond `lsn`. While it is not reached: the time
        since it was last seen with nothing beyond.
        """
        if not lsn:
            return None
        if self.server_lsn is not None:
            return self.history.seconds_behind(lsn, now=now)
        complete_at = self.history.complete_at(lsn)
        return None if complete_at is None else max(0.0, now - complete_at)

    def flush_seconds(self, *, now: float) -> float | None:
        """How far the manifest is behind the source."""
        seconds = self.behind_seconds(self.durable_lsn, now=now)
        if self.oldest_unflushed_at is None:
            return seconds
        return max(seconds or 0.0, now - self.oldest_unflushed_at)

    def apply_seconds(self, *, now: float) -> float | None:
        """How far the lake is behind the source; None without a live table."""
        if not self.has_live:
            return None
        return oldest(self.flush_seconds(now=now), self.oldest_unapplied_at, now=now)


def oldest(flush_seconds: float | None, unapplied_at: float | None, *, now: float) -> float | None:
    """How far a table is behind the source: ingest's own lag, or the age of the oldest change in the
    spool that the table lacks. None while neither is known.
    """
    ages = [] if unapplied_at is None else [max(0.0, now - unapplied_at)]
    return max([*ages, *([] if flush_seconds is None else [flush_seconds])], default=None)


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


def stages(at: Positions, *, now: float) -> tuple[Stage, ...]:
    """The stages in the order of the data."""
    flush_s, server_lsn = at.flush_seconds(now=now), at.server_lsn
    reached = server_lsn is not None
    # What is durable was received, if not on the present connection.
    received = None if at.received_lsn is None else max(at.received_lsn, at.durable_lsn)
    confirmed = at.confirmed_lsn
    confirmed_s = flush_s if confirmed and confirmed >= at.flushed_lsn else at.behind_seconds(confirmed, now=now)
    return (
        Stage("server", server_lsn, 0 if reached else None, 0.0 if reached else None),
        Stage("received", at.received_lsn or None, at.behind_bytes(received), at.behind_seconds(received, now=now)),
        Stage("flushed", at.flushed_lsn or None, at.behind_bytes(at.durable_lsn), flush_s),
        Stage("confirmed", confirmed, at.behind_bytes(confirmed), confirmed_s),
        Stage("applied", at.applied_lsn or None, at.behind_bytes(at.applied_lsn), at.apply_seconds(now=now)),
    )


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


def headroom(server: ServerFacts | None, slot: SlotFacts | None, history: SourceHistory) -> Headroom | None:
    """None when the server was not reached or there is no slot that keeps anything."""
    if server is None or slot is None or slot.restart_lsn is None:
        return None
    safe = slot.safe_wal_size
    return Headroom(
        max(0, server.wal_end_lsn - slot.restart_lsn),
        safe,
        history.bytes_per_second(),
        history.seconds_until_lost(safe),
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

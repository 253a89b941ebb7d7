"""Why a table is read again from a new snapshot, and how often one may be without anybody asking.
Pure.

Invariant: a table that changes in a loop is read again with growing pauses, and never for more than
a share of the time; one that was left in peace for a while is read again at once.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

PAUSES_SECONDS = (0.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0)
"""Least time between the beginnings of two snapshots that nobody asked for, by how many there were in
a row; the last one repeats.
"""
PEACE_SECONDS = 2 * PAUSES_SECONDS[-1]
"""A table that needed no snapshot for this long begins at the first pause again."""
REST = 3.0
"""A table rests this many times as long as its last snapshot took: it is read for at most a quarter
of the time.
"""


class Cause(StrEnum):
    """Why a lake table no longer equals its source table, or is made anew.

    `rewrite`: rows changed without an event. `schema`: a change of the columns that cannot be
    followed. `key`: rows are identified otherwise. `type`: labels of an enum or attributes of a
    composite type. `partition`: partitions came, went or were truncated. `publication`: what is
    published changed, or the table left and came back. `rename`: the lake path follows a new name.
    `value`: a change arrived that cannot be written. `unreadable`: so does the snapshot. `gap`:
    changes are lost to the stream. `rules`: other column rules hold. `interrupted`: chunks of a snapshot were
    read, and the rest cannot be joined with them. `contract`: columns changed, and the table's contract is
    stop. `request`: an operator asked. `recovered`: the table could not be carried before.
    """

    REWRITE = "rewrite"
    SCHEMA = "schema"
    KEY = "key"
    TYPE = "type"
    PARTITION = "partition"
    PUBLICATION = "publication"
    RENAME = "rename"
    VALUE = "value"
    UNREADABLE = "unreadable"
    GAP = "gap"
    CONTRACT = "contract"
    INTERRUPTED = "interrupted"
    RULES = "rules"
    REQUEST = "request"
    RECOVERED = "recovered"

    @property
    def heals(self) -> bool:
        """Whether a new snapshot is taken without anybody asking, where the policy allows. What another
        one would not fix, or would fix for all tables at once, is for people to decide.
        """
        return self not in (Cause.UNREADABLE, Cause.GAP, Cause.CONTRACT)


@dataclass(frozen=True, slots=True)
class Resyncs:
    """The generations of a table after its first one. Times are ISO 8601 UTC by the writer's clock.

    `counts` is by cause. `streak` counts those in a row that nobody asked for, the newest of which
    began at `begun_at` and had its rows at `read_at` (empty: not yet).
    """

    counts: dict[str, int] = field(default_factory=dict)
    streak: int = 0
    begun_at: str = ""
    read_at: str = ""

    def begun(self, cause: str, at: str) -> "Resyncs":
        """Another generation began."""
        if not cause:
            return self
        counts = {**self.counts, cause: self.counts.get(cause, 0) + 1}
        if cause in (Cause.REQUEST, Cause.INTERRUPTED):
            return replace(self, counts=counts)
        last = self.read_at or self.begun_at
        in_a_row = bool(last) and _seconds(last, at) < PEACE_SECONDS
        return Resyncs(counts, self.streak + 1 if in_a_row else 1, at, "")

    def read(self, at: str) -> "Resyncs":
        """Its rows are there."""
        return replace(self, read_at=at) if self.begun_at and not self.read_at else self

    def next_at(self, now: datetime) -> datetime:
        """When the next one may begin without anybody asking, `now` at the earliest."""
        if not self.begun_at:
            return now
        begun = datetime.fromisoformat(self.begun_at)
        pause = timedelta(seconds=PAUSES_SECONDS[min(self.streak, len(PAUSES_SECONDS) - 1)])
        at = begun + pause
        read = datetime.fromisoformat(self.read_at) if self.read_at else begun
        at = max(at, read + REST * (read - begun))
        # A clock that was set back must not make a table wait for years.
        return max(now, at) if max(begun, read) <= now else now


def due(resync_at: str, now: datetime) -> bool:
    """Whether the time `resync_at` has come; never where it is empty."""
    return bool(resync_at) and datetime.fromisoformat(resync_at) <= now


def text(at: datetime) -> str:
    """`at` as it is stored."""
    return at.astimezone(UTC).isoformat(timespec="seconds")


def _seconds(since: str, until: str) -> float:
    return (datetime.fromisoformat(until) - datetime.fromisoformat(since)).total_seconds()

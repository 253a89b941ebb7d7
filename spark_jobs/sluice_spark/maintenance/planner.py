"""When a table is maintained, and what is done then. Pure: facts and clocks in, the next turn out.

Owns three promises. The time that maintenance takes stays within its share, except for the task that is
under way when the share is used up. No turn begins while the pipeline is behind. And no table waits for
ever: among those that need a turn, the one that waited longest for one gets it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

VERSIONS, DIRECT_VERSIONS = 20, 200
"""New versions of a table after which its files are counted. Windows that are committed directly keep their
small files few themselves; what is left is files of which many rows are removed.
"""
PRESSING = 3
"""A table that needs its turn so many times over gets it although windows are due, as long as the pipeline is
not behind: its windows get slower with each file.
"""
DAY = 86_400.0
START_DEBT_SECONDS = 1.0
"""Of work that a new process owes at first: one that is restarted again and again maintains nothing."""
SAVED_SECONDS = 60.0
"""Of work at most that time without any task saves up."""
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 60.0, 6 * 3600.0
"""After a failure, and after many."""
BEHIND_SECONDS = 60.0
"""The pipeline is behind when a window has been due for longer: then no turn begins."""
PATIENCE_SECONDS, LONGEST_PATIENCE_SECONDS = 30.0, 240.0
"""How long windows wait for a turn that is under way before it is called off. It doubles for a turn that was
called off before; at 300 s status and alerts call the lake behind.
"""

MIB = 1 << 20
TIERS = (MIB, 16 * MIB, 128 * MIB)
"""Files below one of these are joined when there are FILES_OF_A_TIER, into files of at most the last: a row
is written anew about once for each tier.
"""
FILES_OF_A_TIER = 16
SPARSE = 0.2
"""A file with a larger share of removed rows is written anew."""
PURGED, PURGED_BYTES = 0.1, 4 << 30
"""A table with a larger share of removed rows is written anew where it has any, if it has at most so many
bytes. Of a larger one only sparse files are.
"""


class Turn(StrEnum):
    """What a table is maintained for: `tidy` counts its files and puts them in order, `vacuum` removes those
    that no version needs.
    """

    TIDY = "tidy"
    VACUUM = "vacuum"


Key = tuple[str, Turn]
"""A table's id and one of its turns."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """One table that may be maintained now: its Delta version, whether windows are committed directly, and
    when files that no version needs go (`retention_seconds`; None: they stay).

    `vacuumed_seconds` ago its last vacuum ended, at `vacuumed_version`; see `contract.applied.Maintenance`.
    """

    table_id: str
    version: int
    direct: bool
    tidied_version: int
    retention_seconds: float | None
    vacuumed_version: int
    vacuumed_seconds: float
    settled: bool

    def need(self, turn: Turn) -> float:
        """How many times over the table needs the turn: nothing below 1."""
        if turn is Turn.TIDY:
            return (self.version - self.tidied_version) / (DIRECT_VERSIONS if self.direct else VERSIONS)
        if self.retention_seconds is None or (self.settled and self.version == self.vacuumed_version):
            return 0.0
        apart = min(self.retention_seconds, DAY)
        if self.version == self.vacuumed_version:
            # Nothing was added since: what the last vacuum left goes when its time has come.
            apart = self.retention_seconds
        return self.vacuumed_seconds / apart


@dataclass(slots=True)
class Budget:
    """Seconds of work that may be spent, a `share` of the time that passes. Spending may make debts, which
    time pays.
    """

    share: float
    credit: float = -START_DEBT_SECONDS
    _at: float | None = None

    def affords(self, now: float) -> bool:
        """Whether a task may begin at `now`."""
        if self._at is not None:
            self.credit = min(SAVED_SECONDS, self.credit + self.share * max(0.0, now - self._at))
        self._at = now
        return self.share > 0 and self.credit >= 0

    def spend(self, seconds: float) -> None:
        """A task took `seconds`."""
        self.credit -= seconds


class Turns:
    """Which table gets the next turn, with what came of the turns before. Times are on the loop's clock."""

    def __init__(self, share: float) -> None:
        self.budget = Budget(share)
        self._turned: dict[Key, float] = {}
        """When each last had its turn."""
        self._not_before: dict[Key, float] = {}
        self._failures: dict[Key, int] = {}
        self._patience: dict[Key, float] = {}

    def choose(
        self, tables: Iterable[TableFacts], *, waiting: Mapping[str, float], now: float
    ) -> tuple[TableFacts, Turn] | None:
        """The turn that begins at `now`, None for none. `waiting` has the tables with a window that is due, and
        for how many seconds it has been. `tables` is asked only when a turn may begin.
        """
        if not self.budget.affords(now) or max(waiting.values(), default=0.0) > BEHIND_SECONDS:
            return None
        needed = [
            (self._turned.get((table.table_id, turn), float("-inf")), -need, table.table_id, turn, table)
            for table in tables
            for turn in Turn
            if (need := table.need(turn)) >= (PRESSING if waiting else 1)
            and self._not_before.get((table.table_id, turn), float("-inf")) <= now
        ]
        if not needed:
            return None
        *_, turn, table = min(needed, key=lambda item: item[:4])
        return table, turn

    def is_late(self, key: Key, *, began: float, waiting: Mapping[str, float], now: float) -> bool:
        """Whether windows have waited long enough for the turn that began at `began`."""
        return min(max(waiting.values(), default=0.0), now - began) > self._patience.get(key, PATIENCE_SECONDS)

    def done(self, key: Key, *, seconds: float, now: float) -> None:
        """The turn ended well after `seconds`."""
        self._ended(key, seconds, now)
        for kept in (self._failures, self._not_before, self._patience):
            kept.pop(key, None)

    def put_off(self, key: Key, *, seconds: float, now: float) -> None:
        """The turn gave way after `seconds`. It is due again later, and windows then wait longer for it."""
        self._ended(key, seconds, now)
        self._not_before[key] = now + FIRST_WAIT_SECONDS
        self._patience[key] = min(2 * self._patience.get(key, PATIENCE_SECONDS), LONGEST_PATIENCE_SECONDS)

    def failed(self, key: Key, *, seconds: float, now: float) -> int:
        """The turn failed after `seconds`. It is due again after a pause that grows. Returns the failures in a row."""
        self._ended(key, seconds, now)
        self._failures[key] = self._failures.get(key, 0) + 1
        self._not_before[key] = now + min(
            FIRST_WAIT_SECONDS * 2.0 ** min(self._failures[key] - 1, 20), LONGEST_WAIT_SECONDS
        )
        return self._failures[key]

    def _ended(self, key: Key, seconds: float, now: float) -> None:
        self.budget.spend(seconds)
        self._turned[key] = now


@dataclass(frozen=True, slots=True)
class FileCounts:
    """What the files of a table look like. `below` counts files smaller than each of TIERS; `sparse` those
    that are SPARSE; `rows` include the `removed` ones.
    """

    files: int
    below: tuple[int, ...]
    sparse: int
    bytes: int
    rows: int
    removed: int


@dataclass(frozen=True, slots=True)
class Join:
    """Files smaller than `below`, and sparse ones, are written anew together."""

    below: int


@dataclass(frozen=True, slots=True)
class Tidying:
    """What is worth doing."""

    join: Join | None
    purge: bool


def worth_doing(counts: FileCounts) -> Tidying:
    """What to do with the files of a table."""
    full = next((limit for limit, count in zip(TIERS, counts.below, strict=True) if count >= FILES_OF_A_TIER), 0)
    purge = counts.removed > PURGED * counts.rows and counts.bytes <= PURGED_BYTES
    # One sparse file alone is not written anew by a join.
    join = Join(full) if full or (counts.sparse > 1 and not purge) else None
    return Tidying(join, purge)

"""What comparisons of source and lake found, as far as it concerns the tables of now."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sluice.contract import keys
from sluice.contract.applied import time_of
from sluice.contract.verified import DIFFERENT, Verified, VerifiedTable
from sluice.errors import FormatTooNew, ManifestCorrupt, ObjectMissing, StoreRefused
from sluice.health.facts import ComparisonSeen
from sluice.manifest.newest_record import newest_verified
from sluice.manifest.values import TableState
from sluice.store.base import ObjectStore

LATE_INTERVALS = 3.0
"""A table is to be found equal at least once in so many intervals."""


@dataclass(frozen=True, slots=True)
class Comparisons:
    """All that is recorded of them. `unread` is why that cannot be read: `record` is then what was last read."""

    record: Verified = field(default_factory=Verified)
    unread: str = ""

    @classmethod
    def read(cls, store: ObjectStore, *, known: "Comparisons | None" = None) -> "Comparisons":
        """Nobody needs to have compared anything. `known` is what was read before. Raises StoreUnavailable."""
        newest, key = newest_verified(store), keys.VERIFIED
        try:
            key = newest.key()
            return cls(newest.at(key) or Verified())
        except (ObjectMissing, ManifestCorrupt, FormatTooNew, StoreRefused) as error:
            return cls(known.record if known is not None else Verified(), f"{key}: {error}")

    def of(self, state: TableState) -> VerifiedTable | None:
        """What was found of the generation in force."""
        found = self.record.tables.get(state.key)
        return found if found is not None and found.generation == state.generation else None

    def is_late(self, state: TableState, *, now: float) -> bool:
        """Whether the table was to be found equal before `now`."""
        seen = self._seen(state)
        return seen is not None and seen.late_at is not None and seen.late_at < now

    def seen(self, tables: Mapping[str, TableState]) -> Iterator[ComparisonSeen]:
        """Tables that differ, and when the others are to be found equal."""
        for state in tables.values():
            if (seen := self._seen(state)) is not None:
                yield seen

    def _seen(self, state: TableState) -> ComparisonSeen | None:
        found, name = self.of(state), state.title
        if not state.state.has_initial_rows or state.table_id == "0":
            return None
        if found is not None and found.outcome == DIFFERENT:
            return ComparisonSeen(name, found.differences, _seconds(found.compared_at))
        if not self.record.every_seconds or (found is not None and not found.possible):
            return None
        last = max(_seconds(self.record.since), _seconds(state.since), _seconds(found.at) if found else 0.0)
        late_at = last + LATE_INTERVALS * self.record.every_seconds
        return ComparisonSeen(name, 0, last, late_at, found.reason if found is not None else "")


def _seconds(text: str) -> float:
    return time_of(text) if text else 0.0

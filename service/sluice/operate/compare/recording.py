"""What comparisons found, kept where every report finds it.

Invariant: what one writer keeps, no other one takes away: each writes the whole of what is recorded with
its own part changed, under the next number, which only one of them gets. Only a continuous comparison
says that tables are compared continuously, and only `ended` that they are not.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import structlog

from sluice.contract import keys
from sluice.contract.verified import DIFFERENT, EQUAL, NOT_COMPARED, Verified, VerifiedTable
from sluice.errors import FormatTooNew, ManifestCorrupt, ObjectExists, StoreRefused, StoreUnavailable
from sluice.manifest.newest_record import newest_verified
from sluice.manifest.values import TableState
from sluice.operate.compare.comparing import Comparison
from sluice.store.base import ObjectStore

KEPT = 20
"""Records that stay for a reader who is late."""
ATTEMPTS = 100
"""At the next number: each attempt that fails is one of somebody else that did not."""

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


class Record:
    """The record in `store`. With `every_seconds` all that it writes says that tables are compared so often."""

    def __init__(self, store: ObjectStore, *, every_seconds: float = 0.0, clock: Clock = utc_now) -> None:
        self._store = store
        self._clock = clock
        self.every_seconds = every_seconds

    def read(self) -> Verified:
        """What is recorded. Raises StoreError, ManifestCorrupt and FormatTooNew."""
        return newest_verified(self._store).read() or Verified()

    def note(self, state: TableState, verdict: Comparison) -> None:
        """Keeps `verdict` about the table of `state`. A comparison that ends needs no right to keep it: it says
        so. Raises StoreError; ManifestCorrupt and FormatTooNew when what is recorded cannot be read.
        """
        now = self._now()
        try:
            self._change(lambda found: _noted(found, state, verdict, now=now))
        except (StoreRefused, ManifestCorrupt, FormatTooNew) as error:
            if self.every_seconds:
                raise
            structlog.get_logger("verify").warning("the results are not kept", error=str(error), hint=error.hint)

    def begin(self) -> None:
        """Says that tables are compared continuously. Raises as `note` does."""
        self._change(lambda found: found)

    def ended(self) -> None:
        """Says that nobody is expected to compare continuously. One that still does says otherwise with its
        next result. Raises as `note` does.
        """
        self._change(lambda found: replace(found, every_seconds=0.0, since=""))

    def _change(self, change: Callable[[Verified], Verified]) -> None:
        for _ in range(ATTEMPTS):
            newest = newest_verified(self._store)
            key = newest.key()
            found = newest.at(key) or Verified()
            number = keys.record_number(key) + 1
            content = self._expecting(change(found)).encode()
            try:
                self._store.create(keys.verified(number), content)
            except ObjectExists:
                continue
            if newest_verified(self._store).number() < number + KEPT:
                self._collect(number - KEPT)
                return
            # So many others were faster that the number was free again: nobody reads it.
            self._store.delete(keys.verified(number))
        raise StoreUnavailable("other processes record results at the same time", hint="it is tried again")

    def _collect(self, through: int) -> None:
        """Those that ended before they collected anything left more than one."""
        for key in list(self._store.list(keys.VERIFIED)):
            if keys.record_number(key) <= through:
                self._store.delete(key)

    def _expecting(self, found: Verified) -> Verified:
        """A comparer that is started again and again does not put off when tables are late."""
        if not self.every_seconds or found.every_seconds == self.every_seconds:
            return found
        return replace(found, every_seconds=self.every_seconds, since=self._now())

    def _now(self) -> str:
        return self._clock().isoformat(timespec="seconds")


def _noted(found: Verified, state: TableState, verdict: Comparison, *, now: str) -> Verified:
    before = found.tables.get(state.key)
    if before is None or before.generation != state.generation:
        before = VerifiedTable(state.generation, NOT_COMPARED, now)
    possible = verdict.outcome != NOT_COMPARED or verdict.passing
    table = replace(before, compared_at=now, reason=verdict.reason, possible=possible)
    if verdict.outcome == EQUAL:
        table = replace(table, lsn=max(verdict.lsn, before.lsn), at=now)
    if verdict.outcome == DIFFERENT:
        table = replace(table, differences=len(verdict.difference), different_lsn=verdict.lsn)
    elif verdict.outcome == EQUAL and verdict.lsn >= before.different_lsn:
        table = replace(table, differences=0, different_lsn=0)
    # What was found stays found until a comparison at a later position finds otherwise.
    outcome = DIFFERENT if table.differences else verdict.outcome
    return replace(found, tables={**found.tables, state.key: replace(table, outcome=outcome)})

"""What comparisons found, kept where every report finds it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import structlog

from sluice.contract import keys
from sluice.contract.verified import EQUAL, NOT_COMPARED, Verified, VerifiedTable
from sluice.errors import FormatTooNew, ManifestCorrupt, ObjectMissing, StoreRefused
from sluice.manifest.state import TableState
from sluice.operate.compare.comparing import Verdict
from sluice.store.base import ObjectStore

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    return datetime.now(UTC)


class Record:
    """The record in `store`. With `every_seconds` it says that tables are compared continuously from now on,
    without it that they are not.
    """

    def __init__(self, store: ObjectStore, *, every_seconds: float = 0.0, clock: Clock = utc_now) -> None:
        self._store = store
        self._clock = clock
        self.every_seconds = every_seconds
        self._since = self._now() if every_seconds else ""

    def read(self) -> Verified:
        """What is recorded; nothing where the record is gone or of another form. Raises StoreError."""
        try:
            return Verified.decode(self._store.get(keys.VERIFIED))
        except (ObjectMissing, ManifestCorrupt, FormatTooNew):
            return Verified()

    def note(self, state: TableState, verdict: Verdict) -> None:
        """Keeps `verdict` about the table of `state`. Raises StoreError."""
        found = self.read()
        before = found.tables.get(state.table_id)
        if before is not None and before.generation != state.generation:
            before = None
        now = self._now()
        table = VerifiedTable(
            state.generation,
            verdict.outcome,
            now,
            before.lsn if before else 0,
            before.at if before else "",
            len(verdict.difference),
            verdict.reason,
            verdict.outcome != NOT_COMPARED or verdict.passing,
        )
        if verdict.outcome == EQUAL:
            table = replace(table, lsn=verdict.lsn, at=now)
        elif verdict.outcome == NOT_COMPARED and before is not None and before.differences:
            # What was found stays found until a comparison finds otherwise.
            table = replace(table, outcome=before.outcome, differences=before.differences)
        self._put(found, {**found.tables, state.table_id: table})

    def begin(self) -> None:
        """Says whether tables are compared continuously. Raises StoreError."""
        found = self.read()
        self._put(found, found.tables)

    def _put(self, found: Verified, tables: dict[str, VerifiedTable]) -> None:
        """A comparison needs no right to write: without it nothing is kept."""
        now = replace(found, every_seconds=self.every_seconds, since=self._since, tables=tables)
        try:
            self._store.put(keys.VERIFIED, now.encode())
        except StoreRefused as error:
            if self.every_seconds:
                raise
            structlog.get_logger("verify").warning("what was found is not kept", error=str(error), hint=error.hint)

    def _now(self) -> str:
        return self._clock().isoformat(timespec="seconds")

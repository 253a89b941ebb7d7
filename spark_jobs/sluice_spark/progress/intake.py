"""From the manifest into the ledger: when to look for new entries, and how many to hold.

Owns that reading is bounded in memory, that an idle manifest costs one request per look, and since
when each entry could be read. That is the time of the look that found it; entries found while
catching up could be read at the look that found the first of them. The clocks of ingest and of the
source do not matter. For one thread.
"""

from sluice import faults
from sluice.manifest.reader import read_entries
from sluice.store.base import ObjectStore
from sluice_spark.progress.ledger import Ledger
from sluice_spark.read.window import BEFORE

MAX_BACKLOG = 20_000
"""Entries held in memory over all tables; reading pauses above."""
READ_AT_ONCE = 500
GAPS_SECONDS, GAPS_LOOKS = 10.0, 12
"""Between two listings, which tell an entry that was lost from the end of the manifest; and at least so many of the
longest pauses, for a listing costs twelve times what a look costs.
"""
PAUSES_GROW = 1.5
"""From one look that finds nothing to the next one."""


class Intake:
    """Fills `ledger` from the manifest in `store`, with a look every `poll_seconds`; while looks find nothing the
    pauses grow to `idle_seconds`.
    """

    def __init__(self, store: ObjectStore, ledger: Ledger, *, poll_seconds: float, idle_seconds: float = 0.0) -> None:
        self._store = store
        self._ledger = ledger
        self._poll_seconds = self._pause = poll_seconds
        self._idle_seconds = max(idle_seconds, poll_seconds)
        self._gaps_seconds = max(GAPS_SECONDS, GAPS_LOOKS * idle_seconds)
        self._gaps_at = BEFORE
        self._since = BEFORE
        """When the first entry could be read that is not read yet, while the end is not reached."""
        self._catching_up = True
        self.next_look = BEFORE
        """When the next look is due, on the loop's clock."""

    def read(self, *, now: float) -> bool:
        """Reads what is due at `now`. True when there may be more to read at once. Raises StoreError,
        ManifestCorrupt, FormatTooNew.
        """
        ledger = self._ledger
        ledger.trim()
        if ledger.pending_entries() >= MAX_BACKLOG:
            self.next_look = now + self._poll_seconds
            self._catching_up = True
            return False
        again = self._read_again()
        if now >= self.next_look or self._catching_up:
            self._look(now)
        return self._catching_up or again > 0

    def _look(self, now: float) -> None:
        ledger = self._ledger
        # While catching up, the next entry may be in an archive, which is looked for with gaps only.
        gaps = self._catching_up or now - self._gaps_at >= self._gaps_seconds
        if not self._catching_up:
            self._since = now
        previous_sha256 = ledger.state.previous_sha256 if ledger.read_seq == ledger.state.seq else None
        count = 0
        for entry, sha256 in read_entries(
            self._store,
            after_seq=ledger.read_seq,
            previous_sha256=previous_sha256 or None,
            limit=READ_AT_ONCE,
            gaps=gaps,
        ):
            ledger.take_in(entry, sha256, since=self._since)
            count += 1
        faults.point("apply.entries.read")
        self._catching_up = count == READ_AT_ONCE
        self._gaps_at = now if gaps else self._gaps_at
        self._pause = self._poll_seconds if count else min(self._pause * PAUSES_GROW, self._idle_seconds)
        self.next_look = now + self._pause

    def _read_again(self) -> int:
        """For tables that were not given all that was read, and continue."""
        count = 0
        for table_id, seq in self._ledger.behind().items():
            for entry, _ in read_entries(
                self._store, after_seq=seq - 1, limit=min(READ_AT_ONCE, self._ledger.read_seq - seq + 1)
            ):
                self._ledger.take_again(table_id, entry)
                count += 1
                if self._ledger.tables[table_id].pending.halted_seq == entry.seq:
                    break
        return count

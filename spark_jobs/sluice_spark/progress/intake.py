"""From the manifest into the ledger: when to look for new entries, and how many to hold.

Owns that reading is bounded in memory, that an idle manifest costs one request per look and few looks, and since
when each entry could be read: since the look that found it, and while catching up since the look that found the first
of them. The clocks of ingest and of the source do not matter. An ingest on this machine rings when an entry is there:
then looks only guard against a ring that was lost. For one thread.
"""

from collections.abc import Callable

from sluice import faults
from sluice.contract.entries import Entry, Progress
from sluice.manifest.ending import Ending
from sluice.manifest.reader import read_entries
from sluice.store.base import ObjectStore
from sluice_spark.progress.ledger import Ledger
from sluice_spark.progress.wakeup import Wakeup
from sluice_spark.read.window import BEFORE

MAX_BACKLOG = 20_000
"""Entries held in memory over all tables; reading pauses above."""
READ_AT_ONCE = 500
GAPS_SECONDS, GAPS_LOOKS = 10.0, 12
"""Between two listings, which tell an entry that was lost from the end of the manifest; and at least so many of the
longest pauses, for a listing costs twelve times what a look costs.
"""
QUIET_SHARE = 0.05
"""Of the time since the last change came: so long is the next pause while looks find nothing, or only advances."""
APART_SHARE, LONGEST_APART_SECONDS = 0.75, 1.5
"""Of the time between two changes, and at most: so long nothing is looked for behind a change."""
HEARD_SECONDS = 120.0
"""Between two looks at a paid store while ingest rings for each entry."""


class Intake:
    """Fills `ledger` from the manifest in `store`, with a look every `poll_seconds`; while nothing changes the pauses
    grow to `idle_seconds`, which is more than `poll_seconds` where a look costs money. With `last_seq` nothing is read
    behind that entry, and nobody is heard who rings. Entries are cut as `ending` says. `seen` is called with each entry
    that the ledger took in, and its hash.
    """

    def __init__(
        self,
        store: ObjectStore,
        ledger: Ledger,
        *,
        poll_seconds: float,
        idle_seconds: float = 0.0,
        last_seq: int | None = None,
        ending: Ending | None = None,
        seen: Callable[[Entry, str], None] = lambda _entry, _sha256: None,
    ) -> None:
        self._store = store
        self.last_seq = last_seq
        self._ending = ending
        self._ledger = ledger
        self._seen = seen
        self.wakeup = Wakeup()
        """Who rings for entries."""
        self._poll_seconds = poll_seconds
        self._idle_seconds = max(idle_seconds, poll_seconds)
        self._heard_seconds = max(HEARD_SECONDS, idle_seconds) if idle_seconds > poll_seconds else poll_seconds
        self._is_heard = False
        """Whether ingest rang for the newest entry."""
        self._deaf_until = BEFORE
        self._changed_at = BEFORE
        self._gaps_seconds = max(GAPS_SECONDS, GAPS_LOOKS * idle_seconds)
        self._gaps_at = BEFORE
        self._since = BEFORE
        """When the first entry could be read that is not read yet, while the end is not reached."""
        self._catching_up = True
        self.next_look = BEFORE
        """When the next look is due, on the loop's clock."""

    def listen(self) -> None:
        """Hears the ingest of this machine from now on, until `wakeup` is closed."""
        if self.last_seq is None:
            self.wakeup.listen(self._store)

    def read(self, *, now: float, rung: int = 0) -> bool:
        """Reads what is due at `now`, and through entry `rung`, for which ingest rang. True when there may be more to
        read at once. Raises StoreError, ManifestCorrupt, FormatTooNew.
        """
        ledger = self._ledger
        ledger.trim()
        if ledger.pending_entries() >= MAX_BACKLOG:
            self.next_look = now + self._poll_seconds
            self._catching_up = True
            return False
        again = self._read_again()
        if self._catching_up or now >= self.next_look:
            self._look(now)
        elif rung > ledger.read_seq and now >= self._deaf_until:
            self.next_look = now  # should the store not answer: nobody rings again
            self._look(now, rung=rung)
        return self._catching_up or again > 0

    def _look(self, now: float, *, rung: int = 0) -> None:
        ledger = self._ledger
        # While catching up, the next entry may be in an archive, which is looked for with gaps only.
        gaps = self._catching_up or now - self._gaps_at >= self._gaps_seconds
        if not self._catching_up:
            self._since = now
        previous_sha256 = ledger.state.previous_sha256 if ledger.read_seq == ledger.state.seq else None
        limit = min(READ_AT_ONCE, rung - ledger.read_seq) if rung else READ_AT_ONCE
        if self.last_seq is not None:
            limit = max(0, min(limit, self.last_seq - ledger.read_seq))
        count = changes = 0
        for entry, sha256 in read_entries(
            self._store, after_seq=ledger.read_seq, previous_sha256=previous_sha256 or None, limit=limit, gaps=gaps
        ):
            ledger.take_in(self._cut(entry), sha256, since=self._since)
            self._seen(entry, sha256)
            count += 1
            changes += not isinstance(entry.body, Progress)
        faults.point("apply.entries.read")
        self._catching_up = count == READ_AT_ONCE
        self._gaps_at = now if gaps else self._gaps_at
        self._is_heard = count == limit if rung else self._is_heard and not count
        if rung and count < limit:
            self._deaf_until = now + self._poll_seconds  # it was not there yet, or nobody of ours rang
        apart = now - self._changed_at
        if changes or self._changed_at == BEFORE:
            self._changed_at = now
        self.next_look = now + self._pause(now - self._changed_at, apart=apart if changes else 0.0)

    def _cut(self, entry: Entry) -> Entry:
        return entry if self._ending is None else self._ending.cut(entry)

    def _pause(self, quiet: float, *, apart: float) -> float:
        """After `quiet` seconds without a change, or after one that came `apart` from the one before."""
        if self._is_heard:
            return self._heard_seconds
        wanted = max(QUIET_SHARE * quiet, min(APART_SHARE * apart, LONGEST_APART_SECONDS), self._poll_seconds)
        return min(wanted, self._idle_seconds)

    def _read_again(self) -> int:
        """For tables that were not given all that was read, and continue."""
        count = 0
        for table_id, seq in self._ledger.behind().items():
            for entry, _ in read_entries(
                self._store, after_seq=seq - 1, limit=min(READ_AT_ONCE, self._ledger.read_seq - seq + 1)
            ):
                self._ledger.take_again(table_id, self._cut(entry))
                count += 1
                if self._ledger.tables[table_id].pending.halted_seq == entry.seq:
                    break
        return count

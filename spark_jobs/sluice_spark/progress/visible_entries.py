"""When the changes of each entry can be read in the lake, for who traces it.

Owns that an entry is called visible once, when every lake table that it changes and that follows has its changes. A
table that is stopped meanwhile is not waited for, and the entry says how many are not. Bounded: past MOST_ENTRIES the
oldest is dropped. For the applier's loop.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sluice.contract.applied import time_of
from sluice.contract.entries import Changes, Entry
from sluice.tracing.spans import Published
from sluice.tracing.tracer import Tracer
from sluice_spark.progress.ledger import Ledger

MOST_ENTRIES = 10_000


@dataclass(slots=True)
class _Waiting:
    entry: Published
    tables: int
    """That do not have its changes yet."""
    left_out: int = 0


class VisibleEntries:
    """Follows the tables of `ledger`, and says what it sees to `tracer`."""

    def __init__(self, ledger: Ledger, tracer: Tracer, *, clock: Callable[[], float] = time.time) -> None:
        self._ledger, self._tracer, self._clock = ledger, tracer, clock
        self._entries: dict[int, _Waiting] = {}
        self._by_table: dict[str, deque[int]] = {}

    def take_in(self, entry: Entry, sha256: str) -> None:
        """The next entry, which the ledger has taken in."""
        body = entry.body
        published = (
            Published.of(
                body,
                seq=entry.seq,
                sha256=sha256,
                from_lsn=entry.from_lsn,
                through_lsn=entry.through_lsn,
                durable_at=time_of(entry.written_at),
            )
            if isinstance(body, Changes)
            else None
        )
        if published is None or not isinstance(body, Changes):
            return
        keys = {key for segment in body.segments for key in self._ledger.targets.keys(segment.table_id)}
        behind = [key for key in keys if self._applied(key) < entry.seq]
        if not behind:
            return  # an earlier process saw it
        if len(self._entries) >= MOST_ENTRIES:
            self._entries.pop(next(iter(self._entries)))
        self._entries[entry.seq] = _Waiting(published, len(behind))
        for key in behind:
            self._by_table.setdefault(key, deque()).append(entry.seq)

    def look(self) -> None:
        """Says which entries have become visible. Once per round of the loop."""
        for key, waiting in list(self._by_table.items()):
            follows = key in self._ledger.tables and self._ledger.may_apply(key)
            applied = self._applied(key)
            while waiting and (not follows or waiting[0] <= applied):
                self._passed(waiting.popleft(), left_out=int(not follows))
            if not waiting:
                del self._by_table[key]

    def _passed(self, seq: int, *, left_out: int) -> None:
        found = self._entries.get(seq)
        if found is None:
            return
        found.tables -= 1
        found.left_out += left_out
        if not found.tables:
            del self._entries[seq]
            self._tracer.visible(found.entry, at=self._clock(), left_out=found.left_out)

    def _applied(self, key: str) -> int:
        progress = self._ledger.tables.get(key)
        return progress.pending.through_seq(self._ledger.read_seq) if progress is not None else 0

"""How old the lake is: for sampled transactions, the time from the commit at the source to the newest of the
Delta commits that contain it, over all lake tables that its manifest entry has rows of.

All of it are facts that others can check: the clerk's commit, the entry with its transaction id, and
the time of the file in `_delta_log`. No polling error enters.
"""

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from sluice.contract.entries import Changes
from sluice.manifest.newest_record import newest_log
from sluice.manifest.reader import read_entries
from sluice.store.base import ObjectStore
from tools.local.lake_log import Tail

FRESHNESS = "500ms"
"""`apply.freshness` of the demonstration. With the default, 2 s, a window costs less CPU for each change, and a change
waits for it up to 2 s.
"""
_EVERY = 5
"""One commit in this many is sampled."""


class Freshness:
    """Collects commits from any thread; reads the manifest in `spool`, one pipeline's own prefix, and the logs of
    the lake tables at `paths`.
    """

    def __init__(self, spool: ObjectStore, paths: Iterable[Path]) -> None:
        self._spool = spool
        self._tails = [Tail(path) for path in paths]
        self._lock = threading.Lock()
        self._seen = 0
        self._commits: dict[int, float] = {}
        self._read_seq = 0
        self._entries: dict[int, tuple[int, frozenset[str]]] = {}
        """The number of each transaction's entry, and the oids of the tables that the entry has rows of."""

    def committed(self, *, xid: int, at: float) -> None:
        """Transaction `xid` has committed `at` (unix seconds)."""
        with self._lock:
            self._seen += 1
            if self._seen % _EVERY == 0:
                self._commits[xid] = at

    def seconds(self, *, since: float) -> list[float]:
        """Sorted ages of the sampled commits made after `since` that the lake holds by now."""
        with self._lock:
            for tail in self._tails:
                tail.follow()
            for entry, _ in read_entries(self._spool, after_seq=self._read_seq):
                self._read_seq = entry.seq
                if isinstance(entry.body, Changes):
                    oids = frozenset(segment.table_id.split("/")[0] for segment in entry.body.segments)
                    self._entries |= dict.fromkeys(entry.body.commits.xid, (entry.seq, oids))
            return sorted(self._ages(since))

    def _ages(self, since: float) -> Iterator[float]:
        visible = {found: self._visible_at(*found) for found in set(self._entries.values())}
        for xid, at in self._commits.items():
            seen = visible[self._entries[xid]] if xid in self._entries else None
            if at >= since and seen is not None:
                yield max(0.0, seen - at)

    def _visible_at(self, seq: int, oids: frozenset[str]) -> float | None:
        """When the last lake table of these tables had entry `seq`, None while one has not."""
        tails = [tail for tail in self._tails if not tail.oid or tail.oid in oids]
        try:
            return max((tail.first_through(seq).at for tail in tails), default=None)
        except ValueError:
            return None


def complete_through(spool: ObjectStore) -> int:
    """The LSN through which the applier reports every table to be complete, 0 while any is not live."""
    log = newest_log(spool).read()
    tables = log.tables.values() if log else ()
    return min((one.complete_through_lsn if one.state == "live" else 0 for one in tables), default=0)


def percentile(ages: list[float], share: float) -> float | None:
    """The age that `share` of the sorted `ages` do not exceed, None without any."""
    return ages[min(len(ages) - 1, int(len(ages) * share))] if ages else None

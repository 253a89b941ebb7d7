"""The hash of each manifest entry, which a commit names beside the entry's number.

After an older copy of the spool was restored, numbers belong to other entries. Only the hash tells whether a lake table
has what the manifest has under that number.
"""

import threading
from collections import OrderedDict

from sluice.manifest import entry_lookup, horizon
from sluice.store.base import ObjectStore
from sluice_spark.lake.foreign_commits import ABSENT

KEPT = 10_000
"""Hashes in memory, those of the newest entries: about 270 bytes each."""


class EntryHashes:
    """Of the manifest in `store`. From any thread."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._known: OrderedDict[int, str] = OrderedDict()
        self._lock = threading.Lock()

    def take_in(self, seq: int, sha256: str) -> None:
        """Entry `seq` was read, and its bytes have that hash."""
        with self._lock:
            self._known[seq] = sha256
            while len(self._known) > KEPT:
                self._known.popitem(last=False)

    def of(self, seq: int) -> str:
        """The hash of entry `seq`, empty if it was pruned, ABSENT if the manifest does not have it. Raises
        ManifestCorrupt, FormatTooNew, StoreError.
        """
        with self._lock:
            known = self._known.get(seq)
        if known is not None:
            return known
        found = entry_lookup.find(self._store, seq)
        if found is None:
            # In this order: an entry that is pruned meanwhile is below the floor by then.
            return "" if seq <= horizon.floor_seq(self._store) else ABSENT
        self.take_in(seq, found.sha256)
        return found.sha256

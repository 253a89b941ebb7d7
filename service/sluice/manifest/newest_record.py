"""The newest of what is kept as numbered records: the applier's log and completions, and what comparisons
found.

Invariant: numbers only grow, so each look lists what came after the last one found.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from sluice.contract import keys
from sluice.contract.applied import AppliedLog, Complete
from sluice.contract.verified import Verified
from sluice.errors import ObjectMissing
from sluice.store.base import ObjectStore

Record = TypeVar("Record")


class NewestRecord(Generic[Record]):
    """The newest record of one folder. For one thread."""

    def __init__(self, store: ObjectStore, folder: str, decode: Callable[[bytes], Record]) -> None:
        self._store = store
        self._folder = folder
        self._decode = decode
        self._key = ""

    def read(self) -> Record | None:
        """None while there is none. Raises StoreError, ManifestCorrupt, FormatTooNew."""
        return self.at(self.key())

    def told(self, key: str) -> Record | None:
        """The record at `key`, which somebody said is the newest: without a listing, unless it is gone. Raises as
        `read` does.
        """
        try:
            found = self._decode(self._store.get(key))
        except ObjectMissing:
            return self.read()
        self._key = max(self._key, key)
        return found

    def at(self, key: str) -> Record | None:
        """The record at `key`, None for an empty one. Raises as `read` does."""
        return self._decode(self._store.get(key)) if key else None

    def number(self) -> int:
        """The number of the newest record, 0 while there is none. Raises StoreError."""
        return keys.record_number(self.key())

    def key(self) -> str:
        """Where the newest record is, empty while there is none. Raises StoreError."""
        self._key = max(self._store.list(self._folder, after=self._key), default=self._key)
        return self._key


def newest_log(store: ObjectStore) -> NewestRecord[AppliedLog]:
    return NewestRecord(store, keys.APPLY_LOG, AppliedLog.decode)


def newest_complete(store: ObjectStore) -> NewestRecord[Complete]:
    return NewestRecord(store, keys.APPLY_COMPLETE, Complete.decode)


def newest_verified(store: ObjectStore) -> NewestRecord[Verified]:
    return NewestRecord(store, keys.VERIFIED, Verified.decode)

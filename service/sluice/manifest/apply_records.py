"""The newest of what the applier wrote: its log and its completions.

Invariant: numbers only grow, so each look lists what came after the last one found.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from sluice.contract import keys
from sluice.contract.applied import AppliedLog, Complete
from sluice.store.base import ObjectStore

Record = TypeVar("Record")


class Newest(Generic[Record]):
    """The newest record of one folder. For one thread."""

    def __init__(self, store: ObjectStore, folder: str, decode: Callable[[bytes], Record]) -> None:
        self._store = store
        self._folder = folder
        self._decode = decode
        self._key = ""

    def read(self) -> Record | None:
        """None while there is none. Raises StoreError, ManifestCorrupt, FormatTooNew."""
        key = self._find()
        return self._decode(self._store.get(key)) if key else None

    def number(self) -> int:
        """The number of the newest record, 0 while there is none. Raises StoreError."""
        return int(self._find().removeprefix(self._folder).removesuffix(".json") or 0)

    def _find(self) -> str:
        self._key = max(self._store.list(self._folder, after=self._key), default=self._key)
        return self._key


def newest_log(store: ObjectStore) -> Newest[AppliedLog]:
    return Newest(store, keys.APPLY_LOG, AppliedLog.decode)


def newest_complete(store: ObjectStore) -> Newest[Complete]:
    return Newest(store, keys.APPLY_COMPLETE, Complete.decode)

"""Where the spool is, as a value for executors too, and the view that a replay has of it.

Invariant: a replay writes nothing into the spool. What an applier keeps below `apply/` (lease, reports, scratch) lies
elsewhere for it, and every other key can be read only: the pipeline that owns the spool never notices.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from sluice.contract import keys
from sluice.errors import StoreRefused
from sluice.store.base import ObjectStore
from sluice.store.opening import open_store


@dataclass(frozen=True, slots=True)
class StorePrefix:
    """A prefix of a store, as `open_store` takes it. With `notes` it belongs to another process, and what lies below
    `apply/` is in there.
    """

    uri: str
    prefix: str
    options: tuple[tuple[str, str], ...] = field(repr=False)
    notes: "StorePrefix | None" = None

    def open(self) -> ObjectStore:
        """The same one for the life of an executor's process."""
        return _opened(self)


@lru_cache(maxsize=16)
def _opened(place: StorePrefix) -> ObjectStore:
    return opened(place)


def opened(place: StorePrefix) -> ObjectStore:
    """A store of its own."""
    store = open_store(place.uri, prefix=place.prefix, options=dict(place.options))
    return store if place.notes is None else SpoolOfAnother(store, opened(place.notes))


class SpoolOfAnother:
    """`ObjectStore` that shows `spool`, and has everything below `apply/` in `notes`."""

    def __init__(self, spool: ObjectStore, notes: ObjectStore) -> None:
        self._spool, self._notes = spool, notes

    def get(self, key: str) -> bytes:
        return self._of(key).get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._of(key).get_range(key, start, length)

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._own(key).put(key, data)

    def create(self, key: str, data: bytes | memoryview) -> None:
        self._own(key).create(key, data)

    def size(self, key: str) -> int | None:
        return self._of(key).size(key)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        return self._of(prefix).list(prefix, after=after)

    def delete(self, key: str) -> None:
        self._own(key).delete(key)

    def describe(self) -> str:
        return self._spool.describe()

    def _of(self, key: str) -> ObjectStore:
        return self._notes if key.startswith(keys.APPLY) else self._spool

    def _own(self, key: str) -> ObjectStore:
        if not key.startswith(keys.APPLY):
            raise StoreRefused(f"{key} belongs to the pipeline, and a replay only reads it")
        return self._notes

"""Objects in this process's memory: for tests and dry runs, shared by name.

Invariant: the same guarantees as any other store, except that the objects end with the process. It
must not be offered for production data.
"""

import threading
from collections.abc import Iterator

from sluice import faults
from sluice.errors import ObjectExists, ObjectMissing, StoreUnavailable
from sluice.store.base import checked_key, checked_prefix


class MemoryObjects:
    """What several MemoryStores of one name share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_key: dict[str, bytes] = {}


_named: dict[str, MemoryObjects] = {}
_named_lock = threading.Lock()


def named(name: str) -> MemoryObjects:
    """The objects that go by `name` in this process."""
    with _named_lock:
        return _named.setdefault(name, MemoryObjects())


class MemoryStore:
    """ObjectStore over a dictionary."""

    def __init__(self, name: str, *, prefix: str = "") -> None:
        self._objects = named(name)
        self._prefix = checked_prefix(prefix)
        self._uri = f"memory://{name}/{prefix}"

    def get(self, key: str) -> bytes:
        with self._objects.lock:
            found = self._objects.by_key.get(self._full(key))
        if found is None:
            raise ObjectMissing(f"get of {key!r} in {self._uri}: no such object")
        return found

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key)[start : start + length]

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._pass("store.put.before", key)
        with self._objects.lock:
            self._objects.by_key[self._full(key)] = bytes(data)
        self._pass("store.put.after", key)

    def create(self, key: str, data: bytes | memoryview) -> None:
        self._pass("store.create.before", key)
        with self._objects.lock:
            if self._full(key) in self._objects.by_key:
                raise ObjectExists(f"create of {key!r} in {self._uri}: something is there")
            self._objects.by_key[self._full(key)] = bytes(data)
        self._pass("store.create.after", key)

    def size(self, key: str) -> int | None:
        with self._objects.lock:
            found = self._objects.by_key.get(self._full(key))
        return None if found is None else len(found)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        start = self._prefix + checked_prefix(prefix)
        with self._objects.lock:
            keys = [key[len(self._prefix) :] for key in self._objects.by_key if key.startswith(start)]
        return iter(sorted(key for key in keys if key > after))

    def delete(self, key: str) -> None:
        with self._objects.lock:
            self._objects.by_key.pop(self._full(key), None)

    def describe(self) -> str:
        return self._uri

    def _full(self, key: str) -> str:
        return self._prefix + checked_key(key)

    def _pass(self, fault: str, key: str) -> None:
        try:
            faults.point(fault)
        except OSError as error:
            raise StoreUnavailable(f"write of {key!r} in {self._uri} failed") from error

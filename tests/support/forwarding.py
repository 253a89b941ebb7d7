"""A store in front of another one, for tests that hold up or refuse some of its calls."""

import threading
from collections.abc import Iterator

from sluice.errors import StoreUnavailable
from sluice.store.base import ObjectStore


class Forwarding(ObjectStore):
    """Hands every call on to `inner`."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner

    def get(self, key: str) -> bytes:
        return self.inner.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.inner.get_range(key, start, length)

    def put(self, key: str, data: bytes | memoryview) -> None:
        self.inner.put(key, data)

    def create(self, key: str, data: bytes | memoryview) -> None:
        self.inner.create(key, data)

    def size(self, key: str) -> int | None:
        return self.inner.size(key)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        return self.inner.list(prefix, after=after)

    def delete(self, key: str) -> None:
        self.inner.delete(key)

    def describe(self) -> str:
        return self.inner.describe()


class HeldStore(Forwarding):
    """Answers no write while `closed` is set; with `files` it takes files all the same, and no entries."""

    def __init__(self, inner: ObjectStore, *, files: bool = False) -> None:
        super().__init__(inner)
        self.closed = threading.Event()
        self.refused = threading.Event()
        self._files = files

    def _check(self) -> None:
        if self.closed.is_set():
            self.refused.set()
            raise StoreUnavailable("the store does not answer")

    def put(self, key: str, data: bytes | memoryview) -> None:
        if not self._files:
            self._check()
        super().put(key, data)

    def create(self, key: str, data: bytes | memoryview) -> None:
        self._check()
        super().create(key, data)

"""A store in front of another one, for tests that hold up or refuse some of its calls."""

from collections.abc import Iterator

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

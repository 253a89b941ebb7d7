"""Stores in memory that know what they were asked for, and can be away or refuse."""

from collections.abc import Callable, Iterator

from sluice.errors import StoreRefused, StoreUnavailable
from sluice.store.memory import MemoryStore

EVERYTHING = ""


class WatchedStore(MemoryStore):
    """`asked` has the keys and prefixes that were read, `listed` counts the keys that listings returned. While it is
    `away`, nothing can be read. Keys that begin with what it `refuses` cannot be written. `before_create` is called
    right before something is created.
    """

    gets = puts = sizes = listings = listed = 0
    away = False
    refuses: str | None = None

    def __init__(self, name: str, *, prefix: str = "", before_create: Callable[[], None] = lambda: None) -> None:
        super().__init__(name, prefix=prefix)
        self.asked: list[str] = []
        self._before_create = before_create

    def get(self, key: str) -> bytes:
        self.gets += 1
        self.asked.append(key)
        if self.away:
            raise StoreUnavailable("away")
        return super().get(key)

    def put(self, key: str, data: bytes | memoryview) -> None:
        self.puts += 1
        self._allowed(key)
        super().put(key, data)

    def create(self, key: str, data: bytes | memoryview) -> None:
        self._before_create()
        self._allowed(key)
        super().create(key, data)

    def _allowed(self, key: str) -> None:
        if self.refuses is not None and key.startswith(self.refuses):
            raise StoreRefused(f"the store refuses s3:PutObject for {self.refuses}")

    def size(self, key: str) -> int | None:
        self.sizes += 1
        self.asked.append(key)
        return super().size(key)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        self.listings += 1
        self.asked.append(prefix)
        for key in super().list(prefix, after=after):
            self.listed += 1
            yield key

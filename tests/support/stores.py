"""Stores in memory that know what they were asked for."""

from collections.abc import Iterator

from sluice.store.memory import MemoryStore


class Counting(MemoryStore):
    """`asked` has the keys and prefixes."""

    def __init__(self, name: str, *, prefix: str = "") -> None:
        super().__init__(name, prefix=prefix)
        self.asked: list[str] = []

    def get(self, key: str) -> bytes:
        self.asked.append(key)
        return super().get(key)

    def size(self, key: str) -> int | None:
        self.asked.append(key)
        return super().size(key)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        self.asked.append(prefix)
        return super().list(prefix, after=after)

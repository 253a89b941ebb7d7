"""How long the steps of a window take, by name."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class Phases(dict[str, float]):
    """Seconds by phase; a phase that is entered again adds to its seconds."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Times the block, also when it raises."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._more(name, time.monotonic() - began)

    def add(self, other: Mapping[str, float]) -> None:
        """Adds the seconds of `other`."""
        for name, seconds in other.items():
            self._more(name, seconds)

    def _more(self, name: str, seconds: float) -> None:
        self[name] = self.get(name, 0.0) + seconds

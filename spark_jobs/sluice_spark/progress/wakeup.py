"""What ends a pause of the applier's loop early: ingest rang for a manifest entry.

Invariant: no ring is lost between two rounds of the loop, and any number of them wakes it once.
"""

import threading
from concurrent.futures import Future

from sluice.store.base import ObjectStore
from sluice.store.doorbell import Listener


class Wakeup:
    """`ring` may be called from any thread, the rest from the loop's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self.rung: Future[None] = Future()
        """Done once somebody rang since the last `take`."""
        self._bell: Listener | None = None

    def listen(self, store: ObjectStore) -> None:
        """Hears the ingest of this machine that works on `store`, until `close`."""
        self._bell = Listener(store, "applier", self.ring)

    def close(self) -> None:
        """Hears nobody any more."""
        if self._bell is not None:
            self._bell.close()

    def ring(self, number: int) -> None:
        """The manifest has entry `number`, says somebody."""
        with self._lock:
            self._number = max(self._number, number)
            if not self.rung.done():
                self.rung.set_result(None)

    def take(self) -> int:
        """The greatest number that was rung since the last time; 0 without a ring."""
        with self._lock:
            number, self._number = self._number, 0
            if self.rung.done():
                self.rung = Future()
            return number

"""People at work in the local stack's shop, for as long as one likes to watch."""

import threading
import time
from collections.abc import Callable

from tools.demo import shop

_PAUSE_SECONDS = 0.02
_LINE_SECONDS = 5.0


class Load:
    """Clerks who work until `stop` is set."""

    def __init__(self, dsn: str, *, clerks: int, stop: threading.Event) -> None:
        self._stop = stop
        self._clerks = [shop.Clerk(dsn, seed=time.time_ns() + number) for number in range(clerks)]

    def run(self, *, seconds: float | None, say: Callable[[str], None]) -> int:
        """Works for `seconds`, or until stopped, and says how it goes. The transactions committed.
        Raises what went wrong.
        """
        threads = [
            threading.Thread(target=clerk.work, args=(self._stop,), kwargs={"pause_seconds": _PAUSE_SECONDS})
            for clerk in self._clerks
        ]
        for thread in threads:
            thread.start()
        try:
            self._watch(time.monotonic() + seconds if seconds is not None else float("inf"), say)
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        self._raise_problem()
        return self._transactions()

    def _watch(self, end: float, say: Callable[[str], None]) -> None:
        before, since = 0, time.monotonic()
        while (left := end - time.monotonic()) > 0 and not self._stop.wait(min(_LINE_SECONDS, left)):
            self._raise_problem()
            transactions, now = self._transactions(), time.monotonic()
            say(f"{transactions:,} transactions committed, {(transactions - before) / (now - since):.0f} a second")
            before, since = transactions, now

    def _transactions(self) -> int:
        return sum(clerk.transactions for clerk in self._clerks)

    def _raise_problem(self) -> None:
        for clerk in self._clerks:
            if clerk.problem is not None:
                raise clerk.problem

"""What a command asks of store and server, with a deadline for the answer."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from sluice.errors import StoreUnavailable

if TYPE_CHECKING:
    from sluice.health.report import Report
    from sluice.health.reporter import Reporter
    from sluice.store.base import ObjectStore

PACKAGES = ("psycopg", "obstore")
"""What a look needs to be installed."""
LOOK_SECONDS = 20.0
"""All that a look may take."""
HINT_SECONDS = 5.0
"""What a hint may take that nobody relies on."""
abandoned = threading.Event()
"""Set once a look was left to itself. Threads below it may wait for minutes, and an ordinary end of the process
for them.
"""

_KEYS_AT_ONCE = 1000

Answer = TypeVar("Answer")


class PromptStore:
    """`store` for a command that somebody waits for and that reads no more than the manifest: each call ends within
    LOOK_SECONDS. What it raises, and StoreUnavailable. A write may happen after that.
    """

    def __init__(self, store: "ObjectStore") -> None:
        self._store = store

    def get(self, key: str) -> bytes:
        return self._asked(lambda: self._store.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._asked(lambda: self._store.get_range(key, start, length))

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._asked(lambda: self._store.put(key, data))

    def create(self, key: str, data: bytes | memoryview) -> None:
        self._asked(lambda: self._store.create(key, data))

    def size(self, key: str) -> int | None:
        return self._asked(lambda: self._store.size(key))

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        keys = self._store.list(prefix, after=after)
        while some := self._asked(lambda: [*islice(keys, _KEYS_AT_ONCE)]):
            yield from some

    def delete(self, key: str) -> None:
        self._asked(lambda: self._store.delete(key))

    def describe(self) -> str:
        return self._store.describe()

    def _asked(self, call: Callable[[], Answer]) -> Answer:
        return within(LOOK_SECONDS, call, who="the object store")


def take(reporter: "Reporter") -> "Report":
    """A report within LOOK_SECONDS. What it raises, and StoreUnavailable."""
    return within(LOOK_SECONDS, reporter.take)


def hasten(store: "ObjectStore", lsn: int) -> None:
    """Asks ingest to pass `lsn` soon, if `store` takes that within HINT_SECONDS."""
    from sluice.operate.hastening import hasten as ask

    with suppress(StoreUnavailable):
        within(HINT_SECONDS, partial(ask, store, lsn))


def within(seconds: float, look: Callable[[], Answer], *, who: str = "the object store or the server") -> Answer:
    """What `look` returns within `seconds`, whatever hangs: libraries try for minutes, and who asks wants
    to know now. What it raises, and StoreUnavailable, which says `who` does not answer.
    """
    answer: queue.SimpleQueue[tuple[Answer] | BaseException] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answer.put((look(),))
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            answer.put(error)

    # The process does not wait for it.
    threading.Thread(target=ask, name="look", daemon=True).start()
    try:
        taken = answer.get(timeout=seconds)
    except queue.Empty:
        abandoned.set()
        raise StoreUnavailable(
            f"reading the pipeline took more than {seconds:.0f} s: {who} accepts connections and does not answer",
            hint="check spool.uri, its endpoint, the server, and the network and proxies between",
        ) from None
    if isinstance(taken, BaseException):
        raise taken
    return taken[0]

"""What a command asks of store and server, with a deadline for the answer."""

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
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

Answer = TypeVar("Answer")


def take(reporter: "Reporter") -> "Report":
    """A report within LOOK_SECONDS. What it raises, and StoreUnavailable."""
    return within(LOOK_SECONDS, reporter.take)


def hasten(store: "ObjectStore", lsn: int) -> None:
    """Asks ingest to pass `lsn` soon, if `store` takes that within HINT_SECONDS."""
    from sluice.operate.hastening import hasten as ask

    with suppress(StoreUnavailable):
        within(HINT_SECONDS, partial(ask, store, lsn))


def within(seconds: float, look: Callable[[], Answer]) -> Answer:
    """What `look` returns within `seconds`, whatever hangs: libraries try for minutes, and who asks wants
    to know now. What it raises, and StoreUnavailable.
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
            f"reading the pipeline took more than {seconds:.0f} s: the object store or the server accepts "
            "connections and does not answer",
            hint="check spool.uri, its endpoint, the server, and the network and proxies between",
        ) from None
    if isinstance(taken, BaseException):
        raise taken
    return taken[0]

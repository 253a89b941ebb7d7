"""Jobs beside the windows, one after the other in a thread of their own.

Owns that a job which was begun always ends its future, whatever it raises: who waits for it learns of that.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

from sluice.telemetry.logs import in_context

Outcome = TypeVar("Outcome")


class Beside(Generic[Outcome]):
    """The thread called `name`, which starts with the first job. For one other thread, which begins the jobs."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # Not one of a pool: the interpreter would wait for it at its end, whatever it waits for.
        self._thread = threading.Thread(target=in_context(self._work), name=name, daemon=True)

    def begin(self, job: Callable[[], Outcome]) -> "Future[Outcome]":
        """What `job` will have come to."""
        future: Future[Outcome] = Future()

        def run() -> None:
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 - who waits for it judges it
                future.set_exception(error)

        self._jobs.put(run)
        if self._thread.ident is None:
            self._thread.start()
        return future

    def close(self, last: "Future[Outcome] | None", *, seconds: float) -> None:
        """No job begins any more. Waits for `last` that long at most."""
        self._jobs.put(None)
        if last is not None:
            wait([last], timeout=seconds)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

"""How one ingest stops: what must end at once, what may finish, and when a stop ends without it.

Invariant: a stop takes `stop_timeout` in all, whatever the server and the store do. What only
begins something, such as connecting or reading a table, is cancelled when the stop is asked for.
What finishes work that was received may go on until its share of the time is over.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from sluice.errors import Interrupted
from sluice.source.cancelling import Cancellation
from sluice.source.sessions import SourceOptions
from sluice.stopping import Stop

GRACE_SECONDS = 1.0
"""For what must end, to do so."""

Answer = TypeVar("Answer")


class IngestStop:
    """Belongs to the event loop, except for `threads` and the two ways to the source: `starting`
    for what begins something, `finishing` for what is needed to finish what was received. The first
    is `source` itself, whose cancellation the stop cancels.
    """

    def __init__(self, source: SourceOptions, clock: Stop) -> None:
        self.starting = source
        self.finishing = replace(source, cancellation=Cancellation())
        self.asked = asyncio.Event()
        self.threads = threading.Event()
        """Set when threads that wait for the store must end."""
        self._clock = clock
        self._over = asyncio.Event()

    def ask(self, *, give_up: Callable[[Interrupted], None]) -> None:
        """Begins the stop; the first call counts. `give_up` is called when the time to finish is
        over. The time runs from here, or from where the clock was asked before.
        """
        if self.asked.is_set():
            return
        self.asked.set()
        self.starting.cancellation.cancel()
        self._clock.ask()
        asyncio.get_running_loop().call_later(self._clock.left_to_finish(), self._give_up, give_up)

    def _give_up(self, then: Callable[[Interrupted], None]) -> None:
        """Ends whatever still waits for the store or the source. The next start gets it again."""
        self.end_threads()
        then(self._out_of_time())
        asyncio.get_running_loop().call_later(GRACE_SECONDS, self._over.set)

    def end_threads(self) -> None:
        """No thread waits for the store or the source any longer."""
        self.threads.set()
        self.finishing.cancellation.cancel()

    async def within(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """What `work` returns or raises; Interrupted when the patience of the stop ends first. Threads that
        it waits for are then left to themselves.
        """
        task = asyncio.ensure_future(work)
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({task, over}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise self._out_of_time()
        finally:
            for one in (task, over):
                one.cancel()
            await asyncio.wait({task, over}, timeout=GRACE_SECONDS)

    async def sleep(self, seconds: float, *, unless: asyncio.Event | None = None) -> None:
        """Returns early when the stop begins, and when `unless` is set."""
        if unless is None:  # the usual case, without a task
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.asked.wait()
            return
        waiting = [asyncio.ensure_future(event.wait()) for event in (self.asked, unless)]
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()

    def time_left(self) -> asyncio.Timeout:
        """Bounds what is left to do by the time that is left, at least a moment."""
        return asyncio.timeout(max(self._clock.left() - GRACE_SECONDS, GRACE_SECONDS))

    def _out_of_time(self) -> Interrupted:
        return Interrupted(
            f"stopped before all that was received was published: the stop may take {self._clock.seconds:.0f} s in all",
            hint="nothing is lost: the server sends what was not acknowledged again after the next start; stop_timeout "
            "says how long a stop may take",
        )

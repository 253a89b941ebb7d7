"""What a process tells others about its work, sent beside it: spans to a collector, events of lineage.

Invariant: whoever puts something in never waits and never fails. What does not fit, or is not taken, is dropped and
counted. The log says once that a receiver takes nothing, and once that it does again. Ends within the time that
`close` gives.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import structlog

LIMIT = 2048
"""Items that may wait."""
AT_ONCE = 256

Item = TypeVar("Item")


class NotTaken(Exception):
    """The receiver did not take what was sent. The text is ours, and quotes nothing of what the receiver said."""


class Outbox(Generic[Item]):
    """Hands items to `send` from a thread of its own, some at once and in order. `send` raises NotTaken, after which
    they are sent again behind each of `pauses` (seconds), and are lost then. `counted` is given "sent" or "dropped"
    and how many, by the `weight` of each item, from any thread. `to` is what the log calls the receiver.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Item]], None],
        *,
        to: str,
        counted: Callable[[str, int], None],
        weight: Callable[[Item], int] = lambda _: 1,
        pauses: Sequence[float] = (),
        limit: int = LIMIT,
        at_once: int = AT_ONCE,
    ) -> None:
        self._send, self._counted, self._weight = send, counted, weight
        self._pauses, self._at_once = pauses, at_once
        self._waiting: queue.Queue[Item | None] = queue.Queue(limit)
        self._closing = threading.Event()
        self._fails = False
        self._log = structlog.get_logger("telemetry").bind(to=to)
        self._thread = threading.Thread(target=self._run, name=to, daemon=True)
        self._thread.start()

    def put(self, item: Item) -> None:
        """Sends `item` later. From any thread."""
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            self._counted("dropped", self._weight(item))

    def close(self, *, seconds: float) -> None:
        """Sends what waits, if that takes no longer than `seconds`."""
        until = time.monotonic() + seconds
        self._closing.set()
        try:
            self._waiting.put(None, timeout=seconds)
        except queue.Full:
            return
        self._thread.join(max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        ended = False
        while not ended:
            batch: list[Item] = []
            item = self._waiting.get()
            while item is not None:
                batch.append(item)
                if len(batch) == self._at_once or self._waiting.empty():
                    break
                item = self._waiting.get()
            ended = item is None
            if batch:
                self._deliver(batch)

    def _deliver(self, batch: Sequence[Item]) -> None:
        for pause in (*self._pauses, None):
            try:
                self._send(batch)
            except NotTaken as error:
                if not self._fails:
                    self._log.warning("the receiver takes nothing, what waits for it is dropped", error=str(error))
                self._fails = True
                if pause is None or self._closing.wait(pause):
                    break
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the thread
                self._log.error("what is to be sent cannot be made", exc_info=error)
                break
            else:
                if self._fails:
                    self._log.info("the receiver takes what is sent again")
                self._fails = False
                self._counted("sent", sum(map(self._weight, batch)))
                return
        self._counted("dropped", sum(map(self._weight, batch)))

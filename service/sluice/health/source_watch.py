"""Asks the server for everything that health needs of it, and remembers the answers.

Invariant: page and metrics see the same answers and the same history; one question is under way at
a time.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sluice.errors import ServiceError
from sluice.health.source_history import SourceHistory
from sluice.source.sessions import SourceOptions
from sluice.source.slot_probe import SlotProbe, SlotProbeFacts


@dataclass(frozen=True, slots=True)
class SourceAnswer:
    """What the server said when it was asked at `at` (unix seconds), or why it did not answer."""

    at: float
    facts: SlotProbeFacts | None
    error: ServiceError | None


class SourceWatch:
    """Asks about one slot. May be used from any thread. The connection is closed after each question
    unless `keep_open` was called.
    """

    def __init__(self, options: SourceOptions, *, clock: Callable[[], float] = time.time) -> None:
        self.application_name = options.application_name
        self._probe = SlotProbe(options)
        self._clock = clock
        self._keeps_open = False
        self._lock = threading.Lock()
        self._newest: SourceAnswer | None = None
        self._history = SourceHistory()

    @property
    def newest(self) -> SourceAnswer | None:
        """The last answer; None before the first."""
        return self._newest

    @property
    def history(self) -> SourceHistory:
        """As it is now; later answers do not change the value."""
        return self._history

    def ask(self, *, within_seconds: float = 0.0) -> SourceAnswer:
        """Asks the server, or returns the last answer if it is at most `within_seconds` old. Blocks,
        and raises nothing that is ours.
        """
        with self._lock:
            newest, now = self._newest, self._clock()
            if newest is not None and 0 <= now - newest.at <= within_seconds:
                return newest
            try:
                facts = self._probe.ask()
            except ServiceError as error:
                self._newest = SourceAnswer(now, None, error)
            else:
                self._newest = SourceAnswer(now, facts, None)
                self._history = self._history.noted(now, facts.server.wal_end_lsn)
            if not self._keeps_open:
                self._probe.close()
            return self._newest

    def precede(self, entries: Iterable[tuple[float, int]]) -> None:
        """What the manifest states of the time before the first answer; see `preceded_by`."""
        with self._lock:
            self._history = self._history.preceded_by(entries)

    def keep_open(self) -> None:
        """From now on the connection stays open between questions, until `close`."""
        self._keeps_open = True

    def close(self) -> None:
        """Closes the connection, also while another thread waits for an answer."""
        self._probe.close()

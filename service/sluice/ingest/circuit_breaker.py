"""Ends all work of a connection at its first failure: one circuit breaker, shared by the event loop, the
decoder, the uploads and the commit thread.

Invariant: from the moment a stage raised, no stage of that connection begins another piece of work.
It breaks in the thread that raised, before that thread takes its next piece, so no queue between two
stages can carry work past a failure. It is never reset: the next connection has a breaker of its own
and starts from the manifest.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

from sluice.errors import SessionBroken

Result = TypeVar("Result")


class CircuitBreaker:
    """Whole until the first error. Thread-safe. `on_break` is called once, with that error, in the
    thread that broke it.
    """

    def __init__(self, *, on_break: Callable[[BaseException], None]) -> None:
        self._on_break = on_break
        self._lock = threading.Lock()
        self._broken = threading.Event()
        self._error: BaseException | None = None

    @property
    def error(self) -> BaseException | None:
        """What broke it, None while it is whole."""
        return self._error

    def fail(self, error: BaseException) -> None:
        """Breaks it with `error`; the first one counts. The refusal of work by a broken breaker is
        no error of its own.
        """
        with self._lock:
            if self._error is not None or isinstance(error, SessionBroken):
                return
            self._error = error
            self._broken.set()
        self._on_break(error)

    def check(self) -> None:
        """Raises SessionBroken once it is broken."""
        if self._error is not None:
            raise SessionBroken(f"an earlier stage of this connection failed ({type(self._error).__name__})")

    def wait(self, seconds: float) -> bool:
        """Waits until it is broken, for `seconds` at most; returns whether it is."""
        return self._broken.wait(seconds)

    def guarded(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """`work` that is refused with SessionBroken when the breaker is broken, and that breaks it
        when it raises.
        """

        def run() -> Result:
            self.check()
            try:
                return work()
            except BaseException as error:
                self.fail(error)
                raise

        return run

"""SIGTERM, SIGINT and SIGHUP, taken in a thread of their own: they are heard before the event loop runs,
and while it stands still.

Invariants: the kernel's signal becomes a byte in a pipe at once, whatever the main thread does. The
first one that asks to stop is handed over, and kept until somebody takes it. The second one ends the
process at once, which is safe at any moment. SIGHUP asks to reload, unless the terminal went away:
then it asks to stop. Imports nothing of ours: it is armed before anything else is loaded.
"""

import os
import signal
import threading
import time
from collections.abc import Callable

_NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_STDERR = 2
_CAUGHT_UP = 0
"""No signal: whoever reads it from the pipe has heard all that came before."""


class Signals:
    """To be made once, in the main thread. From then on the signals have no other effect than
    what is handed to `hand_to`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: signal.Signals | None = None
        self._take: Callable[[signal.Signals], None] | None = None
        self._reload: Callable[[], None] | None = None
        self._reload_asked = False
        self._on_terminal = os.isatty(_STDERR)
        self._caught_up = threading.Event()
        reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in _NUMBERS:
            # Python writes to the pipe only for signals that have a handler.
            signal.signal(number, lambda *_: None)
        threading.Thread(target=self._listen, args=(reading,), name="signals", daemon=True).start()

    def hand_to(self, take: Callable[[signal.Signals], None]) -> None:
        """`take` is called with the first signal: in the thread of the signals, or here and now if
        it came before.
        """
        with self._lock:
            self._take = take
            first = self._first
        if first is not None:
            take(first)

    def hand_reload_to(self, reload: Callable[[], None]) -> None:
        """`reload` is called in the thread of the signals and must not block; here and now if SIGHUP came before. Then
        what was there may have been read already, and is no longer all that there is.
        """
        with self._lock:
            self._reload, asked = reload, self._reload_asked
        if asked:
            reload()

    def stand_down(self) -> bool:
        """For a process that makes place for another one: from now on a signal that asks to stop ends it at
        once, which is safe at any moment. Returns whether one has asked before. In the main thread.
        """
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        # One that came a moment ago may still be in the pipe.
        os.write(self._writing, bytes([_CAUGHT_UP]))
        self._caught_up.wait()
        with self._lock:
            return self._first is not None

    def _listen(self, reading: int) -> None:
        while True:
            for byte in os.read(reading, 64):
                if byte == _CAUGHT_UP:
                    self._caught_up.set()
                elif byte == signal.SIGHUP and not (self._on_terminal and not os.isatty(_STDERR)):
                    with self._lock:
                        self._reload_asked, reload = True, self._reload
                    if reload is not None:
                        reload()
                elif byte in _NUMBERS:
                    self._heard(signal.Signals(byte))

    def _heard(self, number: signal.Signals) -> None:
        with self._lock:
            if self._first is not None:
                os._exit(128 + number)
            self._first = number
            take = self._take
        if take is not None:
            # Not in this thread: the second signal must be heard whatever the first one waits for.
            threading.Thread(target=take, args=(number,), name="stop", daemon=True).start()


_armed: Signals | None = None


def bound_interrupts(seconds: float) -> None:
    """The process is gone `seconds` after the first Ctrl-C, whatever it waits for: Python hears a signal between two of
    its own steps, and a call to a store that hangs is one step for minutes. Does nothing in a process whose signals
    are armed. In the main thread.
    """
    if _armed is not None:
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def end() -> None:
        while signal.SIGINT not in os.read(reading, 64):
            pass
        time.sleep(seconds)
        os._exit(128 + signal.SIGINT)

    threading.Thread(target=end, name="interrupts", daemon=True).start()


def arm() -> Signals:
    """The signals of this process, armed at the first call."""
    global _armed  # noqa: PLW0603 - a process has one disposition for each signal
    if _armed is None:
        _armed = Signals()
    return _armed

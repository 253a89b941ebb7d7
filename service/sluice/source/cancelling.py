"""Ending blocking calls to PostgreSQL from another thread.

Invariant: after `cancel` no call of a session that was opened with this object goes on waiting,
whatever the server and the network do, and no new session is opened. The server is asked to stop
what it does for us, and is not waited for: the socket is shut down as well. (PostgreSQL: libpq,
Canceling Queries in Progress.)
"""

import socket
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg

from sluice.errors import SourceUnavailable

_Connection = psycopg.Connection[tuple[Any, ...]]

REQUEST_SECONDS = 1.0
"""For the request to cancel, which takes a connection of its own."""


class Cancellation:
    """One for all sessions that end together. Thread-safe."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._open: weakref.WeakKeyDictionary[_Connection, object] = weakref.WeakKeyDictionary()

    def cancel(self) -> None:
        """Ends what is under way and refuses what comes later. Returns at once."""
        with self._lock:
            if self._cancelled.is_set():
                return
            self._cancelled.set()
            sessions = list(self._open.items())
        for session, ends in sessions:
            threading.Thread(target=_end, args=(session, ends), name="cancel", daemon=True).start()

    def check(self) -> None:
        """Raises SourceUnavailable after `cancel`."""
        if self._cancelled.is_set():
            raise SourceUnavailable("the process is stopping and no longer waits for PostgreSQL")

    def sleep(self, seconds: float) -> None:
        """Raises SourceUnavailable as soon as `cancel` is called."""
        self._cancelled.wait(seconds)
        self.check()

    def connected(self, connect: Callable[[], _Connection]) -> _Connection:
        """What `connect` returns or raises. A name that is not resolved or a server that does not
        answer is waited for in a thread that can be left.
        """
        self.check()
        attempt = _Attempt(connect, self._cancelled)
        session = attempt.result()
        if session is None:
            self.check()
            raise AssertionError("an attempt without a result was not cancelled")
        with self._lock:
            self._open[session] = _ends(session)
        if self._cancelled.is_set():
            session.close()
            self.check()
        return session

    def release(self, session: _Connection) -> None:
        """`session` no longer makes blocking calls, and ends by itself."""
        with self._lock:
            self._open.pop(session, None)


class _Attempt:
    """One try to connect, in a thread of its own. A session that comes after nobody waits for it
    any more is closed.
    """

    def __init__(self, connect: Callable[[], _Connection], cancelled: threading.Event) -> None:
        self._connect = connect
        self._cancelled = cancelled
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._left = False
        self._session: _Connection | None = None
        self._error: BaseException | None = None

    def result(self) -> _Connection | None:
        """None when it was cancelled first. Raises what connecting raised."""
        threading.Thread(target=self._run, name="connect", daemon=True).start()
        while not self._over.wait(0.05) and not self._cancelled.is_set():
            pass
        with self._lock:
            self._left = True
            if self._error is not None:
                raise self._error
            return self._session

    def _run(self) -> None:
        session: _Connection | None = None
        error: BaseException | None = None
        try:
            session = self._connect()
        except BaseException as raised:  # noqa: BLE001 - handed to the thread that asked
            error = raised
        with self._lock:
            if not self._left:
                self._session, self._error = session, error
            elif session is not None:
                session.close()
        self._over.set()


def _end(session: _Connection, ends: object) -> None:
    with suppress(psycopg.Error, OSError):
        session.cancel_safe(timeout=REQUEST_SECONDS)
    with suppress(psycopg.Error, OSError):
        own = socket.socket(fileno=socket.dup(session.pgconn.socket))
        with own:
            # The number may be another socket's by now, if the session was closed in between.
            if (own.getsockname(), own.getpeername()) == ends:
                own.shutdown(socket.SHUT_RDWR)


def _ends(session: _Connection) -> object:
    """None of a connection that is lost already, which no call waits for."""
    with suppress(psycopg.Error, OSError), socket.socket(fileno=socket.dup(session.pgconn.socket)) as own:
        return own.getsockname(), own.getpeername()
    return None

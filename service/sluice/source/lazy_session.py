"""A query session that is opened when it is first needed, and again after a question failed.

Invariant: a session on which anything went wrong is closed and never asked again.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import psycopg

from sluice.source.sessions import SourceOptions, open_query

Answer = TypeVar("Answer")


class LazySession:
    """Thread-safe: questions wait for one another."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._lock = threading.Lock()

    def ask(self, question: Callable[[psycopg.Connection[tuple[Any, ...]]], Answer]) -> Answer:
        """What `question` returns for the open session. Raises SourceError when none can be opened,
        and whatever `question` raises; the next call opens another.
        """
        with self._lock:
            connection = self._connection
            if connection is None:
                connection = self._connection = open_query(self._options)
            try:
                return question(connection)
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Closes the session if there is one, also while another thread waits for an answer."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

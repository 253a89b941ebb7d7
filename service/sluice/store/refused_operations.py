"""How long a refusal is taken for a passing one.

Credentials are rotated, policies take minutes to reach every server, a gateway restarts and answers
404: an operation that has worked and is refused now may work again by itself. One that never worked
needs a human, at once. Pure apart from its lock; the clock is handed in.
"""

import threading
import time
from collections.abc import Callable

from sluice.errors import StoreError, StoreRefused, StoreUnavailable

PATIENCE_SECONDS = 120.0
"""Longer than a role's new credentials, or a changed policy, usually take to reach every server;
the source keeps its WAL meanwhile.
"""


class RefusedOperations:
    """What has worked, by operation and folder, and since when it is refused. Thread-safe."""

    def __init__(
        self, *, patience_seconds: float = PATIENCE_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._refused_since: dict[tuple[str, str], float | None] = {}

    def worked(self, operation: str, key: str) -> None:
        """The store carried it out."""
        with self._lock:
            self._refused_since[operation, _folder(key)] = None

    def judged(self, error: StoreRefused, operation: str, key: str) -> StoreError:
        """`error` itself, or StoreUnavailable while what worked before has not been refused for
        longer than the patience.
        """
        what, now = (operation, _folder(key)), self._clock()
        with self._lock:
            if what not in self._refused_since:
                return error
            since = self._refused_since[what]
            if since is None:
                since = self._refused_since[what] = now
        if now - since >= self._patience_seconds:
            return error
        return StoreUnavailable(
            f"{error}; it worked before and is tried again for {self._patience_seconds:.0f} s", hint=error.hint
        )


def _folder(key: str) -> str:
    """Rights are given by folder: what is allowed below `manifest/` says nothing about `data/`."""
    return key.partition("/")[0] if "/" in key else ""

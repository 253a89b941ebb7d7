"""How long a refusal is taken for a passing one.

Credentials are rotated, policies take minutes to reach every server, a gateway restarts and answers
404: an operation that has worked and is refused now may work again by itself. One that never worked
needs a human, at once. The identity is one for the whole store, so what worked anywhere in it counts:
the first write below a folder may fall into the seconds of a rotation. Pure apart from its lock; the
clock is handed in.
"""

import threading
import time
from collections.abc import Callable

from sluice.errors import StoreError, StoreRefused, StoreUnavailable

PATIENCE_SECONDS = 120.0
"""Longer than a role's new credentials, or a changed policy, usually take to reach every server;
the source keeps its WAL meanwhile.
"""
_RIGHT = {"put": "write", "create": "write"}
"""One right on every store. Any other operation is a right of its own name."""


class RefusedOperations:
    """What has worked in a store, and since when it is refused, by folder. Thread-safe."""

    def __init__(
        self, *, patience_seconds: float = PATIENCE_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._patience_seconds = patience_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._worked: set[str] = set()
        self._refused_since: dict[tuple[str, str], float] = {}

    def worked(self, operation: str, key: str) -> None:
        """The store carried it out."""
        right = _RIGHT.get(operation, operation)
        with self._lock:
            self._worked.add(right)
            self._refused_since.pop((right, _folder(key)), None)

    def judged(self, error: StoreRefused, operation: str, key: str) -> StoreError:
        """`error` itself, or StoreUnavailable while what worked before has not been refused for
        longer than the patience.
        """
        right, now = _RIGHT.get(operation, operation), self._clock()
        with self._lock:
            if right not in self._worked:
                return error
            since = self._refused_since.setdefault((right, _folder(key)), now)
        if now - since >= self._patience_seconds:
            return error
        return StoreUnavailable(
            f"{error}; such operations worked before, so this is retried for {self._patience_seconds:.0f} s",
            hint=error.hint,
        )


def _folder(key: str) -> str:
    """Rights can be given by folder: what works below `manifest/` does not end a refusal below `data/`."""
    return key.partition("/")[0] if "/" in key else ""

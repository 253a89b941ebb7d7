"""An object store that counts: every request by operation and outcome, and how long it took.

Invariant: it adds nothing and hides nothing; the guarantees are those of the store inside.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from sluice.errors import ObjectExists, ObjectMissing, StoreRefused, StoreUnavailable
from sluice.store.base import ObjectStore
from sluice.telemetry.catalogue import STORE_DURATION, STORE_REQUESTS
from sluice.telemetry.metrics import Metrics


class MeteredStore:
    """`ObjectStore` around `inner`."""

    def __init__(self, inner: ObjectStore, metrics: Metrics) -> None:
        self._inner = inner
        self._metrics = metrics

    def get(self, key: str) -> bytes:
        with self._counted("get"):
            return self._inner.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._counted("get"):
            return self._inner.get_range(key, start, length)

    def put(self, key: str, data: bytes | memoryview) -> None:
        with self._counted("put"):
            self._inner.put(key, data)

    def create(self, key: str, data: bytes | memoryview) -> None:
        with self._counted("create"):
            self._inner.create(key, data)

    def size(self, key: str) -> int | None:
        with self._counted("size"):
            return self._inner.size(key)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        """Counted when it ends; a listing that its reader ends early counts as well."""
        with self._counted("list"):
            yield from self._inner.list(prefix, after=after)

    def delete(self, key: str) -> None:
        with self._counted("delete"):
            self._inner.delete(key)

    def describe(self) -> str:
        return self._inner.describe()

    @contextmanager
    def _counted(self, operation: str) -> Iterator[None]:
        begin = time.monotonic()
        outcome = "error"
        try:
            yield
            outcome = "ok"
        except GeneratorExit:
            outcome = "ok"
            raise
        except ObjectExists:
            outcome = "conflict"
            raise
        except ObjectMissing:
            outcome = "missing"
            raise
        except StoreUnavailable:
            outcome = "unavailable"
            raise
        except StoreRefused:
            outcome = "refused"
            raise
        finally:
            self._metrics.add(STORE_REQUESTS, 1, operation=operation, outcome=outcome)
            self._metrics.observe(STORE_DURATION, time.monotonic() - begin, operation=operation)

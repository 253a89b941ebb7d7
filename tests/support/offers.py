"""Boundaries in a lake of memory, for whoever needs an applier's reports."""

import time
from collections.abc import Callable

from sluice.store.memory import MemoryStore
from sluice_spark.progress.offers import Offers

MANIFEST = "a manifest"


def offers(
    files: MemoryStore,
    *,
    retention_seconds: float = 3600.0,
    clock: Callable[[], float] = time.time,
    manifest: str = MANIFEST,
) -> Offers:
    """Those of pipeline `shop` in the lake `files`."""
    return Offers(files, pipeline="shop", manifest=lambda: manifest, retention_seconds=retention_seconds, clock=clock)

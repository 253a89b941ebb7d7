"""Boundaries in a lake of memory, for whoever needs an applier's reports."""

import time
from collections.abc import Callable

from sluice.errors import WriterFenced
from sluice.store.base import ObjectStore
from sluice_spark.progress.offers import Offers
from sluice_spark.progress.reports import Reports

MANIFEST = "a manifest"


def fenced() -> None:
    """`require_owner` of an applier that was replaced."""
    raise WriterFenced("another applier has taken this pipeline over")


def offers(
    files: ObjectStore,
    *,
    retention_seconds: float = 3600.0,
    clock: Callable[[], float] = time.time,
    manifest: str = MANIFEST,
    require_owner: Callable[[], None] = lambda: None,
    entry_sha256: Callable[[int], str] = lambda _seq: "",
) -> Offers:
    """Those of pipeline `shop` in the lake `files`."""
    return Offers(
        files,
        pipeline="shop",
        manifest=lambda: manifest,
        retention_seconds=retention_seconds,
        require_owner=require_owner,
        entry_sha256=entry_sha256,
        clock=clock,
    )


def reports(store: ObjectStore, offered: Offers, *, require_owner: Callable[[], None] = lambda: None) -> Reports:
    """Those of an applier whose boundaries are `offered`."""
    return Reports(store, instance="test", offers=offered, require_owner=require_owner)

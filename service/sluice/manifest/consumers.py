"""The consumers of the spool that pruning waits for. Reads only."""

import contextlib
from collections.abc import Iterator
from datetime import datetime

from sluice.contract.consumer import FOLDER, Consumer
from sluice.errors import ObjectMissing
from sluice.store.base import ObjectStore


def heard_of(store: ObjectStore, *, since: datetime) -> Iterator[Consumer]:
    """Those that have said since then how far they are. One whose time cannot be read counts as young. Raises
    ManifestCorrupt, FormatTooNew, StoreError.
    """
    for key in list(store.list(FOLDER)):
        with contextlib.suppress(ObjectMissing):
            found = Consumer.decode(store.get(key))
            if _is_young(found, since):
                yield found


def _is_young(found: Consumer, since: datetime) -> bool:
    try:
        return datetime.fromisoformat(found.at) > since
    except (ValueError, TypeError):
        return True

"""Asks the running ingest to pass a position soon: on a quiet source it records where it is only now and then, which on
an object store is minutes apart.

A hint: nobody relies on it, and where it may not be stored whoever asks waits longer.
"""

import uuid
from contextlib import suppress
from datetime import UTC, datetime

from sluice.contract import keys
from sluice.contract.control import ADVANCE, Request
from sluice.errors import StoreRefused, StoreUnavailable
from sluice.lsn import show
from sluice.store.base import ObjectStore
from sluice.store.calls import create_named
from sluice.store.doorbell import Doorbell

_NAMED = f"{ADVANCE}-"
MOST_WAITING = 10
"""While no ingest runs, they would become more with each question."""


def hasten(store: ObjectStore, lsn: int) -> None:
    """The manifest of `store` is to pass `lsn`."""
    with suppress(StoreRefused, StoreUnavailable):
        waiting = [key for key in store.list(keys.CONTROL) if key.startswith(keys.CONTROL + _NAMED)]
        if len(waiting) < MOST_WAITING:
            at = datetime.now(UTC).isoformat(timespec="seconds")
            key = keys.control_request(f"{_NAMED}{uuid.uuid4().hex}")
            create_named(store, key, Request(ADVANCE, "", "", at, ((show(lsn),),)).encode())
            Doorbell(store, "ingest").ring()

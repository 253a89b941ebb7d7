"""One applier per pipeline: who may commit to the lake.

Owns: ownership is a create-only object with a number, so of two takers exactly one wins; the owner checks before each commit that no later number exists and
that it renewed in time. No claim is ever removed: whoever was replaced, however long ago, finds the one that followed its own. On plain S3 Delta itself
cannot stop a second driver from overwriting a commit, so this is the only fence there.
`apply/lease.json` says who owns and since when, for people and for the next taker.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from service import faults
from service.contract import keys
from service.errors import ObjectExists, ObjectMissing, StoreError, WriterFenced
from service.store.base import ObjectStore

_CLAIMS = f"{keys.APPLY}lease/"


class Lease:
    """Held from `acquire` to `release`. `check` is called from worker threads, `renew` from one thread."""

    def __init__(self, store: ObjectStore, *, seconds: float, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.instance = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:12]}"
        self._store = store
        self._seconds = seconds
        self._wall = wall
        self._monotonic = monotonic
        self._number = 0
        self._renewed = 0.0
        self._lock = threading.Lock()

    def acquire(self) -> None:
        """Takes the pipeline. Raises WriterFenced when a living applier has it."""
        number, holder = self._newest_claim(), self._holder()
        if holder is not None and self._alive(holder):
            raise WriterFenced(f"another applier owns this pipeline: {holder.get('instance')}", hint="stop it, or wait until its lease ends")
        try:
            self._store.create(self._claim(number + 1), self.instance.encode())
        except ObjectExists as error:
            raise WriterFenced("another applier took this pipeline at the same moment") from error
        faults.point("apply.lease.claimed")
        self._number = number + 1
        self.renew()

    def renew(self) -> None:
        """Says that the owner lives. Raises WriterFenced when it no longer owns."""
        started = self._monotonic()
        self._require_newest()
        self._store.put(keys.APPLY_LEASE, self._state(self._wall()))
        with self._lock:
            self._renewed = started

    def check(self) -> None:
        """Returns when this process may commit now; raises WriterFenced otherwise."""
        with self._lock:
            age = self._monotonic() - self._renewed
        if age >= self._seconds:
            raise WriterFenced("the lease could not be renewed in time", hint="the object store was away for longer than the lease lasts")
        self._require_newest()

    def release(self) -> None:
        """Lets the next applier start at once. Never raises a store's error: the lease ends by itself."""
        try:
            self._require_newest()
            self._store.put(keys.APPLY_LEASE, self._state(0.0))
        except (StoreError, WriterFenced):
            return

    def _require_newest(self) -> None:
        if self._store.size(self._claim(self._number + 1)) is not None:
            raise WriterFenced("another applier has taken this pipeline over")

    def _alive(self, holder: dict[str, Any]) -> bool:
        if holder["renewed_at"] + holder["seconds"] <= self._wall():
            return False
        host, pid, _ = str(holder["instance"]).split("/")
        return host != socket.gethostname() or (int(pid) != os.getpid() and _runs(int(pid)))

    def _holder(self) -> dict[str, Any] | None:
        try:
            return dict(json.loads(self._store.get(keys.APPLY_LEASE)))
        except ObjectMissing:
            return None

    def _newest_claim(self) -> int:
        return max((int(key.removeprefix(_CLAIMS)) for key in self._store.list(_CLAIMS)), default=0)

    def _state(self, renewed_at: float) -> bytes:
        value = {"format_version": 1, "instance": self.instance, "number": self._number, "renewed_at": renewed_at, "seconds": self._seconds}
        return json.dumps(value).encode()

    @staticmethod
    def _claim(number: int) -> str:
        return f"{_CLAIMS}{number:016d}"


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

"""Proof at start that a store keeps the promises on which the manifest stands.

Invariant: `probe` returns only if create-only, one winner among racing creates, read-after-write,
overwrite and ordered listing were all seen to hold just now. Some servers parse the conditional
header and ignore it, some check before they write and let two racers win; both lose data without an
error. It must not touch a key of the pipeline, and needs no right to delete: without it a few tiny
objects stay below `probe/`. So they do when the process ends, or gives up on a slow store, in the middle of it: the
name of their folder says when that began, and they are removed later.
"""

import contextlib
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from sluice.contract import keys
from sluice.errors import ObjectExists, ObjectMissing, StoreError, StoreRefused, StoreUnavailable
from sluice.store.base import ObjectStore

RACERS = 4
ROUNDS = 3
ABANDONED_SECONDS = 3600.0
"""No probe takes as long."""
_HINT = "use a store that honors If-None-Match: * atomically; see the list in the documentation"


def probe(store: ObjectStore) -> None:
    """Raises StoreRefused naming what does not hold, StoreUnavailable if the store did not answer
    clearly enough to know.
    """
    folder = own_folder()
    names = [f"{folder}once", f"{folder}put", *(f"{folder}race-{number}" for number in range(ROUNDS))]
    try:
        create_only(store, names[0])
        overwrite(store, names[1])
        for key in names[2:]:
            race(store, key)
        listing(store, folder, names)
    finally:
        for key in names:
            with contextlib.suppress(StoreError):
                store.delete(key)


def own_folder() -> str:
    """For the objects of one probe that begins now."""
    return keys.probe_folder(time.time_ns(), uuid.uuid4().hex)


def abandoned(store: ObjectStore) -> Iterator[str]:
    """Objects of probes that began so long ago that they are over. Raises StoreError."""
    latest = time.time() - ABANDONED_SECONDS
    return (key for key in store.list(keys.PROBES) if (begun := keys.probe_begun(key)) is not None and begun < latest)


def listing(store: ObjectStore, folder: str, names: Sequence[str]) -> None:
    """Exactly `names` are in `folder`, in order."""
    if list(store.list(folder)) != sorted(names) or list(store.list(folder, after=min(names))) != sorted(names)[1:]:
        raise StoreRefused(f"{store.describe()} does not list what was just written, in order", hint=_HINT)


def create_only(store: ObjectStore, key: str) -> None:
    """A second create of one key is refused and changes nothing."""
    with contextlib.suppress(ObjectMissing):
        store.get(key)
        raise StoreRefused(f"{store.describe()} returns an object that was never written", hint=_HINT)
    with contextlib.suppress(ObjectExists):
        # A retry inside the store may have met its own first attempt; the content decides below.
        store.create(key, b"first")
    try:
        store.create(key, b"second")
    except ObjectExists:
        pass
    else:
        raise StoreRefused(
            f"{store.describe()} does not honor create-only: a second create of one key succeeded", hint=_HINT
        )
    if store.get(key) != b"first":
        raise StoreRefused(f"{store.describe()} changed an object by a create that it refused", hint=_HINT)


def overwrite(store: ObjectStore, key: str) -> None:
    """What was just written is what is read."""
    for content in (b"first", b"the second, which is longer"):
        store.put(key, content)
        if store.get(key) != content or store.size(key) != len(content):
            raise StoreRefused(f"{store.describe()} does not return what was just written", hint=_HINT)


def race(store: ObjectStore, key: str) -> None:
    """Of racing creates one wins, and its content stays."""
    start = threading.Barrier(RACERS)

    def run(racer: int) -> bool:
        start.wait()
        try:
            store.create(key, b"racer %d" % racer)
        except (ObjectExists, StoreUnavailable):
            return False
        return True

    with ThreadPoolExecutor(RACERS) as pool:
        winners = [racer for racer, won in enumerate(pool.map(run, range(RACERS))) if won]
    if len(winners) > 1:
        raise StoreRefused(
            f"{store.describe()} does not honor create-only: {len(winners)} of {RACERS} racing "
            "creates of one key succeeded",
            hint=_HINT,
        )
    if not winners:
        raise StoreUnavailable(f"{store.describe()} answered no racing create clearly")
    if store.get(key) != b"racer %d" % winners[0]:
        raise StoreRefused(f"{store.describe()} kept another object than the one whose create it confirmed", hint=_HINT)

"""What was pruned, compared with the chain it speaks of, and where the log begins since.

Invariant: an object may be missing only under a horizon whose entry is there with the very hash
that the horizon names. Whoever finds another one gets ManifestCorrupt and must treat every missing
object as a loss. Entries may be missing only before the newest floor: everything that they named is
applied, and gone. With the floor an archive begins, which has the state that the log is followed
from.
"""

from collections.abc import Callable

from sluice.contract import archive, keys
from sluice.contract.horizon import Horizon
from sluice.errors import ManifestCorrupt, ObjectExists, ObjectMissing
from sluice.manifest import entry_lookup
from sluice.manifest.state import from_json
from sluice.manifest.values import PipelineState
from sluice.store.base import ObjectStore

NONE = Horizon(0, "", "")
"""Nothing was pruned."""


def newest(store: ObjectStore) -> Horizon:
    """The horizon that reaches furthest. Raises ManifestCorrupt, FormatTooNew, StoreError."""
    return _newest(store, keys.HORIZONS, keys.horizon)


def cleaned(store: ObjectStore) -> Horizon:
    """The last entry through which nothing is left to delete. Raises the same."""
    return _newest(store, keys.CLEANED, keys.cleaned)


def floor_seq(store: ObjectStore) -> int:
    """The last entry that may be gone, 0 if none may. Raises the same."""
    return max(0, _newest(store, keys.FLOORS, keys.floor).through_seq - 1)


def base(store: ObjectStore) -> PipelineState:
    """A state from which every entry is there: that of the beginning while nothing is pruned. Raises
    the same.
    """
    while floor := floor_seq(store):
        kept = entry_lookup.archive_with(store, floor + 1)
        if kept is not None:
            return state_before(kept)
        if floor_seq(store) == floor:
            raise ManifestCorrupt(
                f"{archive.key_of(floor + 1)} is missing", hint="restore it from a copy of the bucket"
            )
    return PipelineState()


def state_before(kept: archive.Archive) -> PipelineState:
    """The state that the archive's first entry continues. Raises ManifestCorrupt."""
    state, head = from_json(kept.state()), kept.head
    if (state.seq, state.previous_sha256) != (head.first_seq - 1, head.previous_sha256):
        raise ManifestCorrupt(f"the archive of entries {head.first_seq} to {head.last_seq} has the state of another")
    return state


def state(store: ObjectStore, horizon: Horizon) -> None:
    """Makes `horizon` durable. Raises StoreError, ManifestCorrupt."""
    _state(store, keys.horizon(horizon.through_seq), horizon, newest)


def state_cleaned(store: ObjectStore, horizon: Horizon) -> None:
    """Makes it durable that nothing is left to delete through `horizon`. Raises the same."""
    _state(store, keys.cleaned(horizon.through_seq), horizon, cleaned)


def state_floor(store: ObjectStore, first: Horizon) -> None:
    """Makes it durable that entries before that of `first`, with which an archive begins, may be
    gone. Raises the same.
    """
    _state(store, keys.floor(first.through_seq), first, floor_seq)


def _state(store: ObjectStore, key: str, statement: Horizon, read_back: Callable[[ObjectStore], object]) -> None:
    try:
        store.create(key, statement.encode())
    except ObjectExists:
        # Ours after a lost reply, or another process's that says the same: what it stands on is
        # read back.
        read_back(store)


def _newest(store: ObjectStore, folder: str, key_of: Callable[[int], str]) -> Horizon:
    last = _last(store, folder)
    while last is not None:
        try:
            return _checked(store, last, key_of)
        except (ManifestCorrupt, ObjectMissing):
            # Pruning that went on since the listing removes older statements, and their entries.
            before, last = last, _last(store, folder)
            if last == before:
                raise
    return NONE


def _last(store: ObjectStore, folder: str) -> str | None:
    return max((key for key in store.list(folder) if key.count("/") == folder.count("/")), default=None)


def _checked(store: ObjectStore, last: str, key_of: Callable[[int], str]) -> Horizon:
    found = Horizon.decode(store.get(last))
    if last != key_of(found.through_seq):
        raise ManifestCorrupt(f"{last} names entry {found.through_seq}")
    link = entry_lookup.find(store, found.through_seq)
    if link is None or link.sha256 != found.entry_sha256:
        raise ManifestCorrupt(
            f"{last} refers to manifest entry {found.through_seq}, which is missing or has other content",
            hint="so it explains no missing object; was one of the two restored from a backup without the other?",
        )
    return found

"""The newest statement of what was given up, compared with the chain it speaks of.

Invariant: an object may be missing only under a horizon whose entry is there with the very hash
that the horizon names. Whoever finds another one gets ManifestCorrupt and must treat every missing
object as a loss.
"""

from sluice.contract import keys
from sluice.contract.entries import digest
from sluice.contract.horizon import Horizon
from sluice.errors import ManifestCorrupt, ObjectExists, ObjectMissing
from sluice.store.base import ObjectStore

NONE = Horizon(0, "", "")
"""Nothing was given up."""


def newest(store: ObjectStore) -> Horizon:
    """The horizon that reaches furthest. Raises ManifestCorrupt, FormatTooNew, StoreError."""
    last = max(store.list(keys.HORIZONS), default=None)
    if last is None:
        return NONE
    found = Horizon.decode(store.get(last))
    if last != keys.horizon(found.through_seq):
        raise ManifestCorrupt(f"{last} speaks of entry {found.through_seq}")
    try:
        same = digest(store.get(keys.manifest_entry(found.through_seq))) == found.entry_sha256
    except ObjectMissing:
        same = False
    if not same:
        raise ManifestCorrupt(
            f"{last} stands on a manifest entry {found.through_seq} that is missing or another one",
            hint="it excuses no missing object of this manifest; was one of the two restored from a "
            "backup without the other?",
        )
    return found


def state(store: ObjectStore, horizon: Horizon) -> None:
    """Makes `horizon` durable. Raises StoreError."""
    try:
        store.create(keys.horizon(horizon.through_seq), horizon.encode())
    except ObjectExists:
        # Ours after a lost reply, or another collector's that says the same: what it stands on is
        # read back.
        newest(store)

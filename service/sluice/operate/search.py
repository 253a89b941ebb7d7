"""Which entry names an object: for people who look into the spool, newest entries first.

Reads and never writes. Finding nothing means that no entry names it; whether something is there is
another question.
"""

from sluice.contract.entries import Entry, Segment
from sluice.manifest import horizon
from sluice.manifest.leftovers import referenced
from sluice.manifest.reader import load_state, read_entries
from sluice.store.base import ObjectStore

ENTRIES_AT_ONCE = 256


def naming(store: ObjectStore, key: str) -> tuple[Entry, Segment] | None:
    """The newest entry that names `key`, and what it says of it. Raises ManifestCorrupt,
    FormatTooNew, StoreError.
    """
    last, floor = load_state(store).seq, horizon.base(store).seq
    while last > floor:
        first = max(floor + 1, last - ENTRIES_AT_ONCE + 1)
        for entry, _ in reversed(list(read_entries(store, after_seq=first - 1, limit=last - first + 1))):
            found = next((segment for segment in referenced(entry.body) if segment.key == key), None)
            if found is not None:
                return entry, found
        last = first - 1
    return None

"""Which entry names an object: for people who look into the spool, newest entries first.

Reads and never writes. Finding nothing means that no entry names it; whether something is there is
another question.
"""

from sluice.contract.entries import Entry, Segment
from sluice.manifest import horizon
from sluice.manifest.leftovers import referenced
from sluice.manifest.reader import load_state, read_backwards
from sluice.store.base import ObjectStore


def naming(store: ObjectStore, key: str) -> tuple[Entry, Segment] | None:
    """The newest entry that names `key`, and what it says of it. Raises ManifestCorrupt,
    FormatTooNew, StoreError.
    """
    before_seq = load_state(store).seq + 1
    for entry in read_backwards(store, after_seq=horizon.base(store).seq, before_seq=before_seq):
        for segment in referenced(entry.body):
            if segment.key == key:
                return entry, segment
    return None

"""Reading the log: entry by entry, from any number on, with every link checked.

Invariant: the order comes from getting N, then N+1; a listing only tells a missing entry from the
end of the log. Whoever reads gets a gap-free, chained run of entries or ManifestCorrupt with the
number, never a run with a hole. It must not write.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from sluice.contract import keys
from sluice.contract.entries import Entry, digest
from sluice.errors import FormatTooNew, ManifestCorrupt, ObjectMissing
from sluice.manifest import checkpoint
from sluice.manifest.state import PipelineState, check_positions, reduce
from sluice.store.base import ObjectStore

AHEAD = 16
"""Entries fetched at once while catching up."""
THREADS = 8
IDENTITY_DIGITS = 16


def read_entry(store: ObjectStore, seq: int) -> Entry | None:
    """Entry `seq`, None if it is not there (yet). Raises ManifestCorrupt, FormatTooNew, StoreError."""
    found = _fetch(store, seq)
    return found[0] if found else None


def read_entries(
    store: ObjectStore,
    *,
    after_seq: int,
    previous_sha256: str | None = None,
    limit: int | None = None,
    gaps: bool = True,
) -> Iterator[tuple[Entry, str]]:
    """Entries `after_seq + 1` and on with the digest of their bytes, up to the end of the log or
    `limit`. Without `gaps` an entry that is not there is taken for the end, which saves a listing:
    for those who ask often, and ask with `gaps` now and then.

    Each is checked to continue the one before, by hash and by position; the first to continue
    `previous_sha256`, if given. Reading starts with one entry at a time and fetches ahead when
    there is more, so that a reader at the end of the log asks for one object.
    """
    last = None if limit is None else after_seq + limit
    seq, width = after_seq + 1, 1
    through_lsn: int | None = None
    with ThreadPoolExecutor(THREADS, thread_name_prefix="manifest") as pool:
        while last is None or seq <= last:
            wanted = range(seq, seq + width if last is None else min(seq + width, last + 1))
            for found in pool.map(lambda number: _fetch(store, number), wanted) if width > 1 else [_fetch(store, seq)]:
                link = found or (_after_gap_check(store, seq) if gaps else None)
                if link is None:
                    return
                entry, sha256 = link
                if previous_sha256 is not None and entry.previous_sha256 != previous_sha256:
                    raise ManifestCorrupt(
                        f"manifest entry {seq} does not continue entry {seq - 1}: one of the two was "
                        "replaced or damaged"
                    )
                if through_lsn is not None:
                    check_positions(entry, after=through_lsn)
                yield link
                previous_sha256, through_lsn = sha256, entry.through_lsn
                seq += 1
            width = min(width * 2, AHEAD)


def identity(store: ObjectStore) -> str:
    """What tells this manifest from every other one, of the same name too: its first entry has a
    nonce. Raises ObjectMissing while there is none.
    """
    return digest(store.get(keys.manifest_entry(1)))[:IDENTITY_DIGITS]


def load_state(store: ObjectStore) -> PipelineState:
    """The state after the last entry: the newest checkpoint and what follows it. Raises
    ManifestCorrupt, FormatTooNew, StoreError.
    """
    state = checkpoint.newest(store)
    for entry, sha256 in read_entries(store, after_seq=state.seq, previous_sha256=state.previous_sha256):
        state = reduce(state, entry, sha256)
    return state


def _fetch(store: ObjectStore, seq: int) -> tuple[Entry, str] | None:
    try:
        stored = store.get(keys.manifest_entry(seq))
    except ObjectMissing:
        return None
    try:
        entry = Entry.decode(stored)
    except (ManifestCorrupt, FormatTooNew) as error:
        raise type(error)(f"manifest entry {seq}: {error}", hint=error.hint) from error
    if entry.seq != seq:
        raise ManifestCorrupt(f"manifest entry {seq} calls itself {entry.seq}")
    return entry, digest(stored)


def _after_gap_check(store: ObjectStore, seq: int) -> tuple[Entry, str] | None:
    """None if the log ends before `seq`. If a later entry exists, `seq` must have been written
    meanwhile, or it is a gap.
    """
    for key in store.list(keys.MANIFEST, after=keys.manifest_entry(seq - 1)):
        if key.startswith(keys.CHECKPOINTS):
            break
        later = keys.manifest_seq(key)
        found = _fetch(store, seq)
        if found is None:
            raise ManifestCorrupt(
                f"manifest entry {seq} is missing, though entry {later} exists",
                hint="was it deleted by a lifecycle rule? restore it",
            )
        return found
    return None

"""Reading the log: entry by entry, from any number on, with every link checked.

Invariant: the order comes from getting N, then N+1; a listing only tells a missing entry from the
end of the log. Whoever reads gets a gap-free, chained run of entries or ManifestCorrupt with the
number, never a run with a hole, whether the entries are objects of their own or in archives, and
however many move from the one to the other meanwhile. It must not write.
"""

from collections.abc import Callable, Iterator

from sluice.contract import keys
from sluice.contract.entries import Entry, digest
from sluice.errors import ManifestCorrupt
from sluice.manifest import checkpoint, entry_lookup, horizon
from sluice.manifest.ending import Ending
from sluice.manifest.entry_lookup import Link
from sluice.manifest.state import check_positions, reduce
from sluice.manifest.values import PipelineState
from sluice.store.base import ObjectStore
from sluice.store.calls import together

AHEAD = 16
"""Entries fetched at once while catching up."""
THREADS = 8
BACKWARDS = 256
"""Entries read at once by who reads from the newest to the oldest."""
IDENTITY_DIGITS = 16


def read_entry(store: ObjectStore, seq: int) -> Entry | None:
    """Entry `seq`, None if it is not there (yet). Raises ManifestCorrupt, FormatTooNew, StoreError."""
    found = entry_lookup.find(store, seq)
    return found.entry if found else None


def read_entries(
    store: ObjectStore,
    *,
    after_seq: int,
    previous_sha256: str | None = None,
    limit: int | None = None,
    gaps: bool = True,
) -> Iterator[tuple[Entry, str]]:
    """Entries `after_seq + 1` and on with the digest of their bytes, up to the end of the log or
    `limit`. Without `gaps` an entry that is no object of its own is taken for the end, which saves
    a listing: for those who are at the end, ask often, and ask with `gaps` now and then.

    Each is checked to continue the one before, by hash and by position; the first to continue
    `previous_sha256`, if given. Reading starts with one entry at a time and fetches ahead when
    there is more, so that a reader at the end of the log asks for one object.
    """
    for link in read_links(store, after_seq=after_seq, previous_sha256=previous_sha256, limit=limit, gaps=gaps):
        yield link.entry, link.sha256


def read_backwards(store: ObjectStore, *, after_seq: int, before_seq: int) -> Iterator[Entry]:
    """Entry `before_seq - 1` and on, down to `after_seq + 1`. Raises ManifestCorrupt if one is not there,
    FormatTooNew, StoreError.
    """
    last = before_seq - 1
    while last > after_seq:
        first = max(after_seq + 1, last - BACKWARDS + 1)
        entries = [entry for entry, _ in read_entries(store, after_seq=first - 1, limit=last - first + 1)]
        if len(entries) != last - first + 1:
            missing = first + len(entries)
            raise ManifestCorrupt(f"manifest entry {missing} is missing, though the manifest continues to {before_seq}")
        yield from reversed(entries)
        last = first - 1


def read_links(
    store: ObjectStore,
    *,
    after_seq: int,
    previous_sha256: str | None = None,
    limit: int | None = None,
    gaps: bool = True,
) -> Iterator[Link]:
    """As `read_entries`, with the bytes of each entry."""
    through_lsn: int | None = None
    for link in _found(store, after_seq + 1, last=None if limit is None else after_seq + limit, gaps=gaps):
        entry = link.entry
        if previous_sha256 is not None and entry.previous_sha256 != previous_sha256:
            raise ManifestCorrupt(
                f"manifest entry {entry.seq} does not continue entry {entry.seq - 1}: one of the two was "
                "replaced or damaged"
            )
        if through_lsn is not None:
            check_positions(entry, after=through_lsn)
        yield link
        previous_sha256, through_lsn = link.sha256, entry.through_lsn


def identity(store: ObjectStore) -> str:
    """What tells this manifest from every other one, of the same name too: its first entry has a
    nonce. Raises ObjectMissing while there is none.
    """
    return digest(store.get(keys.manifest_entry(1)))[:IDENTITY_DIGITS]


def load_state(store: ObjectStore, *, known: PipelineState | None = None) -> PipelineState:
    """The state after the last entry: the newest checkpoint and what follows it. With `known`, an
    earlier state of the same manifest, what follows that one is enough. Raises ManifestCorrupt,
    FormatTooNew, StoreError.
    """
    state = known if known is not None and _is_followed(store, known) else stored(store)
    for entry, sha256 in read_entries(store, after_seq=state.seq, previous_sha256=state.previous_sha256 or None):
        state = reduce(state, entry, sha256)
    return state


def load_ending(store: ObjectStore, ending: Ending) -> PipelineState:
    """The state of the manifest as it ends there. Raises ManifestCorrupt, FormatTooNew, StoreError."""
    state = stored(store, wanted=lambda known: known.seq < ending.seq)
    if state.seq >= ending.seq:
        raise _missing(store, ending.seq)
    previous, limit = state.previous_sha256 or None, ending.seq - state.seq
    for entry, sha256 in read_entries(store, after_seq=state.seq, previous_sha256=previous, limit=limit):
        state = reduce(state, entry, sha256) if entry.seq < ending.seq else ending.state(state, entry, sha256)
    if state.seq < ending.seq:
        raise _missing(store, state.seq + 1)
    return state


def _is_followed(store: ObjectStore, state: PipelineState) -> bool:
    """Whether `state` is one of this manifest, which may have been replaced by an older copy or begun
    anew, and every entry after it is there.

    Most often one GET: an entry that is an object of its own is younger than all archives that may
    be gone. Only an `opened` stays for ever, whatever becomes of those after it.
    """
    link = entry_lookup.single(store, state.seq) if state.seq else None
    if link is None or link.sha256 != state.previous_sha256:
        return False
    return not link.is_opening or state.seq > horizon.floor_seq(store)


def stored(store: ObjectStore, *, wanted: Callable[[PipelineState], bool] = lambda _: True) -> PipelineState:
    """A state from which every entry is there, the newest one that is stored and `wanted`; or, without any, that in
    front of the first entry. Raises ManifestCorrupt, FormatTooNew, StoreError.
    """
    state = checkpoint.newest(store, wanted=wanted)
    if state.seq <= horizon.floor_seq(store):
        return horizon.base(store)  # checkpoints could not be written, or read, for so long
    return state


def pruned_through(store: ObjectStore) -> int:
    """The last entry that may be gone, because all that it held is applied; 0 if none may."""
    return horizon.floor_seq(store)


def objects_pruned_through(store: ObjectStore) -> int:
    """The last entry of which objects may be gone, for the same reason; 0 if none may."""
    return horizon.newest(store).through_seq


def later_entry(store: ObjectStore, seq: int) -> int | None:
    """The number of an entry after `seq` that is an object of its own, None if there is none. The
    newest entries always are, so there is one if `seq` is not the end of the log.
    """
    for key in store.list(keys.MANIFEST, after=keys.manifest_entry(seq)):
        return None if key.startswith(keys.CHECKPOINTS) else keys.manifest_seq(key)
    return None


def _found(store: ObjectStore, seq: int, *, last: int | None, gaps: bool) -> Iterator[Link]:
    """The entries from `seq` on, not compared with each other. Behind one from an archive the next
    archive is looked for first.
    """
    while last is None or seq <= last:
        for found in _singles(store, seq, last=last):
            if found is None or found.is_opening:
                break
            yield found
            seq += 1
        else:
            return
        if found is None:
            if not gaps or later_entry(store, seq) is None:
                return
            found = entry_lookup.single(store, seq)  # written meanwhile, unless it is archived or a gap
        kept = entry_lookup.archive_with(store, seq) if found is None or found.is_opening else None
        if kept is None:
            if found is None:
                raise _missing(store, seq)
            yield found
            seq += 1
        while kept is not None:
            for link in entry_lookup.archived(kept, after_seq=seq - 1):
                if last is not None and seq > last:
                    return
                yield link
                seq += 1
            kept = entry_lookup.archive_with(store, seq) if last is None or seq <= last else None


def _singles(store: ObjectStore, seq: int, *, last: int | None) -> Iterator[Link | None]:
    """What is an object of its own from `seq` on, None for each that is not."""
    width = 1
    while last is None or seq <= last:
        wanted = range(seq, seq + width if last is None else min(seq + width, last + 1))
        yield from (
            together(lambda number: entry_lookup.single(store, number), wanted, threads=THREADS)
            if width > 1
            else [entry_lookup.single(store, seq)]
        )
        seq += len(wanted)
        width = min(width * 2, AHEAD)


def _missing(store: ObjectStore, seq: int) -> ManifestCorrupt:
    if seq <= (floor := horizon.floor_seq(store)):
        return ManifestCorrupt(
            f"manifest entry {seq} was pruned, with those through entry {floor}",
            hint="all of it had been applied; a longer spool.retention keeps more",
        )
    return ManifestCorrupt(
        f"manifest entry {seq} is missing, though entry {later_entry(store, seq)} exists",
        hint="was it deleted by a lifecycle rule? restore it",
    )

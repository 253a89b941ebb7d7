"""Entries that are objects of their own become sealed archives: a thousand objects less, and the
same chain.

Invariant: an entry is removed only after the archive with its very bytes was read back from the
store, and an archive is begun only when those before it are sealed and their entries removed. So a
kill at any moment leaves every entry in at least one place, and the next compaction continues. The
newest entries are left alone, for those who follow the log, and so is every `opened`: a writer that
was replaced asks for the number after its own last entry, which is the `opened` of the one that
replaced it. That it is there is what fences it, however long it was paused. Several processes may
compact at once: they seal the same bytes and remove the same entries.
"""

import contextlib
from collections.abc import Callable
from datetime import datetime

from sluice import faults
from sluice.contract import archive, keys
from sluice.contract.archive import ENTRIES, Archive, Sealing
from sluice.contract.horizon import Horizon
from sluice.errors import ManifestCorrupt, ObjectExists, ObjectMissing
from sluice.manifest import entry_lookup, horizon
from sluice.manifest.entry_lookup import Link
from sluice.manifest.state import reduce, to_json
from sluice.manifest.values import PipelineState
from sluice.store.base import ObjectStore
from sluice.store.calls import together

KEPT_SINGLE = ENTRIES
"""The newest entries, at least so many, are never archived."""
REMOVED_AT_ONCE = 50
"""Between two questions whether this process still may."""
THREADS = 8
_HINT = "nothing was removed; is the archive of another pipeline, or was it restored from a backup?"


def foldable(newest_seq: int) -> int:
    """The last entry that may be archived while `newest_seq` is the newest one."""
    return archive.last_of(max(0, newest_seq - KEPT_SINGLE) + 1) - ENTRIES


def newest_archived(store: ObjectStore, *, floor_seq: int, newest_seq: int) -> int:
    """The last entry that is in an archive, 0 if there is none. Archives through `floor_seq`, a
    bound of archives, may be gone. Asks for a few keys, whatever the number of archives: first
    for the newest possible ones.
    """
    low, high, distance = floor_seq // ENTRIES, newest_seq // ENTRIES + 1, 1
    while high - low > 1:
        middle = max(high - distance, (low + high) // 2)
        if store.size(keys.archive(middle * ENTRIES)) is not None:
            low = middle
        else:
            high, distance = middle, distance * 2
    return low * ENTRIES


def new_floor(store: ObjectStore, cleaned_seq: int, *, newest_seq: int, now: datetime) -> Horizon | None:
    """The first entry that is to stay, when that is another one than now: an archive begins with it,
    and entry `cleaned_seq`, which is stated, stays as well.
    """
    former = horizon.floor_seq(store)
    last = newest_archived(store, floor_seq=former, newest_seq=newest_seq)
    floor = min(archive.first_of(max(1, cleaned_seq)), archive.first_of(max(1, last))) - 1
    kept = entry_lookup.archive_with(store, floor + 1) if floor > former else None
    if kept is None:
        return None
    return Horizon(floor + 1, kept.head.entry_sha256[0], now.isoformat(timespec="seconds"))


class Compactor:
    """Archives the entries of one manifest, one archive at a time. For one thread."""

    def __init__(self, store: ObjectStore, *, require_owner: Callable[[], None] = lambda: None) -> None:
        """`require_owner` is called before anything is written or removed, and raises when that is
        not to be done any more.
        """
        self._store = store
        self._require_owner = require_owner
        self._state: PipelineState | None = None

    def step(self, newest_seq: int, *, floor_seq: int = 0) -> bool:
        """Makes one archive, if there is one to make, and says whether it did. `newest_seq` is an
        entry that is there; archives through `floor_seq` may be gone.

        What it leaves undone because of an error it does before anything else when called again.
        Raises ManifestCorrupt and FormatTooNew, after which nothing was removed that is nowhere
        else; StoreError; whatever `require_owner` raises.
        """
        if foldable(newest_seq) <= floor_seq:
            return False
        state, self._state = self._state, None
        if state is None or state.seq < floor_seq:
            state = self._resumed(floor_seq, newest_seq)
        if state.seq >= foldable(newest_seq):
            self._state = state
            return False
        self._state = self._archived(state)
        return True

    def _resumed(self, floor_seq: int, newest_seq: int) -> PipelineState:
        """The state after the newest archive, whose entries are removed if that was not done."""
        last = newest_archived(self._store, floor_seq=floor_seq, newest_seq=newest_seq)
        kept = entry_lookup.archive_with(self._store, last) if last else None
        if kept is None:
            if last:
                raise ManifestCorrupt(f"{keys.archive(last)} is gone", hint="was it deleted by a lifecycle rule?")
            return PipelineState()
        state = horizon.state_before(kept)
        there = self._singles(kept.head.first_seq, last)
        left = []
        for link in entry_lookup.archived(kept, after_seq=0):
            state = reduce(state, link.entry, link.sha256)
            if link.entry.seq in there and self._is_left(link):
                left.append(link.entry.seq)
        self._remove(left)
        return state

    def _is_left(self, link: Link) -> bool:
        """Whether an archived entry is to be removed. An `opened` may be there that the chain does
        not have: see `links`.
        """
        found = entry_lookup.single(self._store, link.entry.seq)
        if found is None or found.is_opening:
            return False
        if found.sha256 != link.sha256:
            raise ManifestCorrupt(
                f"manifest entry {link.entry.seq} is not the one in {archive.key_of(link.entry.seq)}", hint=_HINT
            )
        return True

    def _archived(self, state: PipelineState) -> PipelineState | None:
        """The state after the next archive; None where another process has made it meanwhile."""
        sealing = Sealing(first_seq=state.seq + 1, previous_sha256=state.previous_sha256, state=to_json(state))
        removed = []
        numbers = range(state.seq + 1, state.seq + ENTRIES + 1)
        links = together(lambda seq: entry_lookup.single(self._store, seq), numbers, threads=THREADS)
        # What is removed is what was read here: so nothing of it comes out of an archive.
        for seq, link in zip(numbers, links, strict=True):
            if link is None:
                if entry_lookup.archive_with(self._store, seq) is None:
                    raise ManifestCorrupt(f"manifest entry {seq} is missing, though a later one exists")
                return None
            state = reduce(state, link.entry, link.sha256)
            sealing.add(link.stored, link.sha256)
            if not link.is_opening:
                removed.append(seq)
        self._require_owner()
        self._seal(state.seq, sealing.sealed())
        self._remove(removed)
        return state

    def _seal(self, last: int, content: bytes) -> None:
        """Returns when the archive is durable and says what it was given."""
        key = keys.archive(last)
        faults.point("compact.archive.before")
        # One that is there is ours after a lost reply, or of another process with the same entries.
        # Whether it is shows below.
        with contextlib.suppress(ObjectExists):
            self._store.create(key, content)
        faults.point("compact.archive.created")
        try:
            stored = Archive(self._store.get(key), key=key)
        except ObjectMissing as error:
            raise ManifestCorrupt(f"{key} is not there although it was stored") from error
        meant = Archive(content, key=key).head
        if stored.head != meant or [sha256 for _, _, sha256 in stored.stored()] != list(meant.entry_sha256):
            raise ManifestCorrupt(
                f"{key} does not hold the entries {meant.first_seq} to {last} of this manifest",
                hint=_HINT,
            )
        stored.state()
        faults.point("compact.archive.after")

    def _remove(self, seqs: list[int]) -> None:
        for start in range(0, len(seqs), REMOVED_AT_ONCE):
            self._require_owner()
            for _ in together(self._remove_one, seqs[start : start + REMOVED_AT_ONCE], threads=THREADS):
                pass
        faults.point("compact.removed")

    def _remove_one(self, seq: int) -> None:
        faults.point("compact.remove.before")
        self._store.delete(keys.manifest_entry(seq))

    def _singles(self, first: int, last: int) -> set[int]:
        found = set()
        for key in self._store.list(keys.MANIFEST, after=keys.manifest_entry(first - 1)):
            if not keys.is_manifest_entry(key) or (seq := keys.manifest_seq(key)) > last:
                break
            found.add(seq)
        return found

"""One entry from wherever it is kept: as an object of its own, or in an archive.

Invariant: what is returned is what the chain has under that number. An object of its own is what
the chain has unless it is an `opened`: one of those may come from a writer that was paused while it
opened, and that created it where the chain's own entry had been archived and removed. So an
`opened` is believed only when there is no archive with its number, looked for after it was read: an
entry is removed after its archive is durable, never before.
"""

from collections.abc import Iterator
from typing import NamedTuple

from sluice.contract import archive, keys
from sluice.contract.archive import Archive
from sluice.contract.entries import Entry, Opened, digest
from sluice.errors import FormatTooNew, ManifestCorrupt, ObjectMissing
from sluice.store.base import ObjectStore


class Link(NamedTuple):
    """An entry, the hash of its bytes, and the bytes."""

    entry: Entry
    sha256: str
    stored: bytes

    @property
    def is_opening(self) -> bool:
        return isinstance(self.entry.body, Opened)


def find(store: ObjectStore, seq: int) -> Link | None:
    """Entry `seq`, None if it is not there (yet, or any more). Raises ManifestCorrupt,
    FormatTooNew, StoreError.
    """
    found = single(store, seq)
    if found is not None and not found.is_opening:
        return found
    kept = archive_with(store, seq)
    return next(archived(kept, after_seq=seq - 1)) if kept is not None else found


def single(store: ObjectStore, seq: int) -> Link | None:
    """Entry `seq` as an object of its own, which may be an `opened` that the chain does not have."""
    try:
        stored = store.get(keys.manifest_entry(seq))
    except ObjectMissing:
        return None
    return Link(_decoded(seq, stored), digest(stored), stored)


def archive_with(store: ObjectStore, seq: int) -> Archive | None:
    """The archive that holds entry `seq`, None if there is none."""
    key = archive.key_of(seq)
    try:
        found = Archive(store.get(key), key=key)
    except ObjectMissing:
        return None
    if not found.head.first_seq <= seq:
        raise ManifestCorrupt(f"{key} begins with entry {found.head.first_seq}, behind entry {seq}")
    return found


def archived(kept: Archive, *, after_seq: int) -> Iterator[Link]:
    """The entries of an archive after `after_seq`. Raises ManifestCorrupt, FormatTooNew."""
    for seq, stored, sha256 in kept.stored(after_seq=after_seq):
        yield Link(_decoded(seq, stored), sha256, stored)


def _decoded(seq: int, stored: bytes) -> Entry:
    try:
        entry = Entry.decode(stored)
    except (ManifestCorrupt, FormatTooNew) as error:
        raise type(error)(f"manifest entry {seq}: {error}", hint=error.hint) from error
    if entry.seq != seq:
        raise ManifestCorrupt(f"manifest entry {seq} calls itself {entry.seq}")
    return entry

"""Damage of the log is named, and no reader goes past it."""

from collections.abc import Callable, Iterable

import pytest

from sluice.contract import keys
from sluice.contract.entries import Entry, Progress
from sluice.errors import FormatTooNew, ManifestCorrupt
from sluice.manifest.reader import load_state, read_entries
from sluice.operate.spool_verify import verify
from sluice.store.base import ObjectStore
from tests.support.manifests import changes, filled_log, open_log, overwrite, put


def _delete(store: ObjectStore, seqs: Iterable[int]) -> None:
    for seq in seqs:
        store.delete(keys.manifest_entry(seq))


LAST = keys.manifest_entry(30)
DAMAGES: dict[str, tuple[Callable[[ObjectStore], None], str]] = {
    "overwritten": (lambda store: overwrite(store, 20), "entry 21 does not continue entry 20"),
    "first one overwritten": (lambda store: overwrite(store, 1), "entry 2 does not continue entry 1"),
    "missing": (lambda store: store.delete(keys.manifest_entry(20)), "entry 20 is missing"),
    "first one missing": (lambda store: store.delete(keys.manifest_entry(1)), "entry 1 is missing"),
    "all but the last missing": (lambda store: _delete(store, range(1, 30)), "entry 1 is missing"),
    "cut short": (lambda store: store.put(LAST, store.get(LAST)[:-9]), "entry 30"),
    "empty": (lambda store: store.put(LAST, b""), "entry 30"),
    "moved": (lambda store: store.put(keys.manifest_entry(31), store.get(LAST)), "entry 31 calls itself 30"),
    "a foreign object": (lambda store: store.put("manifest/notes.txt", b""), "unexpected object"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_and_never_read_over(store: ObjectStore, damage: str) -> None:
    filled_log(store, 30)
    inflict, message = DAMAGES[damage]
    inflict(store)
    _assert_refused(store, message)


def _assert_refused(store: ObjectStore, message: str, *, after_seq: int = 0) -> None:
    with pytest.raises(ManifestCorrupt, match=message):
        load_state(store)
    with pytest.raises(ManifestCorrupt, match=message):
        list(read_entries(store, after_seq=after_seq))


def test_an_entry_of_a_newer_format_stops_the_reader(store: ObjectStore) -> None:
    filled_log(store, 3)
    newer = store.get(keys.manifest_entry(3)).replace(b'"format_version":1', b'"format_version":2')
    store.put(keys.manifest_entry(3), newer)
    with pytest.raises(FormatTooNew, match="entry 3"):
        load_state(store)


def test_changes_behind_some_that_were_left_out_are_never_stored(store: ObjectStore) -> None:
    """Two units were made; the first one failed on its way, and somebody publishes the second."""
    log = open_log(store, through_lsn=10)
    with pytest.raises(ManifestCorrupt, match=r"entry 2 continues from 0/14, but what came before it ends at 0/A"):
        log.publish(changes(25), from_lsn=20, through_lsn=30)
    with pytest.raises(ManifestCorrupt, match="entry 2 continues from 0/14"):
        log.publish(Progress(), from_lsn=20, through_lsn=30)
    assert list(store.list(keys.MANIFEST)) == [keys.manifest_entry(1)]
    assert put(log, Progress(), through_lsn=20).seq == 2


def test_a_hole_between_two_entries_is_refused_by_every_reader(store: ObjectStore) -> None:
    """As a writer would leave it that knew the number and the hash, and not the position."""
    log = filled_log(store, 3)
    holed = Entry(4, 1, log.state.previous_sha256, 7, 9, "2030-01-01T00:00:00+00:00", Progress())
    store.put(keys.manifest_entry(4), holed.encode())
    message = "entry 4 continues from 0/7, but what came before it ends at 0/3"
    _assert_refused(store, message, after_seq=2)
    (flaw,) = verify(store, content=False).flaws
    assert message in flaw.what


def test_a_chain_that_does_not_continue_what_the_reader_had_is_corrupt(store: ObjectStore) -> None:
    filled_log(store, 5)
    with pytest.raises(ManifestCorrupt, match="entry 4 does not continue entry 3"):
        list(read_entries(store, after_seq=3, previous_sha256="0" * 64))

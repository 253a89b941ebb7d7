"""Compaction moves entries into archives and changes nothing that anybody reads."""

import contextlib
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.contract import archive, keys
from sluice.contract.entries import Progress
from sluice.errors import ManifestCorrupt, StoreUnavailable, WriterFenced
from sluice.manifest import checkpoint, compaction
from sluice.manifest.compaction import Compactor
from sluice.manifest.reader import load_state, read_entries, read_entry
from sluice.manifest.state import reduce
from sluice.manifest.values import PipelineState
from sluice.manifest.writer import ManifestLog
from sluice.operate.spool_verify import verify
from sluice.store.base import ObjectStore
from sluice.store.local import LocalStore
from sluice.store.memory import MemoryStore
from tests.conformance.spools import Recording, stores
from tests.support import policies
from tests.support.extent import FULL, cases, slow
from tests.support.killed import killed_at
from tests.support.manifests import open_log, opened, put, table
from tests.support.stores import WatchedStore

SMALL = 4

on_s3_seldom = pytest.mark.parametrize("store", stores(s3=slow), indirect=True)


@pytest.fixture(autouse=True)
def small_archives(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch.setattr)


def shrink(setting: object) -> None:
    for module, name in ((archive, "ENTRIES"), (compaction, "ENTRIES"), (compaction, "KEPT_SINGLE")):
        setting(module, name, SMALL)  # type: ignore[operator]


def filled(store: ObjectStore, count: int) -> ManifestLog:
    log = open_log(store)
    log.append(table("7"))
    while log.state.seq < count:
        put(log, Progress(), through_lsn=log.state.through_lsn + 10)
    return log


def compacted(store: ObjectStore, newest_seq: int) -> int:
    compactor = Compactor(store)
    return sum(1 for _ in iter(lambda: compactor.step(newest_seq), False))


def singles(store: ObjectStore) -> list[int]:
    return [keys.manifest_seq(key) for key in store.list(keys.MANIFEST) if keys.is_manifest_entry(key)]


def replayed(store: ObjectStore, after: PipelineState | None = None, *, limit: int | None = None) -> PipelineState:
    state = after or PipelineState()
    known = state.previous_sha256 or None
    for entry, sha256 in read_entries(store, after_seq=state.seq, previous_sha256=known, limit=limit):
        state = reduce(state, entry, sha256)
    return state


@on_s3_seldom
def test_what_was_read_before_is_read_after_it(store: ObjectStore) -> None:
    log = filled(store, 19)
    before = list(read_entries(store, after_seq=0))
    assert compacted(store, 19) == 3
    assert list(store.list(keys.ARCHIVES)) == [keys.archive(4), keys.archive(8), keys.archive(12)]
    assert singles(store) == [1, *range(13, 20)], "the first is an opening, the newest are left alone"
    for after in range(20):
        assert list(read_entries(store, after_seq=after)) == before[after:]
        assert list(read_entries(store, after_seq=after, limit=3)) == before[after : after + 3]
    assert [read_entry(store, seq) for seq in range(1, 21)] == [*(entry for entry, _ in before), None]
    assert load_state(store) == log.state == replayed(store)
    assert verify(store, content=True).flaws == []
    assert compacted(store, 19) == 0


def test_a_reader_in_the_middle_is_not_cut_off_by_what_is_archived_meanwhile(store: ObjectStore) -> None:
    log = filled(store, 30)
    reading = read_entries(store, after_seq=2)
    first = [next(reading)[0].seq for _ in range(3)]
    compacted(store, 30)
    assert first + [entry.seq for entry, _ in reading] == list(range(3, 31))
    assert replayed(store) == log.state


def test_without_a_look_for_gaps_an_archived_entry_is_taken_for_the_end_and_no_other(store: ObjectStore) -> None:
    filled(store, 19)
    compacted(store, 19)
    assert list(read_entries(store, after_seq=5, gaps=False)) == []
    assert [entry.seq for entry, _ in read_entries(store, after_seq=12, gaps=False)] == list(range(13, 20))


def test_following_the_end_costs_the_same_however_long_the_log_is() -> None:
    asked = []
    for count in (50, 500):
        store = WatchedStore(uuid.uuid4().hex)
        filled(store, count)
        compacted(store, count)
        store.asked.clear()
        assert list(read_entries(store, after_seq=count, gaps=False)) == []
        assert compaction.newest_archived(store, floor_seq=0, newest_seq=count) == compaction.foldable(count)
        asked.append(len(store.asked))
    assert asked[0] == asked[1] <= 4


@pytest.mark.parametrize("archives", range(13))
@pytest.mark.parametrize("floor", [0, 3])
def test_the_newest_archive_is_found_whatever_was_archived_and_pruned(archives: int, floor: int) -> None:
    store = MemoryStore(uuid.uuid4().hex)
    for number in range(floor + 1, archives + 1):
        store.put(keys.archive(number * SMALL), b"x")
    found = compaction.newest_archived(store, floor_seq=floor * SMALL, newest_seq=12 * SMALL + 1)
    assert found == max(floor, archives) * SMALL


# fencing


def test_a_writer_that_was_paused_is_fenced_though_all_that_followed_is_archived(store: ObjectStore) -> None:
    paused = filled(store, 6)
    filled(store, 30)
    compacted(store, 30)
    assert keys.manifest_entry(8) not in set(store.list(keys.MANIFEST))
    before = list(read_entries(store, after_seq=0))
    with pytest.raises(WriterFenced):
        put(paused, Progress(), through_lsn=paused.state.through_lsn + 1)
    with pytest.raises(WriterFenced):
        paused.require_ours()
    assert list(read_entries(store, after_seq=0)) == before


@on_s3_seldom
def test_a_writer_that_was_paused_while_it_opened_owns_nothing_and_disturbs_no_reader(store: ObjectStore) -> None:
    log = filled(store, 6)
    state = load_state(store)
    reading = read_entries(store, after_seq=4)
    next(reading)
    while log.state.seq < 30:
        put(log, Progress(), through_lsn=log.state.through_lsn + 10)
    compacted(store, 30)
    before = list(read_entries(store, after_seq=0))
    with pytest.raises(WriterFenced):
        ManifestLog.open(store, opened(instance="paused"), state)
    assert 7 in singles(store), "it could create its entry where the chain's own was"
    assert [entry.seq for entry, _ in reading] == list(range(6, 31))
    assert list(read_entries(store, after_seq=0)) == before
    assert list(read_entries(store, after_seq=6)) == before[6:]
    assert read_entry(store, 7) == before[6][0]
    assert replayed(store) == load_state(store) == log.state
    assert verify(store, content=True).flaws == []
    with pytest.raises(WriterFenced):
        ManifestLog.open(store, opened(instance="a second one"), state)


def test_a_writer_that_cannot_ask_whether_it_is_the_last_one_appends_nothing() -> None:
    class Deaf(MemoryStore):
        def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
            if after:
                raise StoreUnavailable("away")
            return super().list(prefix, after=after)

    store = Deaf(uuid.uuid4().hex)
    with pytest.raises(StoreUnavailable):
        ManifestLog.open(store, opened(), PipelineState(), retry_seconds=0)


@on_s3_seldom
def test_an_opening_that_is_gone_is_a_flaw(store: ObjectStore) -> None:
    filled(store, 6)
    filled(store, 30)
    compacted(store, 30)
    store.delete(keys.manifest_entry(7))
    (flaw,) = verify(store, content=False).flaws
    assert (flaw.seq, flaw.key) == (7, keys.manifest_entry(7))


def test_the_example_policy_of_the_applier_allows_what_it_does() -> None:
    store = Recording(uuid.uuid4().hex)
    filled(store, 15)
    store.used.clear()
    compacted(store, 15)
    assert store.refused_by("applier") == []
    entry = f"spool/test/{keys.manifest_entry(20)}"
    assert not policies.allows(policies.policy("applier"), "s3:PutObject", entry)
    ours = [f"spool/test/{key}" for key in (keys.manifest_entry(20), keys.archive(4), keys.checkpoint(4))]
    assert [policies.allows(policies.policy("ingest"), "s3:DeleteObject", key) for key in ours] == [False] * 3


# failures


POINTS = [
    "compact.archive.before",
    "store.create.before",
    "store.create.after",
    "compact.archive.created",
    "compact.archive.after",
    "compact.remove.before",
    "compact.remove.before@3",
    "compact.removed",
    "compact.removed@2",
]


@pytest.mark.parametrize(
    "point", cases(POINTS, quick=["store.create.after", "compact.archive.after", "compact.remove.before@3"])
)
def test_killed_at_any_step_it_loses_nothing_and_the_next_one_ends_the_work(tmp_path: Path, point: str) -> None:
    store = LocalStore(tmp_path)
    log = filled(store, 19)
    before = list(read_entries(store, after_seq=0))
    script = f"""
from tests.conformance.test_compaction import Compactor, LocalStore, Path, compaction, shrink
shrink(setattr)
compaction.THREADS = 1
compactor = Compactor(LocalStore(Path({str(tmp_path)!r})))
while compactor.step(19):
    pass
"""
    killed_at(point, script)
    assert list(read_entries(store, after_seq=0)) == before
    assert load_state(store) == log.state
    assert verify(store, content=True).flaws == []
    compacted(store, 19)
    assert list(read_entries(store, after_seq=0)) == before
    assert (singles(store), len(list(store.list(keys.ARCHIVES)))) == ([1, *range(13, 20)], 3)


class Failing(MemoryStore):
    """Fails at the operation with the number `at`, before it or after it was carried out."""

    at, count, carried_out = -1, 0, False

    def _counted(self, carry_out: Callable[[], Any], *, writes: bool = False) -> Any:
        self.count += 1
        fails = self.count - 1 == self.at
        if fails and not self.carried_out:
            raise StoreUnavailable("away")
        found = carry_out()
        if fails and writes:
            raise StoreUnavailable("the answer was lost")
        return found

    def get(self, key: str) -> bytes:
        return bytes(self._counted(lambda: MemoryStore.get(self, key)))

    def create(self, key: str, data: bytes | memoryview) -> None:
        self._counted(lambda: MemoryStore.create(self, key, data), writes=True)

    def delete(self, key: str) -> None:
        self._counted(lambda: MemoryStore.delete(self, key), writes=True)

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        return iter(self._counted(lambda: MemoryStore.list(self, prefix, after=after)))

    def size(self, key: str) -> int | None:
        return self._counted(lambda: MemoryStore.size(self, key))  # type: ignore[no-any-return]


@pytest.mark.parametrize("carried_out", [False, True])
def test_a_store_that_fails_between_any_two_steps_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, carried_out: bool
) -> None:
    monkeypatch.setattr(compaction, "THREADS", 1)
    failed = 0
    for at in range(200):
        store = Failing(uuid.uuid4().hex)
        filled(store, 15)
        before = list(read_entries(store, after_seq=0))
        compactor = Compactor(store)
        store.at, store.count, store.carried_out = at, 0, carried_out
        try:
            while compactor.step(15):
                pass
        except StoreUnavailable:
            failed += 1
        done, store.at = store.count <= at, -1
        assert list(read_entries(store, after_seq=0)) == before
        while compactor.step(15):
            pass
        assert list(read_entries(store, after_seq=0)) == before
        assert singles(store) == [1, *range(9, 16)]
        if done:
            break
    assert done
    assert failed > (5 if carried_out else 10)


def test_an_archive_of_other_entries_stops_it_and_nothing_is_removed(store: ObjectStore) -> None:
    filled(store, 15)
    other = MemoryStore(uuid.uuid4().hex)
    filled(other, 15)
    compacted(other, 15)
    store.put(keys.archive(4), other.get(keys.archive(4)))
    with pytest.raises(ManifestCorrupt, match="manifest entry 2 is not the one in archive/0000000000000004"):
        compacted(store, 15)
    assert singles(store) == list(range(1, 16))


def test_a_new_manifest_does_not_begin_beside_archives_of_another(store: ObjectStore) -> None:
    filled(store, 15)
    compacted(store, 15)
    for seq in singles(store):
        store.delete(keys.manifest_entry(seq))
    with pytest.raises(ManifestCorrupt, match="archive/0000000000000004"):
        ManifestLog.open(store, opened(), PipelineState())


@pytest.mark.parametrize("damage", ["cut short", "a byte", "empty", "another one's", "gone"])
def test_a_damaged_archive_is_named_and_never_read_over(store: ObjectStore, damage: str) -> None:
    filled(store, 19)
    compacted(store, 19)
    key, whole = keys.archive(8), store.get(keys.archive(8))
    half = len(whole) * 3 // 4
    damaged = {
        "cut short": whole[:half],
        "a byte": whole[:half] + bytes((whole[half] ^ 255,)) + whole[half + 1 :],
        "empty": b"",
        "another one's": store.get(keys.archive(4)),
    }
    if damage == "gone":
        store.delete(key)
    else:
        store.put(key, damaged[damage])
    with pytest.raises(ManifestCorrupt, match=r"archive/0000000000000008|manifest entry 5 is missing"):
        list(read_entries(store, after_seq=0))
    assert [flaw.seq for flaw in verify(store, content=False).flaws][:1] != []


class Interleaving:
    """Writers that open, append and are replaced, two compactors of which each may fail at any
    operation, readers that go on from where they were, and starts.
    """

    def __init__(self, data: st.DataObject) -> None:
        self.draw = data.draw
        self.store = Failing(uuid.uuid4().hex)
        self.logs = [filled(self.store, 2)]
        self.compactors = [Compactor(self.store), Compactor(self.store)]
        self.readers, self.states = [PipelineState()] * 3, [load_state(self.store)]

    def append(self) -> None:
        put(self.logs[-1], Progress(), through_lsn=self.logs[-1].state.through_lsn + 1)

    def open(self) -> None:
        self.states.append(load_state(self.store))
        self.logs.append(ManifestLog.open(self.store, opened(), self.states[-1]))

    def open_late(self) -> None:
        state = self.draw(st.sampled_from(self.states))
        if state.seq < self.logs[-1].state.seq:
            with pytest.raises(WriterFenced):
                ManifestLog.open(self.store, opened(), state)

    def append_late(self) -> None:
        old = self.draw(st.sampled_from(self.logs))
        if old is not self.logs[-1]:
            with pytest.raises(WriterFenced):
                put(old, Progress(), through_lsn=old.state.through_lsn + 1)

    def compact(self) -> None:
        self.store.at, self.store.count = self.draw(st.integers(-1, 30)), 0
        self.store.carried_out = self.draw(st.booleans())
        with contextlib.suppress(StoreUnavailable):
            self.draw(st.sampled_from(self.compactors)).step(self.logs[-1].state.seq)
        self.store.at = -1

    def checkpoint(self) -> None:
        checkpoint.write(self.store, self.logs[-1].state)

    def read(self) -> None:
        number = self.draw(st.integers(0, 2))
        self.readers[number] = replayed(self.store, self.readers[number], limit=self.draw(st.integers(1, 9)))

    def start(self) -> None:
        assert load_state(self.store) == self.logs[-1].state


STEPS = ["append"] * 6 + ["compact"] * 2 + ["read", "start", "open", "open_late", "append_late", "checkpoint"]


@settings(max_examples=60 if FULL else 30, deadline=None)
@given(st.data())
def test_whatever_is_interleaved_every_reader_sees_the_same_log(data: st.DataObject) -> None:
    world = Interleaving(data)
    truth = list(read_entries(world.store, after_seq=0))
    for step in data.draw(st.lists(st.sampled_from(STEPS), max_size=60)):
        getattr(world, step)()
        truth += read_entries(world.store, after_seq=len(truth))
        assert len(truth) == world.logs[-1].state.seq
    for reader in world.readers:
        assert replayed(world.store, reader) == world.logs[-1].state
    assert list(read_entries(world.store, after_seq=0)) == truth
    assert verify(world.store, content=False).flaws == []

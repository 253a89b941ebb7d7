"""What every table has in the lake goes after its retention, entries and all, and the log is still
whole, readable and fenced.
"""

import contextlib
import threading
import uuid
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.contract import keys
from sluice.contract.entries import Lost, Prepared
from sluice.contract.table_state import State
from sluice.errors import ManifestCorrupt, StoreUnavailable, WriterFenced
from sluice.health.backlog import Backlog
from sluice.manifest import checkpoint, horizon, pruning
from sluice.manifest.compaction import Compactor
from sluice.manifest.leftovers import collect
from sluice.manifest.newest_record import newest_log
from sluice.manifest.reader import load_state, read_entries
from sluice.manifest.writer import ManifestLog
from sluice.operate.naming_entry import naming
from sluice.operate.spool_verify import verify
from sluice.store.base import ObjectStore
from sluice.store.local import LocalStore
from tests.conformance.spools import LATER, World, stores
from tests.conformance.test_compaction import Failing, compacted, replayed, shrink, singles
from tests.support.extent import FULL, cases, slow
from tests.support.killed import killed_at
from tests.support.manifests import opened, table
from tests.support.stores import WatchedStore

on_s3_seldom = pytest.mark.parametrize("store", stores(s3=slow), indirect=True)


@pytest.fixture(autouse=True)
def small_archives(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch.setattr)
    monkeypatch.setattr(pruning, "DELETED_AT_ONCE", 3)


def grown(world: World, count: int) -> World:
    world.join("7")
    while world.state.seq < count:
        world.change("7")
    return world


def kept(world: World) -> list[int]:
    """The bounds of the archives that are there."""
    return [int(key.removeprefix(keys.ARCHIVES).partition(".")[0]) for key in world.store.list(keys.ARCHIVES)]


def test_entries_that_nothing_needs_go_with_their_objects(store: ObjectStore) -> None:
    world = grown(World(store), 30)
    compacted(store, 30)
    through = 18
    world.applied({"7": through})
    world.collect()
    assert kept(world) == [20, 24], "entry 18, which is stated, is in the first one"
    assert singles(store) == [1, *range(25, 31)]
    assert horizon.floor_seq(store) == 16
    assert horizon.base(store).seq == 16
    assert [entry.seq for entry, _ in read_entries(store, after_seq=16)] == list(range(17, 31))
    with pytest.raises(ManifestCorrupt, match="entry 6 was pruned, with those through entry 16"):
        list(read_entries(store, after_seq=5))
    seen = verify(store, content=True)
    assert (seen.flaws, seen.base_seq, seen.state) == ([], 16, world.state)


@on_s3_seldom
def test_a_pruned_log_is_started_written_compacted_and_pruned_on(store: ObjectStore) -> None:
    world = grown(World(store), 30)
    compacted(store, 30)
    world.applied()
    world.collect()
    for key in list(store.list(keys.CHECKPOINTS)):
        store.delete(key)
    assert load_state(store) == world.state
    world.open()
    while world.state.seq < 60:
        world.change("7")
    while Compactor(store).step(60, floor_seq=horizon.floor_seq(store)):
        pass
    world.applied()
    world.collect()
    assert kept(world) == [56], "the newest entries are single, and all before it is pruned"
    assert verify(store, content=True).flaws == []
    assert load_state(store) == world.state
    assert len(list(store.list(keys.HORIZONS))) <= 2 * pruning.STATEMENTS_KEPT


def test_a_known_state_goes_on_whatever_was_pruned_and_costs_what_is_new() -> None:
    world = grown(World(store := WatchedStore(uuid.uuid4().hex)), 30)
    known = {seq: replayed(store, limit=seq) for seq in (1, 7, 24, 29)}
    compacted(store, 30)
    world.applied({"7": 18})
    world.collect()
    assert horizon.floor_seq(store) == 16
    for state in known.values():
        assert load_state(store, known=state) == world.state
    for state, most in ((world.state, 3), (known[29], 5)):
        store.asked.clear()
        load_state(store, known=state)
        assert len(store.asked) <= most, store.asked
    world.change("7")
    other = replace(known[29], previous_sha256=known[24].previous_sha256)
    assert load_state(store, known=other) == world.state, "of a manifest that is gone"


@on_s3_seldom
def test_a_paused_writer_stays_fenced_after_what_followed_it_is_pruned(store: ObjectStore) -> None:
    world = grown(World(store), 10)
    paused, state = world.log, world.state
    world.open()
    while world.state.seq < 40:
        world.change("7")
    compacted(store, 40)
    world.applied()
    world.collect()
    with pytest.raises(WriterFenced):
        paused.append(table("9"))
    with pytest.raises(WriterFenced):
        ManifestLog.open(store, opened(instance="late"), state)
    assert load_state(store) == world.state
    assert verify(store, content=True).flaws == []


@on_s3_seldom
def test_what_nobody_applied_stays_at_any_hour_of_any_clock(store: ObjectStore) -> None:
    world = grown(World(store), 30)
    compacted(store, 30)
    world.applied({"7": 10})
    before = world.objects()
    world.collect(timedelta(0), now=LATER + timedelta(days=36_500))
    still = {key for entry, _ in read_entries(store, after_seq=10) for key in _named(entry)}
    assert still <= world.objects() < before


@on_s3_seldom
def test_entries_of_a_clock_that_was_ahead_stay_no_longer_than_those_behind_them(store: ObjectStore) -> None:
    world = grown(World(store), 10)
    for wrong in (timedelta(days=3650), timedelta(days=-3650)):
        world.time += wrong
        for _ in range(10):
            world.change("7")
    world.applied()

    def pruned(hours: int, most: int | None = None) -> int:
        keep_seconds = timedelta(hours=hours).total_seconds()
        return pruning.plan(store, keep_seconds=keep_seconds, most_entries=most, now=lambda: world.time).through_seq

    assert [pruned(hours) for hours in (12, 10, 9, 5)] == [10, 10, 21, 25], "entry 21 was written 9 hours ago"
    assert [pruned(5, most) for most in (3, 12)] == [3, 21]


def _named(entry: object) -> list[str]:
    return [segment.key for segment in getattr(entry.body, "segments", ())]  # type: ignore[attr-defined]


def test_for_ever_keeps_everything_and_says_so(store: ObjectStore) -> None:
    world = grown(World(store), 10)
    world.applied()
    plan = pruning.plan(store, keep_seconds=pruning.FOR_EVER, now=lambda: LATER)
    assert (plan.through_seq, plan.objects, str(plan.holds[0])) == (0, {}, "retention is for ever: everything stays")


@on_s3_seldom
def test_leftovers_of_an_epoch_that_began_before_what_was_pruned_are_found(store: ObjectStore) -> None:
    world = grown(World(store), 20)
    waiting = world.prepare("g")
    while world.state.seq < 40:
        world.change("7")
    dead = [keys.segment("7", 1, 9000), keys.staged(1, 700, 9001)]
    for key in dead:
        store.put(key, b"x")
    compacted(store, 40)
    world.applied()
    world.collect()
    world.open()
    left = world.objects()
    epoch, opened_seq = world.state.epoch, world.state.seq
    assert collect(store, opened_seq=opened_seq, epoch=epoch, table_ids=["7"], stop=threading.Event()) == 2
    assert world.objects() == left - set(dead)
    assert waiting.parts[0].segment.key in world.objects()


@on_s3_seldom
def test_a_search_and_a_backlog_end_where_the_log_begins(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.health.backlog.FAR_BEHIND", 5)
    world = grown(World(store), 30)
    compacted(store, 30)
    world.applied()
    world.collect()
    assert naming(store, "data/7/nothing") is None
    record = newest_log(store).read()
    assert Backlog(store).read(world.state, record).files == 0
    assert Backlog(store).read(world.state, None).files >= 0, "a record that is lost stops no report"


POINTS = [
    "gc.horizon.before",
    "gc.horizon.after",
    "gc.delete.before",
    "gc.delete.before@4",
    "gc.cleaned.before",
    "gc.cleaned.after",
    "gc.floor.before",
    "gc.floor.after",
    "gc.delete.before@15",
    "gc.delete.before@17",
]
QUICK = ["gc.horizon.after", "gc.delete.before@4", "gc.cleaned.before", "gc.floor.before", "gc.floor.after"]
"""Behind what was stated, some of the objects, all of them, the entries."""


@pytest.mark.parametrize("point", cases(POINTS, quick=QUICK))
def test_killed_at_any_step_it_leaves_a_whole_spool_and_the_next_one_ends_the_work(tmp_path: Path, point: str) -> None:
    store = LocalStore(tmp_path)
    world = grown(World(store), 30)
    compacted(store, 30)
    world.applied({"7": 20})
    world.collect(timedelta(0), now=world.time - timedelta(hours=24))
    script = f"""
from tests.conformance.test_pruning import LATER, LocalStore, Path, pruning, shrink
shrink(setattr)
pruning.THREADS = 1
store = LocalStore(Path({str(tmp_path)!r}))
pruning.carry_out(store, pruning.plan(store, keep_seconds=0, now=lambda: LATER))
"""
    killed_at(point, script)
    assert verify(store, content=True).flaws == []
    assert load_state(store) == world.state
    world.collect()
    assert (kept(world), horizon.floor_seq(store)) == ([20, 24], 16)
    assert len(world.objects()) == 10


@on_s3_seldom
def test_one_that_was_replaced_deletes_nothing_more(store: ObjectStore) -> None:
    world = grown(World(store), 30)
    compacted(store, 30)
    world.applied()
    plan = world.plan()
    for allowed in range(12):
        asked = iter([True] * allowed)

        def owner(asked: object = asked) -> None:
            if not next(asked, False):  # type: ignore[call-overload]
                raise WriterFenced("another applier has taken this pipeline over")

        before = len(world.objects())
        with contextlib.suppress(WriterFenced):
            pruning.carry_out(store, plan, require_owner=owner)
        assert before - len(world.objects()) <= 3 * allowed
        assert verify(store, content=True).flaws == []
        assert load_state(store) == world.state


STEPS = ["change 7", "change 8", "snapshot 7", "prepare", "commit", "roll back", "apply", "collect", "compact", "open"]
WEIGHTED = [*STEPS, "checkpoint"] + ["change 7"] * 4 + ["apply", "collect", "compact"]


class Life:
    """A pipeline of two tables whose applier, compaction, pruning and writers take turns, each of
    which may fail at any operation.
    """

    def __init__(self, data: st.DataObject) -> None:
        self.draw = data.draw
        self.store = Failing(uuid.uuid4().hex)
        self.world = World(self.store)
        self.world.join("7")
        self.world.join("8")
        self.through = dict.fromkeys("78", 0)
        self.named: list[tuple[int, str, str]] = []
        self.waiting: list[Prepared] = []
        self.logs = [self.world.log]
        self.first = 1
        """No entry behind it may go: a table that is read again needs none from before its new generation."""

    def step(self, step: str) -> None:
        world = self.world
        match step.split():
            case ["change", table_id]:
                self.named.append((world.state.seq + 1, table_id, world.change(table_id)))
            case ["prepare"]:
                self.waiting.append(world.prepare(f"g{world.state.seq}"))
            case ["commit"] if self.waiting:
                one = self.waiting.pop()
                world.end(one, "committed")
                self.named.append((world.state.seq, "7", one.parts[0].segment.key))
            case ["roll", "back"] if self.waiting:
                world.end(self.waiting.pop(), "rolled_back")
            case ["snapshot", table_id]:
                generation = world.state.tables[table_id].generation + 1
                self.named = [one for one in self.named if one[1] != table_id]
                self.named.append((world.state.seq + 2, table_id, world.join(table_id, generation=generation)))
                self.through[table_id] = 0
            case ["apply"]:
                for table_id in self.through:
                    self.through[table_id] = self.draw(st.integers(self.through[table_id], world.state.seq))
                    if self.through[table_id] < world.state.tables[table_id].generation_seq + 2:
                        self.through[table_id] = 0
                world.applied(dict(self.through), complete=min(self.through.values()))
                self.first = max(self.first, min(self.through.values()))
            case ["open"]:
                world.open()
                self.logs.append(world.log)
            case ["checkpoint"]:
                checkpoint.write(self.store, world.state)
            case ["compact" | "collect" as what]:
                self._failing(what)

    def _failing(self, what: str) -> None:
        self.store.at, self.store.count = self.draw(st.integers(-1, 60)), 0
        self.store.carried_out = self.draw(st.booleans())
        with contextlib.suppress(StoreUnavailable):
            if what == "compact":
                Compactor(self.store).step(self.world.state.seq, floor_seq=horizon.floor_seq(self.store))
            else:
                pruning.carry_out(self.store, self.world.plan())
        self.store.at = -1

    def needed(self) -> set[str]:
        needed = {key for seq, table_id, key in self.named if seq > self.through[table_id]}
        return needed | {one.parts[0].segment.key for one in self.waiting}


@settings(max_examples=100 if FULL else 50)
@given(st.data())
def test_whatever_happens_what_is_to_be_applied_stays_and_the_log_is_whole(data: st.DataObject) -> None:
    life = Life(data)
    world, store = life.world, life.store
    for step in data.draw(st.lists(st.sampled_from(WEIGHTED), max_size=60)):
        life.step(step)
        assert life.needed() <= world.objects()
        assert load_state(store) == world.state
    assert verify(store, content=True).flaws == []
    left = [entry.seq for entry, _ in read_entries(store, after_seq=life.first - 1)]
    assert left == list(range(life.first, world.state.seq + 1))
    for log in life.logs[:-1]:
        with pytest.raises(WriterFenced):
            log.append(table("9"))


def _by_a_step(world: World) -> None:
    world.log.append(table(version=None, state="stale"))


def _by_a_lost_slot(world: World) -> None:
    through = world.state.through_lsn + 100
    world.log = ManifestLog.open(
        world.store, opened(lost=Lost("lost", ())), load_state(world.store), through_lsn=through, clock=world._tick
    )


@pytest.mark.parametrize("goes_stale", [_by_a_step, _by_a_lost_slot])
def test_objects_of_a_window_that_is_under_way_stay_until_the_applier_has_called_it_off(
    store: ObjectStore, goes_stale: object
) -> None:
    world = World(store)
    world.join("7")
    done = world.state.seq
    waiting = {world.change("7"), world.change("7")}
    # The applier has read all of it, and has a window of both changes under way.
    world.applied({"7": done}, complete=world.state.seq)
    goes_stale(world)  # type: ignore[operator]
    assert world.state.tables["7"].state == State.STALE
    # It has not read the entry that makes the table stale.
    assert not waiting & world.collect(), "deleted under the applier's window"

"""Garbage collection deletes what every table has in the lake and nothing else, says so first, and
stops at any doubt.
"""

from collections.abc import Callable
from datetime import timedelta

import pytest

from sluice.contract import consumer, keys
from sluice.contract.applied import AppliedLog, Complete
from sluice.contract.consumer import Consumer
from sluice.errors import ManifestCorrupt
from sluice.manifest import checkpoint
from sluice.manifest import pruning as gc
from sluice.manifest.reader import load_state
from sluice.operate.spool_verify import verify
from sluice.store.base import ObjectStore
from tests.conformance.spools import CONTENT, LATER, Recording, World, stores
from tests.support import policies
from tests.support.extent import slow
from tests.support.forwarding import Forwarding
from tests.support.manifests import table
from tests.support.recorded import row

on_s3_seldom = pytest.mark.parametrize("store", stores(s3=slow), indirect=True)


@pytest.fixture
def world(store: ObjectStore) -> World:
    return World(store)


def test_what_every_table_has_applied_goes_and_the_rest_of_the_spool_stays(world: World) -> None:
    old = {world.join("7"), world.join("8"), world.change("7"), world.change("8")}
    through = world.state.seq
    world.applied({"7": through, "8": through})
    new = {world.change("7"), world.change("8")}
    entries = world.entries()
    assert world.plan().objects.keys() == old
    assert world.objects() == old | new, "a plan changes nothing"
    assert world.collect() == old
    assert world.entries() == entries, "the chain is never shortened"
    seen = verify(world.store, content=True)
    assert (seen.objects, seen.pruned, seen.horizon.through_seq) == (2, 4, through)
    assert world.collect() == set()


@on_s3_seldom
def test_the_table_that_is_furthest_behind_keeps_what_it_needs_and_is_named(world: World) -> None:
    first = {world.join("7"), world.join("8")}
    through = world.state.seq
    world.change("8")
    world.change("7")
    world.applied({"7": world.state.seq, "8": through})
    found = world.plan()
    assert found.through_seq == through
    assert (
        str(found.holds[0]) == f"public.t8 is applied through entry {through}: everything after entry {through} stays"
    )
    assert world.collect() == first


def test_without_a_record_of_the_applier_everything_stays(world: World) -> None:
    world.join("7")
    world.change("7")
    assert world.plan().through_seq == 0
    assert str(world.plan().holds[0]) == "the applier has not reported yet: everything stays"
    assert world.collect() == set()


@pytest.mark.parametrize("state", ["stale", "snapshot"])
def test_a_table_that_the_applier_stopped_or_snapshots_keeps_everything_from_there(world: World, state: str) -> None:
    world.join("7")
    world.join("8")
    world.change("7")
    world.applied({"7": world.state.seq, "8": 0}, t8=state)
    assert "public.t8" in str(world.plan().holds[0])
    assert not any(key.startswith("data/8/") for key in world.collect())


@on_s3_seldom
def test_what_is_younger_than_asked_stays(world: World) -> None:
    world.join("7")
    old, new = world.change("7"), world.change("7")
    world.applied()
    gone = world.collect(timedelta(hours=1), now=world.time)
    assert old in gone
    assert new not in gone
    assert world.collect(timedelta(days=7), now=world.time) == set()


@on_s3_seldom
def test_a_prepared_transaction_keeps_its_rows_until_it_has_ended(world: World) -> None:
    world.join("7")
    waiting = world.prepare("g")
    body = waiting.parts[0].segment.key
    world.applied()
    assert body not in world.collect()
    world.change("7")
    world.end(waiting, "committed")
    through = world.state.seq - 1
    world.applied({"7": through})
    assert body not in world.collect(), "its commit is not applied"
    world.applied()
    assert body in world.collect()


def test_the_rows_of_a_prepared_transaction_that_was_rolled_back_go(world: World) -> None:
    world.join("7")
    waiting = world.prepare("g")
    world.end(waiting, "rolled_back")
    world.applied()
    assert waiting.parts[0].segment.key in world.collect()


@on_s3_seldom
def test_losing_a_prepared_body_behind_the_horizon_is_still_found(world: World) -> None:
    world.join("7")
    waiting = world.prepare("g")
    world.applied()
    world.collect()
    world.store.delete(waiting.parts[0].segment.key)
    assert [flaw.what for flaw in verify(world.store, content=False).flaws] == ["is missing"]


@on_s3_seldom
def test_a_table_that_left_keeps_nothing_once_the_applier_has_heard_of_it(world: World) -> None:
    world.join("7")
    gone = world.join("8")
    known = world.state.seq
    world.log.append(table("8", version=None, state="detached"))
    world.applied({"7": known + 1, "8": known - 2}, complete=known)
    assert gone not in world.collect(), "a window of it may be under way"
    world.applied({"7": known + 1, "8": known - 2}, complete=known + 1)
    assert gone in world.collect()


@on_s3_seldom
def test_a_new_generation_keeps_its_snapshot_and_lets_the_old_one_go_when_it_is_applied(world: World) -> None:
    first = world.join("7")
    world.applied()
    second = world.join("7", generation=2)
    world.applied({"7": 0}, complete=0)
    assert world.collect() == set(), "the applier may still be at the old generation"
    world.applied()
    assert world.collect() == {first, second}


def test_a_table_that_cannot_be_carried_keeps_nothing(world: World) -> None:
    world.log.append(table("9", state="quarantined"))
    gone = world.join("7")
    world.applied({"7": world.state.seq, "9": 0})
    assert world.collect() == {gone}


def test_files_of_dead_writers_go_and_those_of_a_living_one_stay(world: World) -> None:
    world.join("7")
    dead = [keys.staged(1, 5, 90), keys.segment("7", 1, 91)]
    for key in dead:
        world.store.put(key, CONTENT)
    world.open()
    living = keys.staged(2, 5, 1)
    world.store.put(living, CONTENT)
    assert set(world.plan().leftovers) == set(dead)
    assert world.collect() == set(dead)
    assert living in world.objects()


def test_old_checkpoints_go_and_a_start_still_finds_one(world: World) -> None:
    world.join("7")
    for _ in range(gc.CHECKPOINTS_KEPT + 3):
        world.change("7")
        checkpoint.write(world.store, world.state)
    world.collect()
    assert len(list(world.store.list(keys.CHECKPOINTS))) == gc.CHECKPOINTS_KEPT
    assert load_state(world.store) == world.state


@pytest.mark.parametrize("wrong", ["ahead", "generation", "table", "complete"])
def test_a_record_of_another_manifest_stops_it(world: World, wrong: str) -> None:
    world.join("7")
    generation, through = 2 if wrong == "generation" else 1, 99 if wrong == "ahead" else 1
    said = row("8" if wrong == "table" else "7", table_name="t7", generation=generation, through_seq=through)
    at = "2026-01-01T00:00:00+00:00"
    world.store.create(keys.apply_log(1), AppliedLog(1, "a", at, {said.table_id: said}).encode())
    complete = Complete(1, 1, 99 if wrong == "complete" else 1, at, {})
    world.store.create(keys.apply_complete(1), complete.encode())
    with pytest.raises(ManifestCorrupt, match="the applier"):
        world.plan()


@on_s3_seldom
def test_a_statement_about_another_chain_excuses_nothing(world: World) -> None:
    world.join("7")
    gone = world.change("7")
    world.applied()
    world.collect()
    key = keys.horizon(world.state.seq)
    world.store.put(key, world.store.get(key).replace(world.state.previous_sha256.encode(), b"0" * 64))
    flaws = verify(world.store, content=False).flaws
    assert flaws[0].key == keys.HORIZONS
    assert gone in {flaw.key for flaw in flaws}
    with pytest.raises(ManifestCorrupt, match="has other content"):
        world.plan()


def test_an_object_lost_after_the_horizon_is_found_missing(world: World) -> None:
    world.join("7")
    world.applied()
    world.collect()
    lost = world.change("7")
    world.store.delete(lost)
    assert [flaw.key for flaw in verify(world.store, content=False).flaws] == [lost]


class Overtaken(Forwarding):
    """Each time that the object `key` is looked for, `turn` is called before."""

    def __init__(self, inner: ObjectStore, key: str, turn: Callable[[], None]) -> None:
        super().__init__(inner)
        self._key, self._turn = key, turn
        self.looks = 0

    def size(self, key: str) -> int | None:
        if key == self._key:
            self.looks += 1
            self._turn()
        return super().size(key)


@pytest.mark.parametrize("kind", ["a change", "a prepared transaction"])
def test_what_is_lost_is_named_although_pruning_overtakes_each_look(world: World, kind: str) -> None:
    world.join("7")
    lost = world.prepare("gid").parts[0].segment.key if kind == "a prepared transaction" else ""
    for _ in range(9):
        world.change("7")
    lost = lost or world.change("7")
    world.store.delete(lost)
    through = iter(range(4, 12))

    def pruned() -> None:
        if (seq := next(through, None)) is not None:
            world.applied({"7": seq})
            gc.carry_out(world.store, world.plan())

    overtaken = Overtaken(world.store, lost, pruned)
    assert [flaw.key for flaw in verify(overtaken, content=False).flaws] == [lost]
    assert overtaken.looks <= 2


def test_its_example_policy_allows_what_it_does_and_nothing_that_could_unmake_the_manifest() -> None:
    store = Recording("recording")
    world = World(store)
    world.join("7")
    for _ in range(gc.CHECKPOINTS_KEPT + 1):
        world.change("7")
        checkpoint.write(store, world.state)
    store.put(keys.staged(1, 5, 999), CONTENT)
    world.open()
    world.applied()
    plan = world.plan()
    store.used.clear()
    gc.carry_out(store, plan)
    assert store.refused_by("gc") == []
    entry, document = f"spool/test/{keys.manifest_entry(1)}", policies.policy("gc")
    assert [policies.allows(document, f"s3:{action}Object", entry) for action in ("Put", "Delete")] == [False, False]


@on_s3_seldom
def test_what_waits_for_a_paused_table_stays_however_long_the_pause_is(world: World) -> None:
    old = world.join("7")
    through = world.state.seq
    world.log.append(table("7", version=None, state="live", paused=True))
    waiting = {world.change("7"), world.change("7")}
    world.applied({"7": through}, t7="paused")
    assert world.collect() == {old}
    world.log.append(table("7", version=None, state="live", paused=False))
    world.applied({"7": through})
    assert world.collect() == set()
    world.applied()
    assert world.collect() == waiting


def test_a_consumer_keeps_what_it_has_not_read_until_it_has_said_nothing_for_too_long(world: World) -> None:
    read = {world.join("7"), world.change("7")}
    through = world.state.seq
    unread = {world.change("7")}
    world.applied()
    at = LATER.isoformat()
    world.store.put(consumer.key("the join"), Consumer("the join", through, at).encode())
    plan = gc.plan(world.store, keep_seconds=0, consumer_seconds=60, now=lambda: LATER + timedelta(seconds=59))
    assert plan.objects.keys() == read
    assert (plan.holds[0].what, plan.holds[0].seq) == ("the consumer the join", through)
    plan = gc.plan(world.store, keep_seconds=0, consumer_seconds=60, now=lambda: LATER + timedelta(seconds=60))
    assert plan.objects.keys() == read | unread
    assert plan.holds == ()
    world.store.put(consumer.key("the join"), Consumer("the join", 0, "some day").encode())
    assert world.plan().objects == {}, "a time that cannot be read is young"

"""What a retention breaks is said before it does: the answer is compared with what a rebuild finds afterwards."""

import uuid
from datetime import timedelta

import pytest

from sluice.errors import UsageError
from sluice.manifest import pruning, rebuilding
from sluice.manifest.retention_effects import effects
from sluice.store.memory import MemoryStore
from tests.conformance.spools import AT_ONCE, START, World


@pytest.fixture
def world() -> World:
    """Hour by hour: t7 joins and changes, then t8 joins and changes; everything is applied."""
    world = World(MemoryStore(uuid.uuid4().hex))
    world.join("7")
    world.change("7")
    world.join("8")
    world.change("8")
    world.change("7")
    world.applied()
    return world


def _said(world: World, keep: timedelta) -> dict[str, str]:
    plan = world.plan(keep, world.time)
    found = effects(world.store, plan, keep_seconds=keep.total_seconds())
    return {effect.table: str(effect.effect) for effect in found}


def _rebuildable(world: World) -> set[str]:
    able = set()
    for table in world.state.tables.values():
        try:
            rebuilding.plan(world.store, world.state, table)
        except UsageError:
            continue
        able.add(table.source_name)
    return able


@pytest.mark.parametrize("hours", range(12))
def test_what_a_plan_says_is_what_a_rebuild_finds_after_the_pruning(world: World, hours: int) -> None:
    keep = timedelta(hours=hours)
    assert _rebuildable(world) == {"public.t7", "public.t8"}
    said = _said(world, keep)
    objects, entries = world.objects(), world.entries()
    assert (objects, entries) == (world.objects(), world.entries())
    world.collect(keep, world.time)
    assert {name for name, effect in said.items() if effect == "keeps"} == _rebuildable(world)
    assert set(said.values()) <= {"keeps", "loses"}
    again = _said(world, keep)
    assert {name for name, effect in again.items() if effect == "lost"} == {
        name for name, effect in said.items() if effect == "loses"
    }


def test_a_table_that_was_read_again_loses_nothing_with_its_former_rows(world: World) -> None:
    world.join("7", generation=2)
    world.applied()
    table = world.state.tables["7"]
    young = timedelta(hours=2)
    assert _said(world, young)["public.t7"] == "keeps"
    world.collect(young, world.time)
    assert "public.t7" in _rebuildable(world)
    assert table.generation == 2


def test_until_when_a_table_can_be_made_is_the_age_of_its_first_entry(world: World) -> None:
    keep = timedelta(days=30)
    plan = world.plan(keep, world.time)
    by_name = {effect.table: effect for effect in effects(world.store, plan, keep_seconds=keep.total_seconds())}
    assert by_name["public.t7"].until == (START + timedelta(hours=2) + keep).isoformat()
    forever = effects(world.store, plan, keep_seconds=pruning.FOR_EVER)
    assert {effect.until for effect in forever} == {None}


def test_a_table_that_is_behind_keeps_the_others_rebuildable_too(world: World) -> None:
    world.applied({"7": world.state.tables["7"].generation_seq, "8": world.state.seq})
    assert set(_said(world, AT_ONCE).values()) == {"keeps"}

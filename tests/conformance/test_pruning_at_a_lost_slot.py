"""What the applier has not applied, and may be applying right now, stays when a lost slot makes its table stale."""

import pytest

from sluice.contract.entries import Lost
from sluice.contract.table_state import State
from sluice.manifest.reader import load_state
from sluice.manifest.writer import ManifestLog
from sluice.store.base import ObjectStore
from tests.conformance.spools import World
from tests.support.manifests import opened, table


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

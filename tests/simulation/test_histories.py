"""Histories of the simulator, each decided by its seed, find nothing; and the model of the server announces what real
servers announced.
"""

from tests.simulation import story
from tests.simulation.encoding import fast
from tests.simulation.hunting import STEPS, hunt
from tests.simulation.world import World
from tests.support.extent import FULL

HISTORIES = 1000 if FULL else 350
"""What takes about a minute, and a third of it."""
_PLAIN = 25 if FULL else 20


def test_no_order_of_events_loses_doubles_or_leaves_a_live_table_unequal() -> None:
    assert hunt(range(1, HISTORIES + 1)) == []


def test_histories_with_the_encoders_of_the_product_find_nothing_either() -> None:
    assert [seed for seed in range(1, _PLAIN + 1) if story.run(seed, STEPS)[1] is not None] == []


def test_a_seed_tells_the_same_history_each_time_and_so_do_its_events() -> None:
    with fast():
        for seed in range(1, 20):
            (world, _), again = story.run(seed, STEPS), story.run(seed, STEPS)
            repeated = story.again(seed, world.events)
            assert again[1] is repeated[1] is None
            told = [list(story.lines(one, one.events, None)) for one in (world, again[0])]
            assert told[0] == told[1] == list(story.lines(repeated[0], world.events, None))


def test_histories_reach_what_they_are_about() -> None:
    """A schedule that never lets anything happen would find nothing."""
    seen: dict[str, int] = {}
    with fast():
        for seed in range(1, 100):
            world, _ = story.run(seed, STEPS)
            seen["claims"] = seen.get("claims", 0) + world.oracle.checked
            for event in world.events:
                for one in (event, *(inner for _, inner in event.inner)):
                    seen[one.name] = seen.get(one.name, 0) + 1
    assert seen.keys() >= World(1).names
    assert min(seen.values()) > 10
    assert seen["claims"] > 300

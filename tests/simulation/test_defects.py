"""The simulator can fail: each defect that is put back is found by the seed that is named here, or by one behind it.

Other seeds may be the first to find one after a change of the product's code, which decides where threads may be
interrupted. `python -m tests.simulation --seeds 1000 --defect NAME` finds and tells them.
"""

import pytest

from tests.simulation import story
from tests.simulation.defects import DEFECTS
from tests.simulation.encoding import fast
from tests.simulation.hunting import STEPS

FOUND = {
    "forgotten entries": 38,
    "complete without a look": 9,
    "complete in front of a shape": 278,
    "windows of two keys": 80,
    "changes that the snapshot has": 2,
    "catalog ahead of the stream": 9,
    "a guess for open transactions": 3,
    "acknowledged too early": 2,
    "prepared and not recorded": 28,
    "one unit of two keys": 80,
}
"""The seed that finds each, when this was written."""
TRIES = 250
"""How many seeds may pass before one finds it."""


@pytest.mark.parametrize("name", FOUND)
def test_a_defect_that_is_put_back_is_found(name: str) -> None:
    with fast(), DEFECTS[name].put_back():
        seeds = range(FOUND[name], FOUND[name] + TRIES)
        assert any(story.run(seed, STEPS)[1] is not None for seed in seeds)


def test_a_story_that_found_something_is_shrunk_to_a_few_events() -> None:
    name = "forgotten entries"
    with fast(), DEFECTS[name].put_back():
        seed = next(seed for seed in range(1, TRIES) if story.run(seed, STEPS)[1] is not None)
        world, _ = story.run(seed, STEPS)
        events = story.shrunk(seed, world.events)
        shorter, again = story.again(seed, events)
        assert again is not None
        assert len(events) < len(world.events) // 2
        assert str(again) in "\n".join(story.lines(shorter, events, again))
    with fast():
        assert story.again(seed, events)[1] is None

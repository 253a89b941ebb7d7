"""`python -m tests.simulation`: histories by seed, in several processes; what one finds is shrunk and printed.
See docs/architecture.md.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext

from tests.simulation import story
from tests.simulation.defects import DEFECTS
from tests.simulation.encoding import fast
from tests.simulation.hunting import STEPS, hunt, silence


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Histories by seed.")
    parser.add_argument("--seeds", type=int, default=1000, help="how many histories")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--steps", type=int, default=STEPS, help="events of a history")
    parser.add_argument("--processes", type=int, default=2, help="how many work side by side")
    parser.add_argument("--seed", type=int, default=0, help="tell this history, whatever it finds")
    parser.add_argument("--defect", default="", choices=("", *DEFECTS), help="put this defect back")
    chosen = parser.parse_args(arguments)
    silence()
    if chosen.seed:
        return _tell(chosen.seed, chosen.steps, chosen.defect)
    began = time.monotonic()
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    found = hunt(seeds, steps=chosen.steps, defect=chosen.defect, processes=chosen.processes)
    seconds = time.monotonic() - began
    print(f"{chosen.seeds} histories in {seconds:.0f} s, {len(found)} of them found something", flush=True)
    for seed in found[:3]:
        _tell(seed, chosen.steps, chosen.defect)
    return 1 if found else 0


def _tell(seed: int, steps: int, defect: str) -> int:
    with fast(), DEFECTS[defect].put_back() if defect else nullcontext():
        world, error = story.run(seed, steps)
        events = world.events
        if error is not None:
            events = story.shrunk(seed, events)
            world, error = story.again(seed, events)
        print("\n".join(story.lines(world, events, error)), flush=True)
    return 1 if error is not None else 0


if __name__ == "__main__":
    sys.exit(main())

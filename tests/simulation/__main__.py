"""`python -m tests.simulation`: histories by seed, in several processes; what one finds is shrunk and printed.
See docs/architecture.md.
"""

import argparse
import gc
import multiprocessing
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext

import structlog

from tests.simulation import story
from tests.simulation.defects import DEFECTS
from tests.simulation.encoding import fast

STEPS = 50
_AT_ONCE = 50
_SILENT = 50
"""A level above every event of the product's log."""


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
    found = hunt(range(chosen.first, chosen.first + chosen.seeds), chosen)
    seconds = time.monotonic() - began
    print(f"{chosen.seeds} histories in {seconds:.0f} s, {len(found)} of them found something", flush=True)
    for seed in found[:3]:
        _tell(seed, chosen.steps, chosen.defect)
    return 1 if found else 0


def silence() -> None:
    """The product's log is not shown."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_SILENT))


def hunt(seeds: range, chosen: argparse.Namespace) -> list[int]:
    """The seeds that find something."""
    parts = [
        (range(first, min(first + _AT_ONCE, seeds.stop)), chosen.steps, chosen.defect)
        for first in range(seeds.start, seeds.stop, _AT_ONCE)
    ]
    if chosen.processes == 1:
        return [seed for part in parts for seed in _found(part)]
    found: list[int] = []
    with multiprocessing.get_context("spawn").Pool(chosen.processes, initializer=silence) as pool:
        for some in pool.imap_unordered(_found, parts):
            found += some
            for seed in some:
                print(f"seed {seed} found something", flush=True)
    return sorted(found)


def _found(part: tuple[range, int, str]) -> list[int]:
    seeds, steps, defect = part
    gc.disable()
    try:
        with fast(), DEFECTS[defect].put_back() if defect else nullcontext():
            return [seed for seed in seeds if story.run(seed, steps)[1] is not None]
    finally:
        gc.enable()
        gc.collect()


def _tell(seed: int, steps: int, defect: str) -> int:
    with fast(), DEFECTS[defect].put_back() if defect else nullcontext():
        world, error = story.run(seed, steps)
        events = world.events
        if error is not None:
            events = story.shrunk(seed, events)
            world, error = story.again(seed, events)
        print("\n".join(story.told(world, events, error)), flush=True)
    return 1 if error is not None else 0


if __name__ == "__main__":
    sys.exit(main())

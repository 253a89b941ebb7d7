"""Many histories, in several processes."""

import gc
import multiprocessing
from contextlib import nullcontext

import structlog

from tests.simulation import story
from tests.simulation.defects import DEFECTS
from tests.simulation.encoding import fast

STEPS = 50
_AT_ONCE = 50
_SILENT = 50
"""A level above every event of the product's log."""


def silence() -> None:
    """The product's log is not shown."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(_SILENT))


def hunt(seeds: range, *, steps: int = STEPS, defect: str = "", processes: int = 1) -> list[int]:
    """The seeds that find something."""
    parts = [
        (range(first, min(first + _AT_ONCE, seeds.stop)), steps, defect)
        for first in range(seeds.start, seeds.stop, _AT_ONCE)
    ]
    if processes == 1:
        return [seed for part in parts for seed in _found(part)]
    found: list[int] = []
    with multiprocessing.get_context("spawn").Pool(processes, initializer=silence) as pool:
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

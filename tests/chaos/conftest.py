"""The seed of a run of chaos: new each time, printed, and the same again with SEED=... in the environment."""

import os
import random

import pytest


@pytest.fixture(scope="module")
def seed() -> int:
    """Decides the workload and what is killed when."""
    chosen = int(os.environ.get("SEED") or random.randrange(10**6))
    print(f"SEED={chosen}")
    return chosen

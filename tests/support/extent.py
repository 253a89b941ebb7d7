"""How much of the test suite runs: `make test` runs what finds most in the time, `make chaos` all of it."""

import os
from collections.abc import Collection, Iterable

import pytest
from _pytest.mark import ParameterSet

from tools.local.binaries import EMBEDDED_MAJOR, MAJOR_VARIABLE

FULL = os.environ.get("CHAOS") == "full"
"""Whether all cases run. Tests with many cases choose the quick ones otherwise."""
STREAMS_SOON = int(os.environ.get(MAJOR_VARIABLE) or EMBEDDED_MAJOR) >= 16
"""Whether the server streams small transactions: then that is the quick way, and else the plain one."""
slow = pytest.mark.skipif(not FULL, reason="slow: make chaos runs it")
"""For a test, or a case of one, whose claim quicker tests cover in part."""


def cases(every: Iterable[object], *, quick: Collection[object]) -> list[ParameterSet]:
    """For a parametrized test: those that are not `quick` are slow. A tuple has a value for each of several names."""
    return [
        pytest.param(*one if isinstance(one, tuple) else (one,), marks=() if one in quick else slow) for one in every
    ]

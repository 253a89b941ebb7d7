"""What holds for every test of the simulator."""

from collections.abc import Iterator

import pytest
import structlog

from tests.simulation.hunting import silence


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    """Only until the test ends: later ones in the same process read the log."""
    silence()
    yield
    structlog.reset_defaults()

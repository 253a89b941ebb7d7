"""For tests of the pure core."""

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture
def logs_as_before_afterwards() -> Iterator[None]:
    """For a test that configures logging: whoever logs later must not write into its stream."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()

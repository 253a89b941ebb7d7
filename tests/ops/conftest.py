"""Fixtures for what is run around Sluice: Prometheus, where it can be had."""

from pathlib import Path

import pytest

from tools.local.binaries import LocalServerError
from tools.local.tools import tool


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Skips, with what to install, where there is none and none can be fetched."""
    return _tool_or_skip("promtool")


@pytest.fixture(scope="session")
def prometheus() -> Path:
    """As `promtool`, for the server."""
    return _tool_or_skip("prometheus")


@pytest.fixture(scope="session")
def alertmanager() -> Path:
    """As `promtool`, for Alertmanager."""
    return _tool_or_skip("prometheus-alertmanager")


def _tool_or_skip(program: str) -> Path:
    try:
        return tool(program)
    except LocalServerError as failure:
        pytest.skip(str(failure))

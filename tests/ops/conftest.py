"""Fixtures for what is run around Sluice: Prometheus, where it can be had."""

from pathlib import Path
from typing import Any

import pytest

from tools.local.binaries import LocalServerError
from tools.local.tools import tool


def _program(name: str) -> Any:
    """A fixture that skips, with what to install, where there is none and none can be fetched."""

    @pytest.fixture(scope="session", name=name.removeprefix("prometheus-"))
    def found() -> Path:
        try:
            return tool(name)
        except LocalServerError as failure:
            pytest.skip(str(failure))

    return found


promtool, prometheus, alertmanager = map(_program, ("promtool", "prometheus", "prometheus-alertmanager"))

"""Prometheus on loopback and the programs that are fetched: what callers may rely on."""

from pathlib import Path

import pytest

from tools.local.binaries import LocalServerError
from tools.local.prometheus import PrometheusServer
from tools.local.tools import HINT, tool


def test_what_path_has_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "promtool"
    installed.write_text("#!/bin/sh\n")
    installed.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tool("promtool", cache=tmp_path / "cache") == installed
    assert not (tmp_path / "cache").exists()


def test_without_debian_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalServerError, match=HINT):
        tool("promtool", cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_server_that_cannot_start_says_why(prometheus: Path, tmp_path: Path) -> None:
    broken = tmp_path / "rules.yml"
    broken.write_text("groups: [{name: broken, rules: [{alert: X, expr: 'sum('}]}]")
    with pytest.raises(LocalServerError, match="did not start"):
        PrometheusServer(tmp_path / "data", targets={}, rules=[broken]).start()

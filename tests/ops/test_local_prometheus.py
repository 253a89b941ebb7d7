"""Prometheus on loopback and the programs that are fetched: what callers may rely on."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.local.binaries import LocalServerError
from tools.local.postgres import free_port
from tools.local.prometheus import PrometheusServer, running_prometheus
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


def test_a_server_says_which_of_its_targets_are_down(prometheus: Path) -> None:
    with running_prometheus({"nobody": [f"127.0.0.1:{free_port()}"]}) as server:
        deadline = time.monotonic() + 30
        while [target["health"] for target in server.targets()] != ["down"]:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert [(series.labels["job"], series.value) for series in server.query("up")] == [("nobody", 0.0)]
        assert server.firing() == set()


def test_a_server_that_cannot_start_says_why(prometheus: Path, tmp_path: Path) -> None:
    broken = tmp_path / "rules.yml"
    broken.write_text("groups: [{name: broken, rules: [{alert: X, expr: 'sum('}]}]")
    with pytest.raises(LocalServerError, match="did not start"):
        PrometheusServer(tmp_path / "data", targets={}, rules=[broken]).start()


def test_a_server_does_not_outlive_an_owner_that_was_killed(prometheus: Path) -> None:
    program = (
        "import sys; from tools.local.prometheus import running_prometheus\n"
        "with running_prometheus({}) as server:\n"
        "    print(server.pid, server.directory, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pid, directory = owner.stdout.readline().split()
        os.kill(int(pid), 0)
        owner.kill()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    shutil.rmtree(directory)

"""The jars come by themselves, and only the recorded ones: with Spark's own resolver, from a repository on disk."""

import hashlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice_spark import jars
from tests.support import commands
from tests.support.extent import slow
from tests.support.maven import repository_on_disk
from tools.local.jvm import QUICK

FETCH = (sys.executable, "-m", "sluice_spark.jars", "fetch")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**repository_on_disk(tmp_path), "JAVA_TOOL_OPTIONS": QUICK}


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """A configuration whose spool has nothing in it."""
    file = tmp_path / "sluice.yaml"
    file.write_text(
        f"{{version: 1, pipeline: shop, source: {{dsn: 'host=nowhere'}}, spool: {{uri: 'file://{tmp_path}/spool'}}, "
        f"lake: {{uri: 'file://{tmp_path}/lake'}}, telemetry: {{apply_listen: 'off'}}}}\n"
    )
    return file


def has_delta(directory: Path) -> bool:
    return all(
        (directory / name).is_file() and hashlib.sha256((directory / name).read_bytes()).hexdigest() == digest
        for name, digest in jars.DELTA.checksums.items()
    )


def start(pipeline: Path, environment: dict[str, str]) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "sluice", "apply", "--once", "-c", str(pipeline), "--log-format", "console"]
    return subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)


@slow
def test_apply_fetches_missing_jars_and_says_so(environment: dict[str, str], pipeline: Path) -> None:
    cache = Path(environment["HOME"]) / ".cache" / "sluice" / "jars"
    applier = start(pipeline, environment)
    _, said = applier.communicate(timeout=120)
    assert "fetching jars" in said
    assert said.index("fetching jars") < said.index("starting Spark")
    assert has_delta(cache), said
    assert sorted(path.name for path in cache.iterdir()) == sorted(jars.DELTA.checksums)
    assert ":: loading settings" not in said, "what the resolver writes is not for people"


@slow
def test_a_log_of_json_has_no_line_of_the_jvm_in_it(environment: dict[str, str], pipeline: Path) -> None:
    done = commands.sluice("apply", "--once", "-c", str(pipeline), "--log-format", "json", "-v", env=environment)
    events = [json.loads(line) for line in done.stderr.splitlines()]
    names = [event["event"] for event in events]
    assert names.index("fetching jars") < names.index("starting Spark") < names.index("Spark has started")
    assert any("incubator" in event.get("line", "") for event in events if event["level"] == "debug")


def test_a_folder_that_an_operator_named_is_never_written_to(
    environment: dict[str, str], pipeline: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    applier = start(pipeline, {**environment, "SLUICE_JARS": str(empty)})
    _, said = applier.communicate(timeout=60)
    assert applier.returncode == 2, said
    assert "sluice jars fetch" in said
    assert list(empty.iterdir()) == []


def test_a_stop_while_jars_are_fetched_ends_at_once_with_0(environment: dict[str, str], pipeline: Path) -> None:
    applier = start(pipeline, environment)
    assert applier.stderr is not None
    for line in applier.stderr:
        if "fetching jars" in line:
            break
    begun = time.monotonic()
    applier.send_signal(signal.SIGTERM)
    _, said = applier.communicate(timeout=60)
    assert applier.returncode == 0, said
    assert "starting Spark" not in said
    assert time.monotonic() - begun < 10


def test_another_jar_than_the_recorded_one_is_refused_and_not_kept(environment: dict[str, str], tmp_path: Path) -> None:
    jar = next((tmp_path / "maven").rglob("delta-spark*.jar"))
    jar.write_bytes(jar.read_bytes() + b"more")
    done = commands.ended(*FETCH, "--to", tmp_path / "to", env=environment)
    assert done.returncode == 2
    assert "different io.delta_delta-spark" in done.stderr
    assert list((tmp_path / "to").iterdir()) == []


def test_a_repository_without_the_jar_is_named_with_the_way_round(environment: dict[str, str], tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "maven" / "io" / "delta" / "delta-storage")
    done = commands.ended(*FETCH, "--to", tmp_path / "to", env=environment)
    assert done.returncode == 2
    assert "did not deliver" in done.stderr
    assert "sluice jars fetch --to DIR" in done.stderr


def test_jars_are_fetched_into_a_folder_with_a_bar_on_a_terminal(environment: dict[str, str], tmp_path: Path) -> None:
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "sluice", "jars", "fetch", "--to", str(tmp_path / "to")]
    process = subprocess.Popen(command, env={**environment, "TERM": "xterm"}, stdout=subprocess.PIPE, stderr=child)
    os.close(child)
    shown = _everything(lambda: os.read(parent, 65_536))
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, shown
    assert out.decode().strip() == str(tmp_path / "to")
    assert has_delta(tmp_path / "to")
    assert "fetching jars" in shown
    assert "MB" in shown
    again = commands.ended(*command, env={**environment, "JAVA_HOME": "/nowhere"})
    assert again.returncode == 0, f"what is there and right is fetched again: {again.stderr}"


def _everything(read: Callable[[], bytes]) -> str:
    shown = b""
    while True:
        try:
            more = read()
        except OSError:  # Linux says so when no process has the terminal any more
            return shown.decode(errors="replace")
        if not more:
            return shown.decode(errors="replace")
        shown += more

"""One applier for many pipelines whose ingests run elsewhere: `sluice apply --fleet`, as the chart runs it."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.fleets import FleetFolder, fresh_databases, until
from tests.support.sources import Database
from tools.local.guard import Guard
from tools.local.postgres import PostgresServer, free_port

pytestmark = pytest.mark.timeout(900)
_TOKEN = "apply-fleet-token"


class Pipelines(FleetFolder):
    """Configurations in one folder, an ingest for each, and the applier of all of them."""

    def __init__(self, root: Path, databases: dict[str, Database]) -> None:
        super().__init__(root, databases)
        (root / "token").write_text(_TOKEN)
        self.port = free_port()
        self.log = root / "applier.log"
        self._running: list[tuple[subprocess.Popen[bytes], Guard]] = []

    def _started(self, *words: str, log: Path, **variables: str) -> "subprocess.Popen[bytes]":
        plain = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
        with log.open("ab") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "sluice", *words],
                env={**plain, **variables},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        self._running.append((process, Guard(-process.pid, signal.SIGKILL)))
        return process

    def ingest(self, name: str) -> "subprocess.Popen[bytes]":
        config = str(self.folder / f"{name}.yaml")
        return self._started("run", "-c", config, log=self.root / f"{name}.log", SLUICE_TELEMETRY__LISTEN="127.0.0.1:0")

    def apply(self) -> None:
        """The applier never meets PostgreSQL: as in the chart, its connection string leads nowhere."""
        self.applier = self._started(
            "apply",
            "--fleet",
            str(self.folder),
            log=self.log,
            SLUICE_SOURCE__DSN="postgresql://",
            SLUICE_TELEMETRY__APPLY_LISTEN=f"127.0.0.1:{self.port}",
            SLUICE_TELEMETRY__TOKEN_PATH=str(self.root / "token"),
        )

    def get(self, path: str, *, token: str = _TOKEN) -> bytes:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}")
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: bytes = answer.read()
        return found

    def states(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = json.loads(self.get("/status"))["pipelines"]
        return found

    def until(self, claim: Callable[[], bool], what: str) -> None:
        until(claim, what, ended=self.applier.poll, tail=lambda: self.log.read_text(errors="replace")[-5000:])

    def end(self) -> None:
        for process, _ in self._running:
            process.terminate()
        for process, guard in self._running:
            process.wait(60)
            guard.dismiss()


@pytest.fixture(scope="module")
def pipelines(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipelines]:
    """Two pipelines, and a third whose file is not valid yet."""
    with fresh_databases(postgres, "east", "north", "west") as databases, ExitStack() as stack:
        made = Pipelines(tmp_path_factory.mktemp("fleet"), databases)
        stack.callback(made.end)
        for name in ("east", "north"):
            made.configure(name)
            made.ingest(name)
        made.configure("west", surce={})
        made.apply()
        yield made


def test_one_applier_applies_every_pipeline_of_the_folder_and_refuses_one_by_name(pipelines: Pipelines) -> None:
    pipelines.until(lambda: pipelines.is_equal("east") and pipelines.is_equal("north"), "two are in the lake")
    assert {name: one["state"] for name, one in pipelines.states().items()} == {"east": "running", "north": "running"}
    said = pipelines.log.read_text()
    assert "a configuration is refused" in said
    assert "west.yaml" in said


def test_its_endpoint_asks_for_the_token_and_each_series_names_its_pipeline(pipelines: Pipelines) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        pipelines.get("/metrics", token="")
    assert pipelines.get("/livez", token="")
    series = [line for line in pipelines.get("/metrics").decode().splitlines() if not line.startswith("#")]
    for name in ("east", "north"):
        assert any(f'pipeline="{name}"' in one for one in series)


def test_after_sighup_a_new_pipeline_joins_and_one_whose_file_is_refused_goes_on(pipelines: Pipelines) -> None:
    pipelines.configure("west")
    pipelines.ingest("west")
    (pipelines.folder / "east.yaml").write_text("version: 1\npipeline: east\nsurce: {}\n")
    pipelines.applier.send_signal(signal.SIGHUP)
    pipelines.until(lambda: pipelines.is_equal("west"), "the third is in the lake")
    pipelines.databases["east"].execute("INSERT INTO t VALUES (11)")
    pipelines.until(lambda: pipelines.is_equal("east"), "the first goes on")


def test_a_stop_lets_it_finish_and_ends_with_0(pipelines: Pipelines) -> None:
    pipelines.applier.send_signal(signal.SIGTERM)
    assert pipelines.applier.wait(120) == 0, pipelines.log.read_text()[-5000:]

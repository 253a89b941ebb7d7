"""The command line within the test's process, and a configuration without any server."""

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest
import structlog

from sluice.cli import cli, exits
from sluice.contract.entries import Opened, Table
from sluice.contract.table_state import State

CANARY = "canary-7f3a"


@dataclass(frozen=True)
class Ended:
    returncode: int
    stdout: str
    stderr: str


class Sluice(Protocol):
    def __call__(self, *arguments: str, cwd: Path | None = None, **environ: str) -> Ended: ...


@pytest.fixture
def sluice(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Sluice]:
    """The command line from its arguments to its exit code, in this process."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def run(*arguments: str, cwd: Path | None = None, **environ: str) -> Ended:
        with monkeypatch.context() as patched:
            for name in [name for name in os.environ if name.startswith("SLUICE_")]:
                patched.delenv(name)
            for name, value in environ.items():
                patched.setenv(name, value)
            patched.chdir(cwd or Path.cwd())
            capsys.readouterr()
            code = exits.execute(cli, arguments)
        seen = capsys.readouterr()
        return Ended(code, seen.out, seen.err)

    yield run
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    (tmp_path / "sluice.yaml").write_text(
        f"""\
version: 1
pipeline: shop
source: {{dsn: "postgresql://u:{CANARY}@127.0.0.1:1/d?connect_timeout=2"}}
spool: {{uri: "file://{tmp_path}/spool", options: {{aws_secret_access_key: {CANARY}}}}}
lake: {{uri: "file://{tmp_path}/lake"}}
apply: {{conf: {{spark.x: {CANARY}}}, driver_memory: 1GiB}}
tables: {{public.events: {{targets: [{{kind: changelog}}]}}}}
telemetry: {{listen: "127.0.0.1:0"}}
""",
        encoding="utf-8",
    )
    return tmp_path


def opened() -> Opened:
    return Opened(
        "7",
        1,
        "d",
        5,
        "sluice_shop",
        "sluice_shop",
        two_phase=False,
        origin="any",
        server_version=180000,
        start_lsn=100,
        instance="test",
    )


def table(table_id: str, name: str, state: str = "live") -> Table:
    return Table(table_id=table_id, schema_name="public", table_name=name, state=State(state), generation=1)

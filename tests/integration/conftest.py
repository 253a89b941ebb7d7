"""A pipeline for one test: a fresh database on the shared server, a store in a temporary folder; and its commands."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sluice import faults
from sluice.contract import resyncs
from tests.support.command_line import Sluice, command_line
from tests.support.ingesting import IngestPipeline, encoded_in
from tests.support.sources import Database
from tests.support.surfaces import Pipe
from tools.local.postgres import PostgresServer


@pytest.fixture
def pipeline(database: Database, tmp_path: Path) -> IngestPipeline:
    return IngestPipeline.local(database, tmp_path)


@pytest.fixture
def ascii_only(postgres: PostgresServer, tmp_path: Path) -> Iterator[IngestPipeline]:
    """Of a database that takes any bytes."""
    with encoded_in(postgres, tmp_path, "SQL_ASCII") as pipeline:
        yield pipeline


@pytest.fixture(autouse=True)
def nothing_is_armed_afterwards() -> Iterator[None]:
    yield
    faults.arm("")


@pytest.fixture
def read_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that must be read again does not rest before."""
    monkeypatch.setattr(resyncs, "REST", 0.0)
    monkeypatch.setattr(resyncs, "PAUSES_SECONDS", (0.0,))


@pytest.fixture
def environment(database: Database, tmp_path: Path) -> dict[str, str]:
    """Of commands for pipeline `shop`, in `tmp_path`, with a table that has a row."""
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text)", "INSERT INTO orders VALUES (1, 'row-value-canary')"
    )
    return Pipe(database, tmp_path).environment


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Sluice:
    """Any command, within this process."""
    return command_line(monkeypatch, capsys)


@pytest.fixture
def sluice(environment: dict[str, str], command: Sluice) -> Sluice:
    return partial(command, SLUICE_CONFIG=environment["SLUICE_CONFIG"])


@pytest.fixture
def running(environment: dict[str, str]) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-m", "sluice", "run"], env=environment, stderr=subprocess.PIPE, text=True
    )
    yield process
    if process.poll() is None:
        process.kill()
    process.wait()
    assert process.stderr is not None
    process.stderr.close()

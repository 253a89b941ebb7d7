"""A folder of pipelines, one for each database, each of which has a table `t` of numbers."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import TableNotFoundError

from tests.support.pipeline import QUICK_JAVA
from tests.support.sources import Database, fresh_database
from tools.local.guard import Guard
from tools.local.ports import free_port
from tools.local.postgres import PostgresServer

_SECONDS = 240.0
_TOKEN = "apply-fleet-token"


class FleetFolder:
    """Configurations below `root`, with a spool for all of them and a lake for each."""

    def __init__(self, root: Path, databases: dict[str, Database]) -> None:
        self.root, self.databases = root, databases
        self.folder = root / "pipelines"
        self.folder.mkdir()

    def configure(self, name: str, **more: object) -> None:
        """`more` replaces whole sections."""
        database = self.databases[name]
        settings: dict[str, Any] = {
            "version": 1,
            "pipeline": name,
            "source": source(database),
            "spool": {"uri": (self.root / "spool").as_uri(), "max_delay": "100ms"},
            "lake": {"uri": (self.root / "lake" / name).as_uri()},
            "apply": {"driver_memory": "1500MiB", "freshness": "500ms", "conf": QUICK_JAVA},
            "stop_timeout": "100s",
            **more,
        }
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(settings))

    def rows(self, name: str) -> list[int]:
        """In the lake, as another engine reads them."""
        return numbers_in(self.root / "lake" / name / "public" / "t")

    def is_equal(self, *names: str) -> bool:
        return all(
            self.rows(name) == [row[0] for row in self.databases[name].all("SELECT id FROM t ORDER BY id")]
            for name in names
        )


class RunningFleet(FleetFolder):
    """With processes that end with the test. `process` is the one that serves the folder, at `port`."""

    process: "subprocess.Popen[bytes]"

    def __init__(self, root: Path, databases: dict[str, Database], *, token: str = "") -> None:
        super().__init__(root, databases)
        self.port, self.token = free_port(), token
        self.log = root / "fleet.log"
        self._running: list[tuple[subprocess.Popen[bytes], Guard]] = []

    def started(self, *words: str, log: Path, **variables: str) -> "subprocess.Popen[bytes]":
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

    def get(self, path: str, *, token: str | None = None) -> bytes:
        given = self.token if token is None else token
        headers = {"Authorization": f"Bearer {given}"} if given else {}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: bytes = answer.read()
        return found

    def until(self, claim: Callable[[], bool], what: str, *, seconds: float = _SECONDS) -> None:
        """Waits for a claim about the process, which may not listen yet; fails at once when it has ended."""
        deadline = time.monotonic() + seconds
        while True:
            with suppress(urllib.error.URLError):
                if claim():
                    return
            ended = self.process.poll()
            assert ended is None, f"the process ended with {ended} before: {what}\n{self.tail()}"
            assert time.monotonic() < deadline, f"not in time: {what}\n{self.tail()}"
            time.sleep(0.3)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-5000:]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(150)

    def end(self) -> None:
        for process, _ in self._running:
            process.terminate()
        for process, guard in self._running:
            process.wait(120)
            guard.dismiss()


class AppliedFleet(RunningFleet):
    """Configurations in one folder, an ingest for each, and the applier of all of them."""

    def __init__(self, root: Path, databases: dict[str, Database]) -> None:
        super().__init__(root, databases, token=_TOKEN)
        (root / "token").write_text(_TOKEN)

    def ingest(self, name: str, *, config: Path | None = None) -> "subprocess.Popen[bytes]":
        given = str(config or self.folder / f"{name}.yaml")
        return self.started("run", "-c", given, log=self.root / f"{name}.log", SLUICE_TELEMETRY__LISTEN="127.0.0.1:0")

    def apply(self) -> None:
        """The applier never meets PostgreSQL: as in the chart, its connection string leads nowhere."""
        self.process = self.started(
            "apply",
            "--fleet",
            str(self.folder),
            log=self.log,
            SLUICE_SOURCE__DSN="postgresql://",
            SLUICE_TELEMETRY__APPLY_LISTEN=f"127.0.0.1:{self.port}",
            SLUICE_TELEMETRY__TOKEN_PATH=str(self.root / "token"),
        )

    def states(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = json.loads(self.get("/status"))["pipelines"]
        return found


def numbers_in(table: Path) -> list[int]:
    """The column `id` of a lake table, sorted; nothing while there is no such table."""
    try:
        stored = DeltaTable(table.as_uri())
    except TableNotFoundError:
        return []
    found = QueryBuilder().register("t", stored).execute("SELECT id FROM t ORDER BY id").read_all()
    return [int(value) for value in found.column(0).to_pylist()]


def below(pid: int) -> dict[int, int]:
    """When each began of the processes that this one has started, and that those have started."""
    parents, began = dict[int, int](), dict[int, int]()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            facts = (path / "stat").read_text().rpartition(")")[2].split()
            parents[int(path.name)], began[int(path.name)] = int(facts[1]), int(facts[19])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return {one: began[one] for one in found - {pid}}


def line_of(pid: int) -> str:
    """The command line of a process, empty for one that is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def name_of(pid: int) -> str:
    """What `ps -o comm` shows for a process, empty for one that is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def jvm_below(pid: int) -> int:
    """The process of Java that a process, or one that it started, has started: the oldest one, which starts others."""
    began = {one: when for one, when in below(pid).items() if line_of(one).split(" ")[0].endswith("java")}
    return min(began, key=lambda one: began[one])


def source(database: Database) -> dict[str, Any]:
    return {
        "dsn": database.dsn,
        "slot": database.slot,
        "publication": database.publication,
        "tables": ["public.*"],
    }


@contextmanager
def fresh_databases(postgres: PostgresServer, *names: str) -> Iterator[dict[str, Database]]:
    """Each with the table and ten rows."""
    with ExitStack() as stack:
        databases = {name: stack.enter_context(fresh_database(postgres)) for name in names}
        for database in databases.values():
            database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 10)")
        yield databases

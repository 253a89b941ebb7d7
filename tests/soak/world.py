"""The pipeline of a long run: a server of its own, a load that outlives every restart, ingest and the applier as
processes, and when each of them was ready after a start.
"""

import contextlib
import os
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.chaos import writer
from tests.chaos.load import Load
from tests.soak import busy_client
from tests.support.answers import is_well
from tests.support.compare import assert_equal
from tests.support.pipeline import complete_through, wait_until
from tests.support.sources import Database, fresh_database
from tests.support.workload import Workload
from tools.local.ports import free_port
from tools.local.postgres import PostgresServer, StopMode, temporary_server
from tools.local.sluice import Pipeline, SluiceProcess

ROOT = Path(__file__).parents[2]
NAME = "t"
COMMANDS = {"ingest": "run", "applier": "apply"}
_READY_SECONDS = 240.0
_END_SECONDS = 600.0
_PAUSES = (0.05, 0.1, 0.2)


@dataclass
class World:
    server: PostgresServer
    database: Database
    pipeline: Pipeline
    workload: Workload
    running: dict[str, SluiceProcess] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    """When each process that runs was started, by the monotonic clock."""

    def start(self, name: str) -> float:
        """Starts ingest or the applier; seconds until it says that it is ready."""
        began = self.started[name] = time.monotonic()
        program = [sys.executable, "-m", "tests.soak.short_log_retention"]
        command = [*program, COMMANDS[name], "-c", str(self.pipeline.config)]
        log = self.pipeline.directory / f"{COMMANDS[name]}.log"
        process = self.running[name] = SluiceProcess(command, log=log, environment=_environment())
        telemetry = yaml.safe_load(self.pipeline.config.read_text())["telemetry"]
        url = f"http://{telemetry['listen' if name == 'ingest' else 'apply_listen']}/readyz"
        wait_until(lambda: is_well(url), what=f"{name} is ready", processes=(process,), timeout=_READY_SECONDS)
        return time.monotonic() - began

    def end(self, name: str, *, kill: bool) -> None:
        process = self.running.pop(name)
        assert process.status is None, f"{name} ended by itself with {process.status}:\n{process.log_tail(40)}"
        if kill:
            process.kill()
        else:
            status = process.stop()
            assert status == 0, f"{name} ended with {status} when it was asked to:\n{process.log_tail(40)}"

    def restart_server(self, mode: StopMode) -> None:
        self.server.restart(mode)
        self.database.end_prepared(older_than_seconds=2.0)

    def load(self, seed: int) -> Load:
        choice = random.Random(seed)
        return Load(self.workload, self.database, choice, two_phase=True, pauses=_PAUSES, columns=0.0)

    def assert_equal(self) -> list[str]:
        """Everything committed by now reaches the lake, and every table equals its source, for another engine than
        Spark. The names of the tables.
        """
        self.workload.reconnect()
        processes, names = tuple(self.running.values()), self.database.published()
        wait_until(self._all_live, what="all tables are live", processes=processes, timeout=_END_SECONDS)
        position = self.workload.position()
        wait_until(
            lambda: complete_through(self.pipeline) > position,
            what="the lake is complete",
            processes=processes,
            timeout=_END_SECONDS,
        )
        assert_equal(self.database, names, lake_uri=self.pipeline.lake_uri)
        return names

    def _all_live(self) -> bool:
        states = {table["state"] for table in self.pipeline.tables()}
        return bool(states) and states <= {"live", "detached"}


@contextlib.contextmanager
def world(folder: Path, *, seed: int) -> Iterator[World]:
    """Tables with rows, and a pipeline of which nothing runs yet."""
    with (
        temporary_server() as server,
        fresh_database(server) as database,
        Workload(database.dsn, seed=seed, truncates=False) as workload,
    ):
        database.execute(
            f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'",
            *writer.CREATE,
            *busy_client.CREATE,
        )
        workload.create()
        database.execute(f"CREATE PUBLICATION {database.publication} FOR TABLES IN SCHEMA public")
        settings: dict[str, dict[str, Any]] = {
            "source": {"slot": database.slot, "publication": database.publication, "two_phase": True},
            "spool": {"max_delay": "200ms", "transaction_memory": "1MiB", "retention": "30s"},
            "apply": {"spark_master": "local[2]", "driver_memory": "1GiB", "maintenance_share": 0.2},
            "telemetry": {"apply_listen": f"127.0.0.1:{free_port()}", "log_format": "json"},
        }
        created = World(server, database, Pipeline(folder, name=NAME, dsn=database.dsn, settings=settings), workload)
        try:
            yield created
        finally:
            for process in created.running.values():
                process.kill()


def _environment() -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    return {**ours, "PYTHONPATH": str(ROOT)}

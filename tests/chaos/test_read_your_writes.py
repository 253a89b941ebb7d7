"""Who waits for the position of a write reads it: never what was there before, in whichever table and by whichever
engine, while ingest, applier and server are killed, tables are resynced and files are removed.

LOOPS=100000 in the environment says how many writes are waited for and read.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sluice_lake import Lake
from tests.chaos.sessions import TABLES, Place, running
from tests.e2e.readers import FAST, newest_of
from tests.support.extent import slow
from tests.support.pipeline import wait_until
from tools.local.ports import free_port
from tools.local.postgres import PostgresServer, temporary_server
from tools.local.sluice import Pipeline, SluiceProcess

LOOPS = int(os.environ.get("LOOPS") or 100_000)
SESSIONS = int(os.environ.get("SESSIONS") or 300)
"""Of each reader, side by side."""
FAULTS_LATER_SECONDS = (3.0, 20.0)
"""After a new boundary, between two faults."""
BOUNDARY_SECONDS = 500.0

pytestmark = [pytest.mark.timeout(3600 if LOOPS <= 20_000 else 6 * 3600), slow]


@dataclass
class _Pipeline:
    """Ingest and applier, each in a process of its own."""

    server: PostgresServer
    pipeline: Pipeline
    processes: dict[str, SluiceProcess] = field(default_factory=dict)

    def start(self) -> None:
        for command in ("run", "apply"):
            process = self.processes.get(command)
            if process is None or process.status is not None:
                self.processes[command] = self.pipeline.start(command)

    def kill(self, *commands: str) -> None:
        for command in commands:
            self.processes[command].kill()

    def stop_gently(self, command: str) -> None:
        """Its status says no more than whether the windows under way ended in time."""
        os.kill(self.processes[command].pid, signal.SIGTERM)
        self.processes[command].wait(BOUNDARY_SECONDS)

    def crash_the_server(self) -> None:
        self.server.crash()
        self.server.start()

    def resync(self, table: str) -> None:
        asked = self.pipeline.run("resync", f"public.{table}")
        assert asked.returncode == 0, asked.stderr

    def faults(self, choice: random.Random) -> dict[str, Callable[[], None]]:
        return {
            "ingest killed": lambda: self.kill("run"),
            "applier killed": lambda: self.kill("apply"),
            "both killed": lambda: self.kill("run", "apply"),
            "applier stopped": lambda: self.stop_gently("apply"),
            "server killed": self.crash_the_server,
            "table resynced": lambda: self.resync(choice.choice(TABLES)),
        }


def test_no_write_that_was_waited_for_is_missing_from_what_is_read_under_chaos(tmp_path: Path) -> None:
    choice, port, made = random.Random(os.environ.get("SEED")), free_port(), Counter[str]()
    settings = {
        **FAST,
        "source": {"tables": ["public.*"]},
        "lake": {"log_retention": "10m", "vacuum_after": "1h", "boundary_retention": "2m"},
        "telemetry": {"apply_listen": f"127.0.0.1:{port}"},
    }
    with temporary_server() as server:
        with server.superuser() as connection:
            for table in TABLES:
                create = f"CREATE TABLE {table} (id int PRIMARY KEY, value int NOT NULL, padding text)"
                connection.execute(create.encode())
        pipeline = Pipeline(tmp_path, name="chaos", dsn=server.dsn(), settings=settings)
        (tmp_path / "lake").mkdir()
        lake, world = Lake(pipeline.lake_uri), _Pipeline(server, pipeline)
        signalled = pipeline.run("setup", "--ddl-signal", "--apply")
        assert signalled.returncode == 0, signalled.stderr
        world.start()
        try:
            _wait_for_a_boundary(lake, world, after=0)
            began = time.monotonic()
            with running(Place(server.dsn(), pipeline.lake_uri, port), sessions=SESSIONS) as sessions:
                while sessions.loops < LOOPS:
                    until = time.monotonic() + choice.uniform(*FAULTS_LATER_SECONDS)
                    while sessions.loops < LOOPS and time.monotonic() < until:
                        sessions.look(seconds=0.5)
                    newest = lake.newest().number
                    fault, strike = choice.choice(list(world.faults(choice).items()))
                    strike()
                    made[fault] += 1
                    world.start()
                    # With the loops of those who wait: a fault is over once there is a boundary behind it.
                    _wait_for_a_boundary(lake, world, after=newest, look=lambda: sessions.look(seconds=0.1))
                seen = sessions.end()
        finally:
            for process in world.processes.values():
                process.stop()
    loops = sum(one.loops for one in seen.values())
    boundaries = set[int]().union(*(one.boundaries for one in seen.values()))
    print(
        f"{loops} loops at {len(boundaries)} boundaries in {time.monotonic() - began:.0f} s, "
        f"{sum(one.left_out for one in seen.values())} reads without a table in its snapshot, "
        f"{sum(one.by_endpoint for one in seen.values())} waits by the endpoint; {dict(made)}"
    )
    assert loops >= LOOPS
    assert made
    assert all(one.loops and not one.stale for one in seen.values()), seen


def _wait_for_a_boundary(lake: Lake, world: _Pipeline, *, after: int, look: Callable[[], None] = lambda: None) -> None:
    def later() -> bool:
        look()
        newest = newest_of(lake)
        return newest is not None and newest.number > after and len(newest.tables) == len(TABLES)

    processes = tuple(world.processes.values())
    wait_until(later, what="another boundary", processes=processes, timeout=BOUNDARY_SECONDS)

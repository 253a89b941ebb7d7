"""Makes the incidents happen to a real pipeline and records what it says of itself meanwhile."""

import contextlib
import os
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from tests.ops.incidents.recording import FOLDER, STEP_SECONDS, Phase, read_by_rules, write
from tests.support.pipeline import wait_until
from tools.local.ports import free_port
from tools.local.postgres import PostgresServer, temporary_server
from tools.local.s3 import S3Server, running_s3
from tools.local.sluice import Pipeline, SluiceProcess

WAL_LIMIT_MB = 256


@dataclass
class Scene:
    server: PostgresServer
    store: S3Server
    pipeline: Pipeline
    ports: dict[str, int]
    ingest: SluiceProcess | None = None
    applier: SluiceProcess | None = None
    metrics: frozenset[str] = field(default_factory=read_by_rules)

    def record(self, seconds: float, *, work: Callable[[psycopg.Connection], None] | None = None) -> Phase:
        """What is scraped for `seconds`, while somebody works at the source."""
        phase, end = Phase(), time.monotonic() + seconds
        with self.server.superuser() as admin:
            while time.monotonic() < end:
                began = time.monotonic()
                (work or touch)(admin)
                phase.add(self._scraped(), at=time.time(), metrics=self.metrics)
                time.sleep(max(0.0, STEP_SECONDS - (time.monotonic() - began)))
        return phase

    def until(self, condition: Callable[[], bool], *, what: str) -> None:
        wait_until(condition, what=what, timeout=400)

    def live(self) -> bool:
        tables = self.pipeline.tables()
        return bool(tables) and {table["state"] for table in tables} == {"live"}

    def start(self) -> None:
        self.ingest = self.ingest or self.pipeline.start("run")
        self.applier = self.applier or self.pipeline.start("apply")

    def kill(self, process: SluiceProcess | None) -> None:
        assert process is not None
        process.kill()

    def _scraped(self) -> dict[str, str]:
        found = {}
        for name, port in self.ports.items():
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as one,
            ):
                found[name] = one.read().decode()
        return found


def touch(admin: psycopg.Connection) -> None:
    """A little of everything that is usual."""
    admin.execute("INSERT INTO orders (note) SELECT 'new' FROM generate_series(1, 20)")
    admin.execute("UPDATE customers SET name = name || '.' WHERE id = 1")


def fresh_install(scene: Scene) -> dict[str, Phase]:
    scene.start()
    first = scene.record(150)
    scene.until(scene.live, what="the tables are live")
    scene.record(60)
    return {"incident": first}


def dead_applier(scene: Scene) -> dict[str, Phase]:
    scene.kill(scene.applier)
    scene.applier = None
    incident = scene.record(240)
    scene.start()
    scene.until(scene.live, what="the applier is back")
    scene.record(60)
    return {"incident": incident}


def dead_ingest(scene: Scene) -> dict[str, Phase]:
    scene.kill(scene.ingest)
    scene.ingest = None
    incident = scene.record(60)
    scene.start()
    scene.record(90)
    return {"incident": incident}


def store_away(scene: Scene) -> dict[str, Phase]:
    assert scene.store.pid is not None
    os.kill(scene.store.pid, signal.SIGSTOP)
    try:
        incident = scene.record(300)
    finally:
        os.kill(scene.store.pid, signal.SIGCONT)
    scene.record(120)
    return {"incident": incident}


def slot_filling(scene: Scene) -> dict[str, Phase]:
    """An open transaction holds restart_lsn while others write."""

    def write_much(admin: psycopg.Connection) -> None:
        touch(admin)
        admin.execute("INSERT INTO noise SELECT repeat('x', 1000) FROM generate_series(1, 12000)")

    with scene.server.superuser() as forgotten, forgotten.transaction():
        forgotten.execute("INSERT INTO orders (note) VALUES ('open')")
        incident = scene.record(240, work=write_much)
    with scene.server.superuser() as admin:
        admin.execute("CHECKPOINT")
    scene.record(60)
    return {"incident": incident}


def stale_tables(scene: Scene) -> dict[str, Phase]:
    found = {}
    for phase, statements in {
        "incident": ("ALTER TABLE orders ADD COLUMN added int", "INSERT INTO orders (note) VALUES ('one column more')"),
        "second": ("ALTER TABLE customers ADD COLUMN added int", "UPDATE customers SET added = 1 WHERE id = 1"),
    }.items():
        with scene.server.superuser() as admin:
            for statement in statements:
                admin.execute(statement.encode())
        found[phase] = scene.record(90)
    for table in ("public.orders", "public.customers"):
        asked = scene.pipeline.run("resync", table)
        assert asked.returncode == 0, asked.stderr
    scene.until(scene.live, what="the tables are live again")
    scene.record(30)
    return found


INCIDENTS = (fresh_install, dead_applier, dead_ingest, store_away, slot_filling, stale_tables)


@contextlib.contextmanager
def scene(directory: Path) -> Iterator[Scene]:
    ports = {"ingest": free_port(), "applier": free_port()}
    settings = {"max_slot_wal_keep_size": f"{WAL_LIMIT_MB}MB", "max_wal_size": "64MB", "min_wal_size": "32MB"}
    with temporary_server(settings=settings) as server, running_s3(buckets=("sluice",)) as store:
        with server.superuser() as admin:
            admin.execute("CREATE TABLE orders (id serial PRIMARY KEY, note text)")
            admin.execute("CREATE TABLE customers (id int PRIMARY KEY, name text)")
            admin.execute("CREATE TABLE noise (body text)")
            admin.execute("INSERT INTO customers SELECT i, 'name' FROM generate_series(1, 2000) i")
        pipeline = Pipeline(
            directory,
            name="shop",
            dsn=server.dsn(),
            spool_uri="s3://sluice/spool",
            lake_uri="s3://sluice/lake",
            settings={
                "source": {"tables": ["public.orders", "public.customers"]},
                "spool": {"options": store.options()},
                "lake": {"options": store.options(), "contract": "stop"},
                "apply": {"spark_master": "local[2]", "driver_memory": "1GiB"},
                "telemetry": {
                    "listen": f"127.0.0.1:{ports['ingest']}",
                    "apply_listen": f"127.0.0.1:{ports['applier']}",
                },
            },
        )
        made = Scene(server, store, pipeline, ports)
        try:
            yield made
        finally:
            for process in (made.applier, made.ingest):
                if process is not None:
                    process.stop()


def main(names: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="sluice-incidents-") as folder, scene(Path(folder)) as made:
        if names and "fresh_install" not in names:
            made.start()
            made.until(made.live, what="the tables are live")
            made.record(60)
        for incident in INCIDENTS:
            if names and incident.__name__ not in names:
                continue
            before = {} if incident is fresh_install else {"before": made.record(60)}
            phases = {**before, **incident(made), "after": made.record(60)}
            write(FOLDER / f"{incident.__name__}.txt", phases)
            print(f"recorded {incident.__name__}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

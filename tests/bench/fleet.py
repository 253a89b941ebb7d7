"""P21: many databases of one server, each a pipeline of one `sluice fleet`: what a pipeline costs, and how fresh its
lake is.
"""

import os
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psycopg

from sluice.store.opening import open_store
from tests.bench.contest import console, show_table
from tests.bench.freshness import cpu_seconds, entries_of, following, live, percentile, two_cores
from tests.support.fleets import RunningFleet
from tests.support.sources import Database
from tools.local.lake_log import Tail
from tools.local.postgres import PostgresServer, temporary_server

DATABASES = int(os.environ.get("P21_DATABASES", "10"))
INTERVAL = os.environ.get("P21_INTERVAL", "")
"""spool.min_interval, spool.max_delay and apply.freshness of all pipelines; the defaults when it is empty."""
SECONDS = float(os.environ.get("P21_SECONDS", "120"))
ROWS = 10
"""In one transaction a second of each database."""
WRITERS = 8
_LIVE_SECONDS, _CAUGHT_UP_SECONDS = 900.0, 300.0
_SETTINGS = {"max_connections": "400", "max_replication_slots": "200", "max_wal_senders": "200"}


class Load:
    """Writes into databases in turn, each once a second."""

    def __init__(self, dsns: dict[str, str]) -> None:
        self._dsns = dsns
        self.committed: dict[str, dict[int, float]] = {name: {} for name in dsns}

    def run(self, seconds: float) -> None:
        names = sorted(self._dsns)
        threads = [
            threading.Thread(target=self._write, args=(names[one::WRITERS], seconds))
            for one in range(min(WRITERS, len(names)))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _write(self, names: list[str], seconds: float) -> None:
        began = time.monotonic()
        with ExitStack() as stack:
            connections = {
                name: stack.enter_context(psycopg.connect(self._dsns[name], autocommit=True)) for name in names
            }
            for second in range(int(seconds)):
                for number, name in enumerate(names):
                    time.sleep(max(0.0, began + second + number / len(names) - time.monotonic()))
                    row = (
                        connections[name]
                        .execute(
                            "WITH n AS (INSERT INTO t SELECT i, 'x' FROM generate_series(%s::int, %s) i RETURNING id) "
                            "SELECT pg_current_xact_id()::text FROM n LIMIT 1",
                            (1_000 + second * ROWS, 1_000 + second * ROWS + ROWS - 1),
                        )
                        .fetchone()
                    )
                    assert row is not None
                    self.committed[name][int(row[0]) & 0xFFFFFFFF] = time.time()


def p21(_rounds: int) -> dict[str, float | None]:
    """P21_DATABASES databases at 10 changes/s in one fleet, for P21_SECONDS: CPU, memory, freshness."""
    with two_cores(), tempfile.TemporaryDirectory() as directory, temporary_server(settings=_SETTINGS) as server:
        return _measured(server, Path(directory))


def _measured(server: PostgresServer, root: Path) -> dict[str, float | None]:
    names = [f"db{number:03}" for number in range(DATABASES)]
    databases = {name: Database(server, name, slot=f"sluice_{name}", publication=f"sluice_{name}") for name in names}
    fleet = RunningFleet(root, databases)
    for name in names:
        _prepare(fleet, name)
    began = time.monotonic()
    fleet.process = fleet.started("fleet", str(fleet.folder), "--listen", f"127.0.0.1:{fleet.port}", log=fleet.log)
    tails = {name: Tail(root / "lake" / name / "public" / "t") for name in names}
    stores = {name: open_store((root / "spool").as_uri(), prefix=f"{name}/", options={}) for name in names}
    load = Load({name: server.dsn(dbname=name) for name in names})
    try:
        with following(list(tails.values())):
            fleet.until(lambda: all(live(stores[name]) == 1 for name in names), "they are live", seconds=_LIVE_SECONDS)
            started = time.monotonic() - began
            console.print(f"{len(names)} pipelines are live {started:.0f} s after the start")
            load.run(10.0)  # what is compiled for the first time
            for committed in load.committed.values():
                committed.clear()
            for database in databases.values():
                database.execute("DELETE FROM t WHERE id >= 1000")  # the second load has the same keys
            # The first windows make the tables. A measurement beside them would be one of the start.
            fleet.until(lambda: fleet.is_equal(*names), "the lakes are equal", seconds=_LIVE_SECONDS)
            console.print(f"their lakes are equal {time.monotonic() - began:.0f} s after the start")
            cpu, at = cpu_seconds(fleet.process.pid), time.monotonic()
            load.run(SECONDS)
            cores = (cpu_seconds(fleet.process.pid) - cpu) / (time.monotonic() - at)
            memory = _memory(fleet.process.pid)
            fleet.until(lambda: fleet.is_equal(*names), "the lakes are equal", seconds=_CAUGHT_UP_SECONDS)
    finally:
        code = fleet.stop()
        fleet.end()
    seconds: list[float] = []
    for name in names:
        entries = entries_of(stores[name], set(load.committed[name]))
        seconds += [tails[name].first_through(entries[xid]).at - at for xid, at in load.committed[name].items()]
    figures: dict[str, float | None] = {
        "started_s": started,
        "cores": cores,
        "cores_each": cores / len(names),
        "ingest_mb": memory["ingest"] / len(names),
        "applier_mb": memory["applier"],
        "p50_s": percentile(seconds, 0.5),
        "p99_s": percentile(seconds, 0.99),
        "exit": float(code),
    }
    shown = {
        "cores": f"{cores:.2f}",
        "cores each": f"{cores / len(names):.3f}",
        "ingest MB each": f"{memory['ingest'] / len(names):.0f}",
        "applier MB": f"{memory['applier']:.0f}",
        "MB in all": f"{sum(memory.values()):.0f}",
        "p50 s": f"{percentile(seconds, 0.5):.2f}",
        "p99 s": f"{percentile(seconds, 0.99):.2f}",
    }
    title = f"P21: {len(names)} pipelines, 10 changes/s each, {SECONDS:.0f} s"
    show_table(title, tuple(shown), [tuple(shown.values())])
    return figures


def _prepare(fleet: RunningFleet, name: str) -> None:
    database = fleet.databases[name]
    with database.server.superuser() as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT i, 'x' FROM generate_series(1, 100) i"
    )
    paces = {"min_interval": INTERVAL, "max_delay": INTERVAL} if INTERVAL else {}
    spool = {"uri": (fleet.root / "spool").as_uri(), **paces}
    fleet.configure(name, spool=spool, apply={"freshness": INTERVAL} if INTERVAL else {})


def _memory(root: int) -> dict[str, float]:
    """Megabytes that processes hold for themselves and their part of what they share, by what they are."""
    found = dict.fromkeys(("fleet", "ingest", "applier"), 0.0)
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            command = (path / "cmdline").read_bytes().decode(errors="replace")
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            grand = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
            if root not in (int(path.name), parent, grand):  # an ingest is a child of the process that forks
                continue
            rollup = (path / "smaps_rollup").read_text()
            held = int(next(line for line in rollup.splitlines() if line.startswith("Pss:")).split()[1]) / 1024
            kind = "ingest" if "fleet_ingest" in command else "fleet" if int(path.name) == root else "applier"
            found[kind] += held
    return found

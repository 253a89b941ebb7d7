"""P21: many databases of one server, each a pipeline of one `sluice fleet`: what a pipeline costs, and how fresh its
lake is.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psycopg
import yaml
from deltalake import DeltaTable, QueryBuilder
from rich.table import Table as Printed

from sluice.store.opening import open_store
from tests.bench.contest import console
from tests.bench.freshness import cpu_seconds, entries_of, following, live, percentile, two_cores
from tests.bench.tail import Tail
from tools.local.guard import Guard
from tools.local.ports import free_port
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
    folder = root / "pipelines"
    folder.mkdir()
    for name in names:
        _prepare(server, root, folder, name)
    began = time.monotonic()
    process, log = _start(root, folder)
    tails = {name: Tail(root / "lake" / name / "public" / "t") for name in names}
    stores = {name: open_store((root / "spool").as_uri(), prefix=f"{name}/", options={}) for name in names}
    load = Load({name: server.dsn(dbname=name) for name in names})
    guard = Guard(-process.pid, signal.SIGKILL)
    try:
        with following(list(tails.values())):
            _until(lambda: all(live(stores[name]) == 1 for name in names), process, log, _LIVE_SECONDS)
            started = time.monotonic() - began
            console.print(f"{len(names)} pipelines are live {started:.0f} s after the start")
            load.run(10.0)  # what is compiled for the first time
            for committed in load.committed.values():
                committed.clear()
            _again(server, names)
            # The first windows make the tables. A measurement beside them would be one of the start.
            _until(lambda: all(_is_equal(server, root, name) for name in names), process, log, _LIVE_SECONDS)
            console.print(f"their lakes are equal {time.monotonic() - began:.0f} s after the start")
            cpu, at = cpu_seconds(process.pid), time.monotonic()
            load.run(SECONDS)
            cores = (cpu_seconds(process.pid) - cpu) / (time.monotonic() - at)
            memory = _memory(process.pid)
            _until(lambda: all(_is_equal(server, root, name) for name in names), process, log, _CAUGHT_UP_SECONDS)
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(120)
        guard.dismiss()
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
    table = Printed(title=f"P21: {len(names)} pipelines, 10 changes/s each, {SECONDS:.0f} s")
    for heading in ("cores", "cores each", "ingest MB each", "applier MB", "MB in all", "p50 s", "p99 s"):
        table.add_column(heading, justify="right")
    total = memory["ingest"] + memory["applier"] + memory["fleet"]
    table.add_row(
        f"{cores:.2f}",
        f"{cores / len(names):.3f}",
        f"{memory['ingest'] / len(names):.0f}",
        f"{memory['applier']:.0f}",
        f"{total:.0f}",
        f"{percentile(seconds, 0.5):.2f}",
        f"{percentile(seconds, 0.99):.2f}",
    )
    console.print(table)
    return figures


def _prepare(server: PostgresServer, root: Path, folder: Path, name: str) -> None:
    with server.superuser() as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
    with server.superuser(name) as connection:
        connection.execute(b"CREATE TABLE t (id int PRIMARY KEY, v text)")
        connection.execute(b"INSERT INTO t SELECT i, 'x' FROM generate_series(1, 100) i")
    settings: dict[str, Any] = {
        "version": 1,
        "pipeline": name,
        "source": {"dsn": server.dsn(dbname=name), "tables": ["public.*"]},
        "spool": {"uri": (root / "spool").as_uri()},
        "lake": {"uri": (root / "lake" / name).as_uri()},
    }
    if INTERVAL:
        settings["spool"] |= {"min_interval": INTERVAL, "max_delay": INTERVAL}
        settings["apply"] = {"freshness": INTERVAL}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(settings))


def _start(root: Path, folder: Path) -> tuple["subprocess.Popen[bytes]", Path]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    log = root / "fleet.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "sluice", "fleet", str(folder), "--listen", f"127.0.0.1:{free_port()}"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    return process, log


def _again(server: PostgresServer, names: list[str]) -> None:
    """The rows of the first load are taken away, so that the second has their keys."""
    for name in names:
        with server.superuser(name) as connection:
            connection.execute(b"DELETE FROM t WHERE id >= 1000")


def _is_equal(server: PostgresServer, root: Path, name: str) -> bool:
    query = "SELECT count(*) AS n, sum(id) AS s FROM {}"
    with server.superuser(name) as connection:
        wanted = connection.execute(query.format("t").encode()).fetchone() or ()
    lake = QueryBuilder().register("lake", DeltaTable(root / "lake" / name / "public" / "t"))
    found = lake.execute(query.format("lake")).read_all()
    return [int(value) for value in wanted] == [column[0].as_py() for column in found.columns]


def _until(claim: Callable[[], bool], process: "subprocess.Popen[bytes]", log: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"not within {seconds:.0f} s\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(1.0)


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

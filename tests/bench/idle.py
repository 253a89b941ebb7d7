"""P18 and P23: what a quiet pipeline gives and costs. P18 is the time from a single commit, with nothing else going
on, to its visibility in the lake; P23 the requests to an S3 server in an hour, idle and busy.
"""

import os
import re
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table as Printed

from sluice.contract import keys
from sluice.store.opening import open_store
from tests.bench.contest import console
from tests.bench.freshness import entries_of, following, live, percentile, two_cores, until
from tests.bench.tail import Tail
from tools.local.postgres import PostgresServer, free_port, temporary_server
from tools.local.s3 import running_s3
from tools.local.sluice import Pipeline

COMMITS = int(os.environ.get("P18_COMMITS", "100"))
PAUSE_SECONDS = 2.7
"""Between two commits: more than `apply.freshness`, and no multiple of the rhythms of ingest and applier."""
SECONDS = float(os.environ.get("P23_SECONDS", "120"))
BUSY_PAUSE_SECONDS = 0.01
SETTLED_SECONDS = 20.0
LIVE_SECONDS = 300.0
BUCKET = "bench"
PARTIES = ("ingest", "applier")
WRITES = ("create", "put", "list")
DOLLARS = {"write": 5e-6, "read": 0.4e-6}
"""What a request of S3's standard class costs in most of its regions; deletes are free."""
_REQUESTS = re.compile(r'sluice_object_store_requests_total\{.*operation="(\w+)".*\} (\S+)')


def p18(_rounds: int) -> dict[str, float | None]:
    """A single commit on an idle pipeline, from the commit to its visibility in the lake."""
    with two_cores(), tempfile.TemporaryDirectory() as directory, temporary_server() as server:
        pipeline = _prepared(server, directory)
        tail = Tail(pipeline.directory / "lake" / keys.lake_path("public", "t"))
        store = open_store(pipeline.spool_uri, prefix=f"{pipeline.name}/", options={})
        committed: dict[int, float] = {}
        with pipeline.start("up") as process, following([tail]):
            until(lambda: live(store) == 1, process, LIVE_SECONDS, "the table is in the lake")
            time.sleep(SETTLED_SECONDS)
            with server.superuser() as connection:
                for number in range(COMMITS):
                    row = connection.execute(
                        b"INSERT INTO t VALUES (%s, 'x') RETURNING pg_current_xact_id()::text", (1_000 + number,)
                    ).fetchone()
                    assert row is not None
                    committed[int(row[0]) & 0xFFFFFFFF] = time.time()
                    time.sleep(PAUSE_SECONDS)
            time.sleep(SETTLED_SECONDS)
        entries = entries_of(store, set(committed))
    seconds = [tail.first_through(entries[xid]).at - at for xid, at in committed.items()]
    figures: dict[str, float | None] = {f"p{share}_s": percentile(seconds, share / 100) for share in (50, 99)}
    table = Printed(title=f"P18: seconds from a single commit to visibility, {COMMITS} commits")
    for heading in ("p50", "p99", "most"):
        table.add_column(heading, justify="right")
    table.add_row(*(f"{value:.2f}" for value in (*figures.values(), max(seconds)) if value is not None))
    console.print(table)
    return figures


def p23(_rounds: int) -> dict[str, float | None]:
    """Requests to an S3 server in an hour and their price in a month, idle and with 80 commits a second."""
    with tempfile.TemporaryDirectory() as directory, temporary_server() as server, running_s3(buckets=(BUCKET,)) as s3:
        ports = free_port(), free_port()
        pipeline = _prepared(
            server,
            directory,
            spool_uri=f"s3://{BUCKET}/spool",
            spool={"options": s3.options()},
            telemetry={"listen": f"127.0.0.1:{ports[0]}", "apply_listen": f"127.0.0.1:{ports[1]}"},
        )
        store = open_store(pipeline.spool_uri, prefix=f"{pipeline.name}/", options=s3.options())
        with pipeline.start("up") as process:
            until(lambda: live(store) == 1, process, LIVE_SECONDS, "the table is in the lake")
            time.sleep(SETTLED_SECONDS)
            idle = _counted(ports, lambda: time.sleep(SECONDS))
            busy = _counted(ports, lambda: _write(server))
    table = Printed(title=f"P23: requests to the object store in an hour, over {SECONDS:.0f} s each")
    for heading in ("load", "process", "create", "put", "list", "get", "size", "$ a month"):
        table.add_column(heading, justify="left" if heading in ("load", "process") else "right")
    figures: dict[str, float | None] = {}
    for load, counts in (("idle", idle), ("busy", busy)):
        for process_name, count in zip(PARTIES, counts, strict=True):
            cells = [f"{count[operation]:,.0f}" for operation in ("create", "put", "list", "get", "size")]
            table.add_row(load, process_name, *cells, f"{_dollars(count):.2f}")
        figures[f"{load}_requests"] = sum(sum(count.values()) for count in counts)
        figures[f"{load}_dollars"] = sum(map(_dollars, counts))
    console.print(table)
    return figures


def _prepared(server: PostgresServer, directory: str, *, spool_uri: str = "", **settings: dict[str, Any]) -> Pipeline:
    with server.superuser() as connection:
        connection.execute(b"CREATE TABLE t (id int PRIMARY KEY, v text)")
        connection.execute(b"INSERT INTO t SELECT i, 'x' FROM generate_series(1, 100) i")
    given = {"source": {"tables": ["public.*"]}, **settings}
    return Pipeline(Path(directory), name="bench", dsn=server.dsn(), spool_uri=spool_uri, settings=given)


def _write(server: PostgresServer) -> None:
    until_at = time.monotonic() + SECONDS
    with server.superuser() as connection:
        while time.monotonic() < until_at:
            connection.execute(b"INSERT INTO t SELECT max(id) + 1, 'y' FROM t")
            time.sleep(BUSY_PAUSE_SECONDS)


def _counted(ports: tuple[int, int], load: Callable[[], None]) -> list[dict[str, float]]:
    """Requests in an hour, by operation, of each process while `load` runs."""
    before, began = [_requests(port) for port in ports], time.monotonic()
    load()
    hours = (time.monotonic() - began) / 3600
    after = [_requests(port) for port in ports]
    return [{name: (now[name] - then[name]) / hours for name in now} for then, now in zip(before, after, strict=True)]


def _requests(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = dict.fromkeys(("create", "put", "list", "get", "size"), 0.0)
    for operation, count in _REQUESTS.findall(text):
        if operation in found:
            found[operation] += float(count)
    return found


def _dollars(count: dict[str, float]) -> float:
    """In a month of 730 hours."""
    kinds = {name: DOLLARS["write" if name in WRITES else "read"] for name in count}
    return 730 * sum(number * kinds[name] for name, number in count.items())

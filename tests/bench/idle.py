"""P18 and P23: what a quiet pipeline gives and costs. P18 is the time from a single commit, with nothing else going
on, to its visibility in the lake; P23 the requests to an S3 server in an hour, idle and busy.
"""

import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from sluice.contract import keys
from sluice.store.opening import open_store
from tests.bench.contest import show_table
from tests.bench.freshness import entries_of, following, live, percentile, two_cores, until
from tools.local.lake_log import Tail
from tools.local.ports import free_port
from tools.local.postgres import PostgresServer, temporary_server
from tools.local.s3 import running_s3
from tools.local.sluice import Pipeline

COMMITS = int(os.environ.get("P18_COMMITS", "100"))
PAUSE_SECONDS = 2.7
"""Between two commits: more than `apply.freshness`, and no multiple of the rhythms of ingest and applier."""
SECONDS = float(os.environ.get("P23_SECONDS", "120"))
BUSY_PAUSE_SECONDS = 0.01
RESTED_SECONDS = 420.0
"""After a start, until what happens once is over: warm-up, the first look at what may be pruned, and short pauses,
which grow for five minutes."""
SETTLED_SECONDS = 20.0
BURST_SECONDS = 90.0
"""Of load, until entries have the pace that they keep: a burst makes twice as many."""
LIVE_SECONDS = 300.0
BUCKET = "bench"
DOLLARS = {"PUT": 5e-6, "LIST": 5e-6, "GET": 0.4e-6, "HEAD": 0.4e-6, "DELETE": 0.0}
"""What a request of S3's standard class costs in most of its regions."""
METHODS = tuple(DOLLARS)
_COLOURS = re.compile("\x1b\\[[0-9;]*m")
_REQUEST = re.compile(r'"(PUT|GET|HEAD|DELETE|POST) (\S+) HTTP')


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
    shown = {name: percentile(seconds, share) for name, share in (("p50", 0.5), ("p99", 0.99), ("most", 1.0))}
    title = f"P18: seconds from a single commit to visibility, {COMMITS} commits"
    show_table(title, tuple(shown), [[f"{value:.2f}" for value in shown.values()]])
    return {f"{name}_s": shown[name] for name in ("p50", "p99")}


def p23(_rounds: int) -> dict[str, float | None]:
    """Requests to an S3 server in an hour and their price in a month, idle and with 80 commits a second, as the server
    counts them: by method and by the folder of the spool.
    """
    with tempfile.TemporaryDirectory() as directory, temporary_server() as server:
        log = Path(directory) / "requests.log"
        with running_s3(buckets=(BUCKET,), log=log) as s3:
            pipeline = _prepared(
                server,
                directory,
                spool_uri=f"s3://{BUCKET}/spool",
                spool={"options": s3.options()},
                telemetry={"listen": f"127.0.0.1:{free_port()}", "apply_listen": f"127.0.0.1:{free_port()}"},
            )
            store = open_store(pipeline.spool_uri, prefix=f"{pipeline.name}/", options=s3.options())
            with pipeline.start("up") as process:
                until(lambda: live(store) == 1, process, LIVE_SECONDS, "the table is in the lake")
                time.sleep(RESTED_SECONDS)
                idle = _counted(log, lambda: time.sleep(SECONDS))
                _write(server, BURST_SECONDS)
                busy = _counted(log, lambda: _write(server, SECONDS))
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for load, counts in (("idle", idle), ("busy", busy)):
        for folder in sorted({folder for folder, _ in counts}):
            here = {method: counts.get((folder, method), 0.0) for method in METHODS}
            rows.append((load, folder, *(f"{here[method]:,.0f}" for method in METHODS), f"{_dollars(here):.2f}"))
        sums = {method: sum(counts[key] for key in counts if key[1] == method) for method in METHODS}
        rows.append((load, "all", *(f"{sums[method]:,.0f}" for method in METHODS), f"{_dollars(sums):.2f}"))
        figures[f"{load}_requests"] = sum(sums.values())
        figures[f"{load}_dollars"] = _dollars(sums)
    title = f"P23: requests to the object store in an hour, over {SECONDS:.0f} s each"
    show_table(title, ("load", "folder", *METHODS, "$ a month"), rows)
    return figures


def _prepared(server: PostgresServer, directory: str, *, spool_uri: str = "", **settings: dict[str, Any]) -> Pipeline:
    with server.superuser() as connection:
        connection.execute(b"CREATE TABLE t (id int PRIMARY KEY, v text)")
        connection.execute(b"INSERT INTO t SELECT i, 'x' FROM generate_series(1, 100) i")
    given = {"source": {"tables": ["public.*"]}, **settings}
    return Pipeline(Path(directory), name="bench", dsn=server.dsn(), spool_uri=spool_uri, settings=given)


def _write(server: PostgresServer, seconds: float) -> None:
    until_at = time.monotonic() + seconds
    with server.superuser() as connection:
        while time.monotonic() < until_at:
            connection.execute(b"INSERT INTO t SELECT max(id) + 1, 'y' FROM t")
            time.sleep(BUSY_PAUSE_SECONDS)


def _counted(log: Path, load: Callable[[], None]) -> dict[tuple[str, str], float]:
    """Requests in an hour, by folder and method, while `load` runs."""
    begin, began = log.stat().st_size, time.monotonic()
    load()
    hours = (time.monotonic() - began) / 3600
    with log.open("rb") as lines:
        lines.seek(begin)
        found = Counter(_named(*line) for line in _REQUEST.findall(_COLOURS.sub("", lines.read().decode())))
    return {key: count / hours for key, count in found.items()}


def _named(method: str, path: str) -> tuple[str, str]:
    """The folder of the spool that a request is about, and its method. A listing is a GET with a query, and deletes are
    a POST that names its objects inside.
    """
    address, _, query = path.partition("?")
    if method == "POST":
        return "any", "DELETE"
    prefix = parse_qs(query).get("prefix")
    parts = (prefix[0] if prefix else address).partition("spool/")[2].split("/")
    deep = "/".join(parts[1:3]) if parts[1:2] == ["apply"] else "/".join(parts[1:2])
    return deep, "LIST" if prefix else method


def _dollars(count: Mapping[str, float]) -> float:
    """In a month of 730 hours."""
    return 730 * sum(number * DOLLARS[method] for method, number in count.items())

"""P20: how soon an application reads in the lake what it has just written: it writes, asks where the log ends, waits
for that position, and reads all of it as of one boundary.
"""

import os
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import psycopg

from sluice_lake import Lake
from tests.bench.contest import console, show_table
from tests.bench.freshness import percentile, two_cores, until
from tests.e2e.readers import newest_of
from tools.local.ports import free_port
from tools.local.postgres import temporary_server
from tools.local.sluice import Pipeline

LOOPS = int(os.environ.get("P20_LOOPS", "300"))
TO_REACH = {"p50_s": 0.6, "p99_s": 3.0}
LIVE_SECONDS, WAIT_SECONDS, SETTLED_SECONDS = 300.0, 60.0, 20.0


def p20(_rounds: int) -> dict[str, float | None]:
    """A write, a wait for its position and a read, by the endpoint and by the lake alone, one loop after the other."""
    port = free_port()
    with two_cores(), tempfile.TemporaryDirectory() as directory, temporary_server() as server:
        with server.superuser() as connection:
            connection.execute(b"CREATE TABLE t (id int PRIMARY KEY, v int)")
            connection.execute(b"INSERT INTO t SELECT i, 0 FROM generate_series(1, 1000) i")
        settings: dict[str, dict[str, Any]] = {
            "source": {"tables": ["public.*"]},
            "apply": {"freshness": "0s", "poll": "50ms"},
            "telemetry": {"apply_listen": f"127.0.0.1:{port}"},
        }
        pipeline = Pipeline(Path(directory), name="bench", dsn=server.dsn(), settings=settings)
        (pipeline.directory / "lake").mkdir()
        signal = pipeline.run("setup", "--ddl-signal", "--apply")
        assert signal.returncode == 0, signal.stderr
        lake = Lake(pipeline.lake_uri)
        with pipeline.start("up") as process:
            until(lambda: newest_of(lake) is not None, process, LIVE_SECONDS, "the table is in the lake")
            time.sleep(SETTLED_SECONDS)
            with psycopg.connect(server.dsn(), autocommit=True) as application:
                seconds = {
                    way: [_loop(application, lake, way, port, first + loop) for loop in range(LOOPS)]
                    for first, way in ((1, "endpoint"), (1_000_000, "lake"))
                }
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for way, found in seconds.items():
        p50, p99 = percentile(found, 0.5), percentile(found, 0.99)
        rows.append((way, f"{p50:.2f}", f"{p99:.2f}", f"{max(found):.2f}"))
        figures |= {f"{way}_p50_s": p50, f"{way}_p99_s": p99}
    title = f"P20: seconds of a write, a wait and a read, {LOOPS} loops each"
    show_table(title, ("waits by", "p50", "p99", "most"), rows)
    console.print(f"to reach: p50 {TO_REACH['p50_s']} s, p99 {TO_REACH['p99_s']} s")
    return figures


def _loop(application: psycopg.Connection, lake: Lake, way: str, port: int, value: int) -> float:
    """Checked: what is read is what was written."""
    began = time.monotonic()
    application.execute("UPDATE t SET v = %s WHERE id = 1", (value,))
    row = application.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
    assert row is not None
    if way == "endpoint":
        address = f"http://127.0.0.1:{port}/wait?lsn={row[0]}&timeout={WAIT_SECONDS:g}"
        with urllib.request.urlopen(address, timeout=2 * WAIT_SECONDS) as answer:
            assert answer.status == 200
    else:
        lake.wait_for(str(row[0]), timeout=WAIT_SECONDS)
    found = lake.as_of().arrow("t", columns=["v"], where="id = 1")["v"].to_pylist()
    assert found == [value], "a stale read"
    return time.monotonic() - began

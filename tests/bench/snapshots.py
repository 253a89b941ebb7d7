"""P4: the snapshot of a large table beside COPY that throws its rows away, and many small tables. P4B: the same
rows in many tables, and in one with many partitions.
"""

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.contract.entries import Snapshot
from sluice.manifest.reader import read_entries
from sluice.store.opening import open_store
from tests.bench.contest import Contestant, Outcome, console, outcome_of, said, show, take_turns
from tests.bench.replication import SETTINGS, W1_STATEMENTS, W1_TABLE
from tools.local.postgres import PostgresServer, temporary_server

ROWS = int(os.environ.get("BENCH_P4_ROWS", "5000000"))
SMALL_TABLES = int(os.environ.get("BENCH_P4_TABLES", "1000"))
MANY, MANY_ROWS = int(os.environ.get("BENCH_P4B_TABLES", "64")), 100_000
LEAVES = 32


def p4(rounds: int) -> dict[str, float | None]:
    """P4: the snapshot of 5 M W1 rows to typed Parquet, durable, and of 1,000 empty tables."""
    with temporary_server(settings=SETTINGS) as server, tempfile.TemporaryDirectory() as directory:
        console.print("P4: writing the table")
        insert = W1_STATEMENTS[0].replace("1, 1000000", f"1, {ROWS}")
        with server.superuser() as connection:
            connection.execute(W1_TABLE.encode())
            connection.execute(insert.encode())
            connection.execute(b"VACUUM (ANALYZE, FREEZE) w1")
            connection.execute(b"CREATE PUBLICATION bench FOR TABLE w1")
        folder = Path(directory)
        contestants = [
            Contestant("COPY, one connection", lambda _: copied(server, 1)),
            Contestant("COPY, two connections", lambda _: copied(server, 2)),
            Contestant("snapshot, one connection", lambda number: taken(server, folder / f"one_{number}", 1)),
            Contestant("snapshot, two connections", lambda number: taken(server, folder / f"two_{number}", 2)),
        ]
        take_turns("P4", contestants, rounds=rounds)
        show("P4", contestants)
        one, two, single, double = contestants
        small = _small_tables(server, folder / "small")
        console.print(f"P4: {SMALL_TABLES} empty tables in {small:.1f} s")
        return {
            "P4 of one": one.median_s / double.median_s,
            "P4 of two": two.median_s / double.median_s,
            "P4 one connection, of one": one.median_s / single.median_s,
            "P4 RSS MB": double.median("peak_rss_mb"),
            "P4 small tables s": small,
        }


def p4b(rounds: int) -> dict[str, float | None]:
    """The snapshot of 64 tables of 100,000 W1 rows, and of one table with 32 partitions, beside one table of as many
    rows: time per row.
    """
    with temporary_server(settings=SETTINGS) as server, tempfile.TemporaryDirectory() as directory:
        console.print("P4B: writing the tables")
        with server.superuser() as connection:
            for statement in _many():
                connection.execute(statement.encode())
        folder = Path(directory)
        contestants = [
            Contestant(name, partial(_published, server, folder, published))
            for name, published in (
                ("one table", "TABLE w1"),
                (f"{MANY} tables", f"TABLE {', '.join(f'many_{number}' for number in range(MANY))}"),
                (f"{LEAVES} partitions", "TABLE parted WITH (publish_via_partition_root)"),
            )
        ]
        take_turns("P4B", contestants, rounds=rounds)
        show("P4B", contestants)
        one, many, parted = (contestant.median_s for contestant in contestants)
        return {"P4B tables": many / one, "P4B partitions": parted / one}


def _many() -> Iterator[str]:
    insert = W1_STATEMENTS[0].replace("1, 1000000", f"1, {MANY * MANY_ROWS}")
    yield W1_TABLE
    yield insert
    for number in range(MANY):
        yield f"CREATE TABLE many_{number} (LIKE w1 INCLUDING ALL)"
        low, high = number * MANY_ROWS + 1, (number + 1) * MANY_ROWS
        yield f"INSERT INTO many_{number} SELECT * FROM w1 WHERE id BETWEEN {low} AND {high}"
    yield "CREATE TABLE parted (LIKE w1 INCLUDING ALL) PARTITION BY HASH (id)"
    for number in range(LEAVES):
        bounds = f"FOR VALUES WITH (MODULUS {LEAVES}, REMAINDER {number})"
        yield f"CREATE TABLE parted_{number} PARTITION OF parted {bounds}"
    yield "INSERT INTO parted SELECT * FROM w1"
    yield "VACUUM (ANALYZE, FREEZE)"


def _published(server: PostgresServer, folder: Path, published: str, number: int) -> Outcome:
    spool = folder / f"p{number}"
    with server.superuser() as connection:
        connection.execute(b"DROP PUBLICATION IF EXISTS bench")
        connection.execute(f"CREATE PUBLICATION bench FOR {published}".encode())
    outcome = _snapshot(server, spool, 2)
    found = _rows_and_sum(spool)
    rows = MANY * MANY_ROWS
    if found != (rows, rows * (rows + 1) // 2):
        raise RuntimeError(f"P4B: the spool has {found[0]} rows, not those of the tables")
    shutil.rmtree(spool)
    return outcome


def copied(server: PostgresServer, connections: int) -> Outcome:
    """Text to psql, which writes it to /dev/null; each connection reads its share of the blocks."""
    with server.superuser() as connection:
        row = connection.execute("SELECT pg_relation_size('w1') / 8192").fetchone()
    blocks = int(row[0]) if row else 0
    shares = [blocks * number // connections for number in range(connections + 1)]
    queries = [
        f"COPY (SELECT * FROM w1 WHERE ctid >= '({first},0)' AND ctid < '({end},0)') TO STDOUT"
        if connections > 1
        else "COPY w1 TO STDOUT"
        for first, end in itertools.pairwise(shares)
    ]
    psql = str(server.bin_dir / "psql")
    began = time.perf_counter()
    running = [
        subprocess.Popen([psql, "-X", "-d", server.dsn(), "-c", query], stdout=subprocess.DEVNULL) for query in queries
    ]
    if any(process.wait(600) for process in running):
        raise RuntimeError("P4: COPY failed")
    return Outcome(time.perf_counter() - began)


def taken(server: PostgresServer, spool: Path, connections: int, *, rows: int = ROWS) -> Outcome:
    """The snapshot of a table whose keys are 1 to `rows`, which is what the spool has to hold."""
    outcome = _snapshot(server, spool, connections)
    found = _rows_and_sum(spool)
    if found != (rows, rows * (rows + 1) // 2):
        raise RuntimeError(f"P4: the spool has {found[0]} rows, not those of the table")
    shutil.rmtree(spool)
    return outcome


def _rows_and_sum(spool: Path) -> tuple[int, int]:
    """How many rows the snapshots in a spool have, and the sum of their ids."""
    rows = total = 0
    store = open_store(spool.as_uri(), prefix="bench/", options={})
    for entry, _ in read_entries(store, after_seq=0):
        if isinstance(entry.body, Snapshot):
            for segment in entry.body.segments:
                ids = pq.read_table(spool / "bench" / segment.key, columns=["id"])["id"]
                rows, total = rows + len(ids), total + pc.sum(ids).as_py()
    return rows, total


def _snapshot(server: PostgresServer, spool: Path, connections: int) -> Outcome:
    slot = f"bench_{spool.name}"
    program = "tests.bench.snapshot_once"
    found = said(sys.executable, "-m", program, server.dsn(), slot, str(spool), str(connections))
    with server.superuser() as connection:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
    return outcome_of(found)


def _small_tables(server: PostgresServer, spool: Path) -> float:
    with server.superuser() as connection:
        for number in range(SMALL_TABLES):
            connection.execute(f"CREATE TABLE small_{number} (id int8 PRIMARY KEY, body text)".encode())
        names = ", ".join(f"small_{number}" for number in range(SMALL_TABLES))
        connection.execute(f"ALTER PUBLICATION bench SET TABLE {names}".encode())
    return _snapshot(server, spool, 2).seconds

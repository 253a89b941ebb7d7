"""P3: what one huge transaction costs in memory, streamed while small ones commit beside it, and
sent in one piece after the server spilled it.

One WAL with the transaction and the small ones that interleave with it, read twice from snapshots of
one slot, while the resident memory of the ingest process is sampled; each spool is summed against
the source's table. The rates are those of P1's million inserts, which fit the server's memory when
it does not stream them: what streaming costs is then ours and not that of the server's spill files.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from sluice.contract.entries import Changes
from sluice.manifest.reader import read_entries
from sluice.store.opening import open_store
from tests.bench import replication
from tests.bench.contest import Contestant, Outcome, console, show, show_table, take_turns
from tests.bench.replication import sql
from tools.local.postgres import PostgresServer, temporary_server

SIZE = int(os.environ.get("BENCH_P3_MB", "2048")) << 20
"""Bytes of row data in the huge transaction."""
ROW_BYTES = 1000
SMALL_EVERY = 50
"""Chunks of the huge transaction, each followed by a small one that commits meanwhile."""
SETTINGS = {
    "shared_buffers": "1GB",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    "synchronous_commit": "off",
    "min_wal_size": "80MB",
}
"""logical_decoding_work_mem is PostgreSQL's own, 64 MB: it decides when a transaction is streamed
or spilled.
"""
TABLES = (
    "CREATE TABLE huge (id int8 PRIMARY KEY, customer int4, amount numeric(12,2), at timestamptz, note text)",
    "CREATE TABLE small (id int8 PRIMARY KEY, note text)",
)
FILL = (
    "INSERT INTO huge SELECT i, i % 10000, (i % 100000) / 100.0, timestamptz '2024-01-01' + i * interval '1 second',"
    " string_agg(md5((i * 31 + part)::text), '') FROM generate_series({low}, {high}) i, "
    "generate_series(1, 30) part GROUP BY i"
)
SAMPLE_SECONDS = 0.25
SERIES_POINTS = 20


@dataclass(frozen=True)
class Run:
    """One pass over the WAL. `rss_mb` is sampled from the first row on."""

    seconds: float
    peak_mb: float
    rss_mb: list[float]
    rows: int

    @property
    def rows_s(self) -> float:
        return self.rows / self.seconds

    def series(self) -> str:
        step = max(1, len(self.rss_mb) // SERIES_POINTS)
        return " ".join(f"{max(self.rss_mb[at : at + step]):.0f}" for at in range(0, len(self.rss_mb), step))


def p3(rounds: int) -> dict[str, float | None]:
    """One transaction of 2 GB (BENCH_P3_MB), streamed and not."""
    rows = SIZE // ROW_BYTES
    with temporary_server(settings=SETTINGS) as server, tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        sql(server, *TABLES, "CREATE PUBLICATION bench FOR TABLE huge, small")
        _ingest(server, folder / "pristine", "setup", streaming="off")
        for slot in ("streamed", "unstreamed"):
            sql(server, f"SELECT pg_copy_logical_replication_slot('bench', '{slot}')")
        console.print(
            f"P3: writing {rows:,} rows of {ROW_BYTES} bytes in one transaction, load {os.getloadavg()[0]:.1f}"
        )
        _write(server, rows)
        end_lsn = sql(server, "SELECT pg_current_wal_insert_lsn()")
        sql(server, "SELECT pg_logical_emit_message(true, 'bench', 'end')", "SELECT pg_switch_wal()")
        expected = sql(
            server, "SELECT count(*) || ' ' || sum(id) || ' ' || sum(amount) || ' ' || sum(length(note)) FROM huge"
        )
        runs = {}
        for name, streaming in (("streamed", "auto"), ("unstreamed", "off")):
            spool = folder / name
            shutil.copytree(folder / "pristine", spool)
            sql(
                server,
                "SELECT pg_drop_replication_slot('bench')",
                f"SELECT pg_copy_logical_replication_slot('{name}', 'bench')",
            )
            before = os.getloadavg()[0]
            runs[name] = _ingest(server, spool, end_lsn, streaming=streaming, rows=rows)
            blocks = _stream_blocks(server)
            if bool(blocks) != (name == "streamed"):
                raise RuntimeError(f"P3: {blocks} stream blocks came in the {name} run")
            if (found := _sums(spool)) != expected:
                raise RuntimeError(f"P3: the spool of the {name} run adds up to {found}, the table to {expected}")
            console.print(
                f"P3 {name}: {runs[name].seconds:.1f} s, peak {runs[name].peak_mb:.0f} MB, load "
                f"{before:.1f} before and {os.getloadavg()[0]:.1f} after"
            )
            console.print(f"   resident MB over time: {runs[name].series()}")
            shutil.rmtree(spool)
    streamed, unstreamed = runs["streamed"], runs["unstreamed"]
    _print(runs)
    rates = _rates(rounds)
    return {
        "streamed_peak_rss_mb": streamed.peak_mb,
        "unstreamed_peak_rss_mb": unstreamed.peak_mb,
        "bytes": float(SIZE),
        "streamed_rows_s": rates["streamed"],
        "unstreamed_rows_s": rates["unstreamed"],
        "ratio": rates["streamed"] / rates["unstreamed"],
    }


def _rates(rounds: int) -> dict[str, float]:
    """Rows a second of P1's inserts, as one transaction that the server keeps in memory until it
    commits, and as one that it streams.
    """
    with temporary_server(settings=replication.SETTINGS) as server, tempfile.TemporaryDirectory() as directory:
        sql(server, replication.W1_TABLE)
        arena = replication.Arena(server, Path(directory), tables=("w1",))
        sql(server, replication.W1_STATEMENTS[0])
        rows = int(sql(server, "SELECT count(*) FROM w1"))
        arena.finish_workload()

        def run(memory: str, *, streamed: bool) -> Callable[[int], Outcome]:
            def verify(spool: Path) -> None:
                blocks = _stream_blocks(server)
                if sum(segment.rows for segment in replication.segments(spool)) != rows or bool(blocks) != streamed:
                    raise RuntimeError(f"P3: the rows came in {blocks} stream blocks, or not all")

            def go(number: int) -> Outcome:
                sql(server, f"ALTER DATABASE postgres SET logical_decoding_work_mem = '{memory}'")
                return arena.ours(number, verify)

            return go

        contestants = [
            Contestant("unstreamed", run("2GB", streamed=False)),
            Contestant("streamed", run("64MB", streamed=True)),
        ]
        take_turns("P3 rates", contestants, rounds=rounds)
        show("P3: P1's inserts", contestants)
        return {one.name: rows / one.median_s for one in contestants}


def _stream_blocks(server: PostgresServer) -> int:
    """How many blocks of open transactions the present slot has sent."""
    return int(sql(server, "SELECT stream_count FROM pg_stat_replication_slots WHERE slot_name = 'bench'"))


def _write(server: PostgresServer, rows: int) -> None:
    """The huge transaction in chunks, and after each a small transaction on a connection of its
    own.
    """
    with server.superuser() as huge:
        huge.autocommit = False
        for number in range(SMALL_EVERY):
            low, high = rows * number // SMALL_EVERY + 1, rows * (number + 1) // SMALL_EVERY
            huge.execute(FILL.format(low=low, high=high).encode())
            sql(server, f"INSERT INTO small VALUES ({number}, 'beside it')")
        huge.commit()


def _ingest(server: PostgresServer, spool: Path, until: str, *, streaming: str, rows: int = 0) -> Run:
    spool.mkdir(exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "tests.bench.ingest_once",
        server.dsn(),
        "bench",
        "bench",
        str(spool),
        until,
        streaming,
    ]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        samples: list[float] = []
        done = threading.Event()
        sampler = threading.Thread(target=_sample, args=(process.pid, samples, done))
        sampler.start()
        try:
            output, _ = process.communicate(timeout=1800)
        finally:
            done.set()
            sampler.join()
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"ingest failed: {errors.read()[-2000:]}")
    result = json.loads(output) if output else {"seconds": 0.0, "peak_rss_mb": 0.0}
    return Run(result["seconds"], result["peak_rss_mb"], samples, rows)


def _sample(pid: int, samples: list[float], done: threading.Event) -> None:
    page_mb = os.sysconf("SC_PAGE_SIZE") / 2**20
    while not done.wait(SAMPLE_SECONDS):
        try:
            samples.append(int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * page_mb)
        except (OSError, IndexError):
            return


def _sums(spool: Path) -> str:
    """What the huge table's rows in the spool add up to, in the words of the query above; memory
    for one file at a time.
    """
    store = open_store(spool.as_uri(), prefix="bench/", options={})
    rows = ids = length = small = 0
    amount = None
    for entry, _ in read_entries(store, after_seq=0):
        for segment in entry.body.segments if isinstance(entry.body, Changes) else ():
            names = pq.read_schema(spool / "bench" / segment.key).names
            if "amount" not in names:
                small += segment.rows
                continue
            part = pq.read_table(spool / "bench" / segment.key, columns=["id", "amount", "note"])
            rows, ids = rows + len(part), ids + pc.sum(part["id"]).as_py()
            amount = pc.sum(part["amount"]).as_py() + (amount or 0)
            length += pc.sum(pc.utf8_length(part["note"])).as_py()
    if small != SMALL_EVERY:
        raise RuntimeError(f"P3: {small} small transactions arrived, not {SMALL_EVERY}")
    return f"{rows} {ids} {amount} {length}"


def _print(runs: dict[str, Run]) -> None:
    rows = ((name, f"{run.seconds:.1f}", f"{run.rows_s:,.0f}", f"{run.peak_mb:.0f}") for name, run in runs.items())
    title = f"P3: one transaction of {SIZE / 1e9:.1f} GB"
    show_table(title, ("delivery", "seconds", "rows/s", "peak RSS MB"), rows)

"""P25: two tables by one slot, beside one slot for each of them: what more slots on one server would gain.

Each walsender decodes the whole WAL and skips what its publication does not have, so two slots decode everything
twice.
"""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from tests.bench.contest import Contestant, Outcome, console, show, take_turns
from tests.bench.freshness import cpu_seconds
from tests.bench.replication import SETTINGS, W1_TABLE, Arena, Verify, segments
from tools.local.postgres import PostgresServer, temporary_server

TABLES = ("w1", "w1_other")
ROWS = 500_000
"""Of each table, in transactions of 1,000 rows: the tables take turns."""


def p25(rounds: int) -> dict[str, float | None]:
    """P25: two tables by one slot, and by a slot each."""
    with temporary_server(settings=SETTINGS) as server, tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        with server.superuser() as connection:
            for table in TABLES:
                connection.execute(W1_TABLE.replace("TABLE w1 ", f"TABLE {table} ").encode())
        whole = Arena(server, root, tables=TABLES, slot="whole")
        parts = [Arena(server, root, tables=(table,), slot=f"only_{table}") for table in TABLES]
        console.print("P25: writing the workload")
        _write(server)
        for arena in (whole, *parts):
            arena.finish_workload()
        assert server.pid is not None
        postmaster = server.pid
        server_s: dict[str, list[float]] = {"one": [], "two": []}

        def one(number: int) -> Outcome:
            before = cpu_seconds(postmaster)
            outcome = whole.ours(number, _has(ROWS * len(TABLES)))
            server_s["one"].append(cpu_seconds(postmaster) - before)
            return outcome

        def two(number: int) -> Outcome:
            before = cpu_seconds(postmaster)
            with ThreadPoolExecutor(len(parts)) as together:
                ended = list(together.map(lambda arena: arena.ours(number, _has(ROWS)), parts))
            server_s["two"].append(cpu_seconds(postmaster) - before)
            return Outcome(
                max(outcome.seconds for outcome in ended),
                sum(outcome.cpu_s for outcome in ended),
                sum(outcome.peak_rss_mb for outcome in ended),
            )

        contestants = [Contestant("one slot", one), Contestant("two slots", two)]
        take_turns("P25", contestants, rounds=rounds)
        show("P25", contestants)
    single, shards = contestants
    figures: dict[str, float | None] = {
        "one_s": single.median_s,
        "two_s": shards.median_s,
        "gain": single.median_s / shards.median_s,
        "one_cpu_s": single.median("cpu_s"),
        "two_cpu_s": shards.median("cpu_s"),
        "one_server_cpu_s": median(server_s["one"]),
        "two_server_cpu_s": median(server_s["two"]),
    }
    console.print({name: round(value or 0.0, 2) for name, value in figures.items()})
    return figures


def _write(server: PostgresServer) -> None:
    values = (
        "i, i % 10000, 'paid', (i % 100000) / 100.0, timestamptz '2024-01-01' + i * interval '1 second',"
        " 'note of order number ' || i, i % 100, i % 2 = 0, sqrt(i), md5(i::text)::uuid"
    )
    with server.superuser() as connection:
        for first in range(1, ROWS, 1_000):
            for table in TABLES:
                rows = f"generate_series({first}, {first + 999}) i"
                connection.execute(f"INSERT INTO {table} SELECT {values} FROM {rows}".encode())


def _has(rows: int) -> Verify:
    def verify(spool: Path) -> None:
        found = sum(segment.rows for segment in segments(spool))
        if found != rows:
            raise RuntimeError(f"P25: the spool holds {found} rows, not {rows}")

    return verify

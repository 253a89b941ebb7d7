"""P8, P17 and P22: from a commit at the source to its visibility in the lake, under a steady load, with the
processes of production (`sluice up`) and PostgreSQL on two cores; P17 beside hundreds of tables in which
nothing happens, P22 by what it costs.

Each sampled transaction is a probe. Its manifest entry is found by its transaction id, and the lake
table's first commit whose marker reaches that entry made it visible; the time is that of the commit's
file. At the end another engine compares the tables with the source, and reads the last probes in the
versions before and after.
"""

import json
import os
import random
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
from deltalake import DeltaTable, QueryBuilder

from sluice.contract import keys
from sluice.contract.entries import Changes
from sluice.manifest.newest_record import newest_log
from sluice.manifest.reader import read_entries
from sluice.store.base import ObjectStore
from sluice.store.opening import open_store
from tests.bench.applying import CREATE, FILL, SUMS
from tests.bench.contest import console, show_table
from tests.support.fleets import below
from tools.demo.freshness import complete_through
from tools.local.lake_log import Commit, Tail
from tools.local.postgres import PostgresServer, temporary_server
from tools.local.sluice import Pipeline, SluiceProcess

SECONDS = float(os.environ.get("P8_SECONDS", "600"))
MANY_SECONDS = float(os.environ.get("P17_SECONDS", "600"))
COST_SECONDS = float(os.environ.get("P22_SECONDS", "120"))
DOLLARS_A_CORE_HOUR = 0.05
"""What a core of a general-purpose machine costs on demand with the large clouds, rounded."""
TRANSACTIONS_PER_SECOND = 30
PROBE_EVERY = 13
"""Transactions. It shares no factor with the numbers of tables, so that each table has probes."""
LIVE_SECONDS, EACH_SECONDS, CAUGHT_UP_SECONDS = 300.0, 2.0, 180.0
"""Until everything is in the lake: for all, and for each table."""
UPDATE = "UPDATE t SET qty = qty + 1, status = 'changed' WHERE id = ANY(%s)"
DELETE = "DELETE FROM t WHERE id = ANY(%s)"
_TIMES = slice(11, 15)
"""Fields of /proc/<pid>/stat behind the name: user and system time, and those of children."""
CHECKED = 4
"""Probes that the other engine looks for, in two versions each."""


@dataclass(frozen=True)
class Load:
    """`changes` a second in all, spread over `tables` tables of `rows` rows each, for so many `seconds`.
    `idle` tables of ten rows are followed as well, and never change. `targets` are the lake tables of each table.
    """

    tables: int
    changes: int
    rows: int
    seconds: float
    idle: int = 0
    targets: tuple[Mapping[str, str], ...] = ({"kind": "mirror"},)


@dataclass(frozen=True)
class Probe:
    """A transaction that committed `at` (unix seconds), with one of the ids that it inserted."""

    table: int
    xid: int
    row: int
    at: float


@dataclass(frozen=True)
class Outcome:
    """`latencies` are seconds from commit to visibility of each probe, in order of the commits. `cores`
    is what ingest and applier took of them under the load. `longest` says which window took the longest,
    and what it did; `checkpoints` is how many were written beside windows, and the seconds of the longest.
    """

    latencies: list[float]
    changes_per_second: float
    windows_per_second: float
    cores: float
    longest: str
    checkpoints: str


class Writer:
    """Writes at a steady rate: six in ten changes are inserts, three updates and one a delete of
    random rows.
    """

    def __init__(self, dsn: str, load: Load) -> None:
        self._dsn = dsn
        self._load = load
        self._choice = random.Random(8)
        self._next = [load.rows + 1] * load.tables
        self._kept: set[tuple[int, int]] = set()
        """Table and id of the rows of probes, which are not deleted."""
        self.probes: list[Probe] = []
        self.changes = 0

    def write(self, seconds: float, *, probing: bool) -> None:
        """For so long. Falls behind the rate when the server does, and then catches up."""
        began = time.monotonic()
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            for number in range(int(seconds * TRANSACTIONS_PER_SECOND)):
                time.sleep(max(0.0, began + number / TRANSACTIONS_PER_SECOND - time.monotonic()))
                self._transact(connection, number % self._load.tables, probe=probing and number % PROBE_EVERY == 0)

    def _transact(self, connection: psycopg.Connection, table: int, *, probe: bool) -> None:
        count = -(-self._load.changes // TRANSACTIONS_PER_SECOND)
        low = self._next[table]
        self._next[table] = high = low + max(1, count * 6 // 10)
        victims = self._choice.sample(range(1, low), count * 4 // 10)
        cut = len(victims) * 3 // 4
        deleted = [row for row in victims[cut:] if (table, row) not in self._kept]
        xid = 0
        with connection.transaction():
            changed = connection.execute(_of(FILL, table).format(low=low, high=high - 1).encode()).rowcount
            for statement, rows in ((UPDATE, victims[:cut]), (DELETE, deleted)):
                changed += connection.execute(_of(statement, table).encode(), (rows,)).rowcount
            if probe:
                row = connection.execute("SELECT pg_current_xact_id()::text").fetchone()
                assert row is not None
                xid = int(row[0])
        at = time.time()
        self.changes += changed
        if probe:
            self._kept.add((table, low))
            self.probes.append(Probe(table, xid & 0xFFFFFFFF, low, at))


def p8(_rounds: int) -> dict[str, float | None]:
    """Commit to visibility: 5,000 changes/s over three tables, and 500 over thirty, for P8_SECONDS."""
    outcomes = {load.tables: run(load) for load in (Load(3, 5_000, 100_000, SECONDS), Load(30, 500, 10_000, SECONDS))}
    _show(f"P8: seconds from commit to visibility, {SECONDS:.0f} s of load", outcomes)
    few, many = outcomes[3], outcomes[30]
    return {
        "p50_s": percentile(few.latencies, 0.5),
        "p99_s": percentile(few.latencies, 0.99),
        "most_s": percentile(few.latencies, 1.0),
        "many_p50_s": percentile(many.latencies, 0.5),
        "many_p99_s": percentile(many.latencies, 0.99),
    }


def p17(_rounds: int) -> dict[str, float | None]:
    """Fifty busy tables alone, and beside 950 in which nothing happens, for P17_SECONDS."""
    busy = Load(50, 500, 5_000, MANY_SECONDS)
    outcomes = {load.tables + load.idle: run(load) for load in (busy, replace(busy, idle=950))}
    _show(f"P17: seconds from commit to visibility in 50 busy tables, {MANY_SECONDS:.0f} s of load", outcomes)
    alone, beside = outcomes.values()
    return {
        "alone_p99_s": percentile(alone.latencies, 0.99),
        "beside_p99_s": percentile(beside.latencies, 0.99),
        "cores_ratio": beside.cores / alone.cores,
    }


def p22(_rounds: int) -> dict[str, float | None]:
    """CPU of ingest and applier for a million changes, and what it costs, at 500 and 5,000 changes/s over three tables,
    for P22_SECONDS.
    """
    outcomes = {load.changes: run(load) for load in (Load(3, rate, 100_000, COST_SECONDS) for rate in (500, 5_000))}
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float | None] = {}
    for rate, outcome in outcomes.items():
        seconds = outcome.cores / outcome.changes_per_second * 1e6
        dollars = seconds / 3600 * DOLLARS_A_CORE_HOUR
        ages = [percentile(outcome.latencies, share) for share in (0.5, 0.99)]
        cells = (f"{seconds:,.0f}", f"{dollars:.4f}", *(f"{figure:.2f}" for figure in (outcome.cores, *ages)))
        rows.append((f"{outcome.changes_per_second:,.0f}", *cells))
        figures |= {f"{rate}_cpu_s": seconds, f"{rate}_dollars": dollars}
    title = f"P22: for a million changes, {COST_SECONDS:.0f} s of load, ${DOLLARS_A_CORE_HOUR} for a core-hour"
    show_table(title, ("changes/s", "CPU s", "$", "cores", "p50", "p99"), rows)
    return figures


def _show(title: str, outcomes: dict[int, Outcome]) -> None:
    """By the number of tables."""
    rows: list[tuple[str, ...]] = []
    headings = ("tables", "p50", "p99", "most", "p50 first half", "p50 second half", "changes/s", "windows/s", "cores")
    for tables, outcome in outcomes.items():
        half = len(outcome.latencies) // 2
        ages = [percentile(outcome.latencies, share) for share in (0.5, 0.99, 1.0)]
        halves = [percentile(part, 0.5) for part in (outcome.latencies[:half], outcome.latencies[half:])]
        rates = [outcome.changes_per_second, outcome.windows_per_second, outcome.cores]
        rows.append((str(tables), *(f"{figure:,.2f}" for figure in (*ages, *halves, *rates))))
    show_table(title, headings, rows)
    for tables, outcome in outcomes.items():
        console.print(f"{tables} tables: the longest window: {outcome.longest}; checkpoints: {outcome.checkpoints}")


def percentile(values: list[float], share: float) -> float:
    """The value that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def run(load: Load) -> Outcome:
    console.print(f"filling {load.tables} tables, load {os.getloadavg()[0]:.1f}")
    settings = {"shared_buffers": "256MB", "max_wal_size": "8GB", "checkpoint_timeout": "1h"}
    with two_cores(), tempfile.TemporaryDirectory() as directory, temporary_server(settings=settings) as server:
        with server.superuser() as connection:
            for number in range(load.tables):
                connection.execute(_of(CREATE, number).encode())
                connection.execute(_of(FILL, number).format(low=1, high=load.rows).encode())
            for number in range(load.idle):
                connection.execute(_of(CREATE, load.tables + number).encode())
                connection.execute(_of(FILL, load.tables + number).format(low=1, high=10).encode())
        targets = {f"public.t{number}": {"targets": list(load.targets)} for number in range(load.tables)}
        pipeline = Pipeline(
            Path(directory),
            name="bench",
            dsn=server.dsn(),
            settings={"source": {"tables": ["public.*"]}, "tables": targets},
        )
        return _measured(load, server, pipeline)


def _measured(load: Load, server: PostgresServer, pipeline: Pipeline) -> Outcome:
    paths = [pipeline.directory / "lake" / keys.lake_path("public", f"t{number}") for number in range(load.tables)]
    tails = [Tail(path) for path in paths]
    store = open_store(pipeline.spool_uri, prefix=f"{pipeline.name}/", options={})
    writer = Writer(server.dsn(), load)
    began = time.monotonic()
    with pipeline.start("up") as process:
        with following(tails):
            patience = LIVE_SECONDS + EACH_SECONDS * load.idle
            all_tables = load.tables + load.idle
            until(lambda: live(store) == all_tables, process, patience, "every table is in the lake")
            console.print(f"every table is in the lake {time.monotonic() - began:.0f} s after the start")
            loaded_at = time.time()
            windows, changes, loaded = sum(len(tail.commits) for tail in tails), writer.changes, time.monotonic()
            cpu = cpu_seconds(process.pid)
            writer.write(load.seconds, probing=True)
            seconds, cpu = time.monotonic() - loaded, cpu_seconds(process.pid) - cpu
            windows, changes = sum(len(tail.commits) for tail in tails) - windows, writer.changes - changes
            wanted = _position(server)
            # Something must be committed behind the position: a table is complete through
            # transactions, not through silence.
            writer.write(1.0, probing=False)
            until(lambda: complete_through(store) > wanted, process, CAUGHT_UP_SECONDS, "the lake has all probes")
        differing = [(path, f"t{number}") for number, path in enumerate(paths)]
        until(lambda: _are_equal(server, differing), process, CAUGHT_UP_SECONDS, "the lake adds up to the source")
    entries = entries_of(store, {probe.xid for probe in writer.probes})
    commits = [tails[probe.table].first_through(entries[probe.xid]) for probe in writer.probes]
    for probe, commit in list(zip(writer.probes, commits, strict=True))[-CHECKED:]:
        _check(paths[probe.table], probe, commit)
    latencies = [commit.at - probe.at for probe, commit in zip(writer.probes, commits, strict=True)]
    longest, checkpoints = _from_log(process.log, since=loaded_at)
    return Outcome(latencies, changes / seconds, windows / seconds, cpu / seconds, longest, checkpoints)


def _from_log(log: Path, *, since: float) -> tuple[str, str]:
    """What the applier says of its longest window, and of its checkpoints, from then on (unix seconds)."""
    windows: list[tuple[float, float, dict[str, Any]]] = []
    checkpoints: list[tuple[float, float]] = []
    for line in log.read_text(errors="replace").splitlines():
        with suppress(ValueError, KeyError, TypeError):
            said = json.loads(line)
            at = datetime.fromisoformat(said["time"]).timestamp()
            if at < since:
                continue
            if said["event"] == "checkpoint written":
                checkpoints.append((at - said["seconds"], at))
            elif said["event"] == "window applied":
                spent = sum(said["seconds"].get(phase, 0.0) for phase in ("look", "read", "schema", "merge", "join"))
                windows.append((spent, at, said))
    if not windows:
        return "none", "none"
    spent, at, said = max(windows, key=lambda window: window[0])
    phases = ", ".join(f"{phase} {took:.2f}" for phase, took in said["seconds"].items() if took >= 0.005)
    beside = any(began < at and at - spent < ended for began, ended in checkpoints)
    longest = max((ended - began for began, ended in checkpoints), default=0.0)
    what = f"{said['table']} at version {said['delta_version']}, {said.get('way', 'no way')}, {said['rows']:,} rows"
    return (
        f"{spent:.2f} s, {what} ({phases}){', beside a checkpoint' if beside else ''}",
        f"{len(checkpoints)}, the longest {longest:.1f} s",
    )


@contextmanager
def two_cores() -> Iterator[None]:
    """For this process and all that it starts inside the block."""
    all_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(all_cores)[:2])
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_cores)


@contextmanager
def following(tails: list[Tail]) -> Iterator[None]:
    done = threading.Event()

    def follow() -> None:
        while not done.wait(0.2):
            for tail in tails:
                tail.follow()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    for tail in tails:
        tail.follow()


def until(claim: Callable[[], bool], process: SluiceProcess, seconds: float, what: str) -> None:
    """Waits until `claim` holds. Raises RuntimeError when it does not in time, or Sluice has ended."""
    deadline = time.monotonic() + seconds
    while not claim():
        if process.status is not None or time.monotonic() > deadline:
            raise RuntimeError(f"not within {seconds:.0f} s: {what}\n{process.log_tail()}")
        time.sleep(0.5)


def _position(server: PostgresServer) -> int:
    with server.superuser() as connection:
        row = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
    return int(row[0]) if row else 0


def live(store: ObjectStore) -> int:
    """How many tables the applier reports as live in the lake."""
    log = newest_log(store).read()
    return sum(table.state == "live" for table in log.tables.values()) if log else 0


def _are_equal(server: PostgresServer, differing: list[tuple[Path, str]]) -> bool:
    """Whether the lake adds up to the source. Tables that do are taken from `differing`."""
    with server.superuser() as connection:
        while differing:
            path, name = differing[-1]
            expected = connection.execute(SUMS.format(table=name).encode()).fetchone() or ()
            found = QueryBuilder().register("lake", DeltaTable(path)).execute(SUMS.format(table="lake")).read_all()
            if [int(value) for value in expected] != [column[0].as_py() for column in found.columns]:
                return False
            differing.pop()
    return True


def entries_of(store: ObjectStore, xids: set[int]) -> dict[int, int]:
    """The manifest entry of each of these transactions."""
    found = {}
    for entry, _ in read_entries(store, after_seq=0):
        if isinstance(entry.body, Changes):
            found.update(dict.fromkeys(xids.intersection(entry.body.commits.xid), entry.seq))
    return found


def _check(path: Path, probe: Probe, commit: Commit) -> None:
    """Another engine sees the probe's row in the version that made it visible, and not before."""
    for version, wanted in ((commit.version, 1), (commit.version - 1, 0)):
        lake = QueryBuilder().register("lake", DeltaTable(path, version=version))
        query = f"SELECT count(*) AS n FROM lake WHERE id = {probe.row}"
        found = int(lake.execute(query).read_all().column(0)[0].as_py())
        if found != wanted:
            raise RuntimeError(f"version {version} of {path.name} has {found} rows of a probe")


def cpu_seconds(root: int) -> float:
    """Of a process and all below it, with those that have ended."""
    ticks = 0
    for pid in (root, *below(root)):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[_TIMES]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _of(statement: str, table: int) -> str:
    """A statement about `t`, about a table with a number."""
    return re.sub(r"\bt\b(?= \(| SELECT| SET| WHERE)", f"t{table}", statement, count=1)

"""P5 and P7: what one window costs on a warm session, from reading the spool to the commit with its
marker read back.

The whole path is real: the snapshot is read and the changes streamed from a PostgreSQL server, and
the lake is compared with it by counts and sums.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import structlog
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from sluice.contract.entries import Changes, Opened, Snapshot
from sluice.ingest.options import IngestOptions
from sluice.ingest.supervisor import Ingest
from sluice.manifest.reader import load_state, read_entries
from sluice.manifest.targets import of_target
from sluice.manifest.values import TableState
from sluice.source.sessions import SourceOptions
from sluice.store.opening import open_store
from sluice_spark import session as sessions
from sluice_spark.kinds.kind import removals_are_sent
from sluice_spark.lake.commit_way import DIRECT, DISTRIBUTED, MERGE
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.lake.opening import Lake
from sluice_spark.options import ApplyOptions
from sluice_spark.read.window import Window
from sluice_spark.snapshot_apply import SnapshotApply
from sluice_spark.table_apply import TableApply
from tests.bench.contest import console, show_table
from tests.bench.replication import SETTINGS
from tools.local.postgres import PostgresServer, temporary_server

CREATE = (
    "CREATE TABLE t (id int8 PRIMARY KEY, customer int4, status text, amount numeric(12,2), at "
    "timestamptz, note text, qty int4, flag bool,"
    " price float8, uid uuid)"
)
FILL = (
    "INSERT INTO t SELECT i, i % 10000, 'new', (i % 100000) / 100.0, timestamptz '2024-01-01' + i * "
    "interval '1 second', 'note ' || i, i % 100,"
    " i % 2 = 0, i / 3.0, md5(i::text)::uuid FROM generate_series({low}, {high}) i"
)
TRACKED = "direct with row tracking"
"""The name of a lake whose tables track their rows."""
WARM_UPS = 8
"""Windows until the JVM has compiled what a window runs: the cost of one falls from eleven seconds
to three on the way.
"""
SUMS = "SELECT count(*) AS rows, sum(id) AS ids, sum(qty) AS qty, sum(customer) AS customers FROM {table}"


class Bench:
    """A source, its spool, and for each set of options, by name, a lake table on one warm session. `living` chooses
    the rows of a lake table that the source has; those of others are not compared.
    """

    def __init__(
        self,
        server: PostgresServer,
        folder: Path,
        spark: SparkSession,
        options: Mapping[str, Mapping[str, Any]],
        living: Mapping[str, str],
    ) -> None:
        self.server = server
        self.folder = folder
        self.store = open_store((folder / "spool").as_uri(), prefix="bench/", options={})
        self.living = living
        self.options = {
            name: ApplyOptions(
                "bench", (folder / "spool").as_uri(), (folder / name).as_uri(), key_cache_bytes=512 << 20, **changed
            )
            for name, changed in options.items()
        }
        self.lakes = {name: Lake(its, self.store, before_commit=lambda: None) for name, its in self.options.items()}
        self.places = dict.fromkeys(options, ExaminedVersion())
        self.session = spark.newSession()
        self.taken = 0
        self.grown: dict[str, float] = {}

    def sql(self, *statements: str) -> None:
        with self.server.superuser() as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def ingest(self) -> None:
        source = SourceOptions(dsn=self.server.dsn(), slot="bench", publication="bench", application_name="bench")
        asyncio.run(
            Ingest(IngestOptions("bench", source, ("public.*",), instance="bench"), self.store).run(
                until_caught_up=True
            )
        )

    def apply(self) -> dict[str, float]:
        """Seconds for everything new in the manifest, as one window of the table, by way."""
        found = self.next_window()
        return {way: self.applied(way, found) for way in self.lakes}

    def next_window(self) -> tuple[TableState, Window, Opened | None]:
        """Everything new in the manifest, as one window of the table."""
        state = load_state(self.store)
        (table,) = state.tables.values()
        entries = [entry for entry, _ in read_entries(self.store, after_seq=self.taken)]
        self.taken = state.seq
        chunks = [entry.body for entry in entries if isinstance(entry.body, Snapshot)]
        if chunks:
            rows = tuple(segment for chunk in chunks for segment in chunk.segments)
            window = Window(rows, table.generation_seq, is_snapshot=True)
        else:
            segments = tuple(
                segment for entry in entries if isinstance(entry.body, Changes) for segment in entry.body.segments
            )
            window = Window(segments, state.seq)
        return table, window, state.opened

    def applied(self, way: str, found: tuple[TableState, Window, Opened | None]) -> float:
        """Seconds for what `next_window` found, in one of the lakes."""
        table, window, opened = found
        (target,) = self.options[way].targets_of(table.source_name)
        table = of_target(table, target)
        began = time.perf_counter()
        lake = self.lakes[way]
        delta = lake.table(table, self.session, place=self.places[way])
        apply = TableApply(
            self.options[way],
            self.store,
            delta,
            lake.handover(self.session),
            SnapshotApply(self.options[way], self.store, delta, table),
            state=table,
            removals_sent=removals_are_sent(opened, table),
            lake_version=table.schema_version,
        )
        with _peak(self.grown, way):
            self.places[way] = apply.apply(window).place
        return time.perf_counter() - began

    def track(self) -> None:
        """Turns row tracking on where it is wanted."""
        if TRACKED in self.lakes:
            path = self.folder / TRACKED / "public" / "t"
            self.session.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')")

    def verify(self) -> None:
        with self.server.superuser() as connection:
            expected = connection.execute(SUMS.format(table="t").encode()).fetchone()
        for way, living in self.living.items():
            path = self.folder / way / "public" / "t"
            text = f"{SUMS.format(table='lake')} WHERE {living}"
            found = QueryBuilder().register("lake", DeltaTable(path)).execute(text).read_all()
            row = tuple(int(found.column(index)[0].as_py()) for index in range(4))
            if row != tuple(int(value) for value in expected or ()):
                raise RuntimeError(f"the lake of way {way} does not add up to the source")


def _bench(rows: int, ways: Sequence[str]) -> AbstractContextManager[Bench]:
    named = {way: {"way": DIRECT if way == TRACKED else way} for way in ways}
    return bench_of(rows, named, living=dict.fromkeys(ways, "true"))


@contextmanager
def spark_session(*, memory: str = "3g") -> Iterator[tuple[SparkSession, Path]]:
    """A session of two cores, and an empty folder. Of our logs there are only errors."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        options = ApplyOptions("bench", folder.as_uri(), folder.as_uri(), spark_master="local[2]", driver_memory=memory)
        spark = sessions.start(options)
        try:
            yield spark, folder
        finally:
            spark.stop()


@contextmanager
def bench_of(rows: int, options: Mapping[str, Mapping[str, Any]], *, living: Mapping[str, str]) -> Iterator[Bench]:
    """A bench whose table has `rows`, which are in every lake."""
    with temporary_server(settings=SETTINGS) as server, spark_session(memory="4g") as (spark, folder):
        bench = Bench(server, folder, spark, options, living)
        bench.sql(CREATE)
        for low in range(1, rows + 1, 1_000_000):
            bench.sql(FILL.format(low=low, high=min(low + 999_999, rows)))
        console.print(f"reading the snapshot of {rows:,} rows")
        bench.ingest()
        console.print(f"first load: {_shown(bench.apply())}")
        bench.verify()
        bench.track()
        yield bench


def random_changes(bench: Bench, number: int, *, rows: int) -> None:
    """500 inserts, 400 updates and 100 deletes, keys spread over the whole table."""
    first = rows + number * 1000
    spread = "SELECT (hashint8({key}) & 2147483647) % {rows} + 1 FROM generate_series(1, {count}) i"
    step = 100_000 * number
    bench.sql(
        FILL.format(low=first, high=first + 499),
        "UPDATE t SET status = 'changed', qty = qty + 1 WHERE id IN "
        f"({spread.format(key=f'i + {step}', rows=rows, count=400)})",
        f"DELETE FROM t WHERE id IN ({spread.format(key=f'-i - {step}', rows=rows, count=100)})",
    )


def p5(rounds: int) -> dict[str, float | None]:
    """A warm merge of 1,000 random-key changes into 1,000,000 rows, and an append of 1,000 rows: directly, also
    into a table that tracks its rows, and by MERGE beside it.
    """
    rows, ways = 1_000_000, (DIRECT, TRACKED, MERGE)
    merges: dict[str, list[float]] = {way: [] for way in ways}
    appends: dict[str, list[float]] = {way: [] for way in ways}
    with _bench(rows, ways) as bench:
        for number in range(rounds + WARM_UPS):
            random_changes(bench, number + 1, rows=rows)
            bench.ingest()
            merge = bench.apply()
            first = 10 * rows + number * 1000
            bench.sql(FILL.format(low=first, high=first + 999))
            bench.ingest()
            append = bench.apply()
            kind = "round" if number >= WARM_UPS else "warm-up"
            console.print(f"P5 {kind}: merge {_shown(merge)}; append {_shown(append)}")
            if number >= WARM_UPS:
                for way in merges:
                    merges[way].append(merge[way])
                    appends[way].append(append[way])
        bench.verify()
    named = {f"merge of 1,000 random keys, {way}": seconds for way, seconds in merges.items()}
    _print("P5", {**named, **{f"append of 1,000 rows, {way}": seconds for way, seconds in appends.items()}})
    return {
        "ours_s": statistics.median(merges[DIRECT]),
        "append_s": statistics.median(appends[DIRECT]),
        "ours_min_s": min(merges[DIRECT]),
        "append_min_s": min(appends[DIRECT]),
        "merge_ratio": statistics.median(merges[MERGE]) / statistics.median(merges[DIRECT]),
        "append_ratio": statistics.median(appends[MERGE]) / statistics.median(appends[DIRECT]),
        "tracked_ratio": statistics.median(merges[TRACKED]) / statistics.median(merges[DIRECT]),
        "tracked_append_ratio": statistics.median(appends[TRACKED]) / statistics.median(appends[DIRECT]),
    }


def p6(rounds: int) -> dict[str, float | None]:
    """1,000 changes of recent and of random keys into 10,000,000 rows."""
    rows = 10_000_000
    seconds: dict[str, list[float]] = {"recent keys": [], "random keys": []}
    with _bench(rows, (DIRECT,)) as bench:
        for number in range(rounds + 2):
            for name, low in (("recent keys", rows - 20_000), ("random keys", 1)):
                key = f"{low} + (hashint8(i + {number * 1000}) & 2147483647) % {rows - low}"
                bench.sql(f"UPDATE t SET qty = qty + 1 WHERE id IN (SELECT {key} FROM generate_series(1, 1000) i)")
                bench.ingest()
                taken = bench.apply()[DIRECT]
                console.print(f"P6 {name}: {taken:.2f} s")
                if number >= 2:
                    seconds[name].append(taken)
        bench.verify()
    _print("P6", {f"1,000 {name} of 10,000,000 rows": found for name, found in seconds.items()})
    return {"ours_s": statistics.median(seconds["recent keys"]), "random_s": statistics.median(seconds["random keys"])}


def p7(rounds: int) -> dict[str, float | None]:
    """Fold and merge 1,000,000 changes into 10,000,000 rows: in this process, and on Spark's executors with
    what this process' memory grows by meanwhile.
    """
    rows, changes = 10_000_000, 1_000_000
    merges: dict[str, list[float]] = {way: [] for way in (DIRECT, DISTRIBUTED)}
    grown: dict[str, list[float]] = {way: [] for way in merges}
    with _bench(rows, tuple(merges)) as bench:
        random_changes(bench, 99, rows=rows)
        bench.ingest()
        console.print(f"P7 warm-up: {_shown(bench.apply())}")
        for number in range(rounds):
            low = rows + 1_000_000 * (number + 1)
            bench.sql(
                FILL.format(low=low, high=low + changes // 2 - 1),
                f"UPDATE t SET qty = qty + 1 WHERE id % 25 = {number} AND id <= {rows}",
                f"DELETE FROM t WHERE id % 100 = {50 + number} AND id <= {rows}",
            )
            bench.ingest()
            taken = bench.apply()
            for way in merges:
                merges[way].append(taken[way])
                grown[way].append(bench.grown[way])
            console.print(f"P7 round {number + 1}: {_shown(taken)}; memory grew by {_mebibytes(bench.grown)}")
        bench.verify()
    _print("P7", {f"fold and merge of 1,000,000 changes, {way}": found for way, found in merges.items()})
    return {
        "ours_s": statistics.median(merges[DIRECT]),
        "ours_min_s": min(merges[DIRECT]),
        "changes_per_s": changes / statistics.median(merges[DIRECT]),
        "distributed_s": statistics.median(merges[DISTRIBUTED]),
        "distributed_changes_per_s": changes / statistics.median(merges[DISTRIBUTED]),
        "distributed_memory_mb": max(grown[DISTRIBUTED]),
    }


@contextmanager
def _peak(grown: dict[str, float], way: str) -> Iterator[None]:
    """By how many MB the memory of this process grows at most, inside the block."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    yield
    grown[way] = (_status("VmHWM") - before) / 1024


def _status(name: str) -> int:
    """In kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


def _mebibytes(grown: Mapping[str, float]) -> str:
    return ", ".join(f"{way} {size:.0f} MB" for way, size in grown.items())


def _shown(seconds: Mapping[str, float]) -> str:
    return ", ".join(f"{way} {taken:.2f} s" for way, taken in seconds.items())


def _print(title: str, figures: dict[str, list[float]]) -> None:
    rows = ((name, f"{min(found):.2f}", f"{statistics.median(found):.2f}") for name, found in figures.items())
    show_table(title, ("work", "min s", "median s"), rows)

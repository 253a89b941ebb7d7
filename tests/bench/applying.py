"""P5 and P7: what one window costs on a warm session, from reading the spool to the commit with its
marker read back.

The whole path is real: the rows are copied and the changes streamed from a PostgreSQL server, and
the lake is compared with it by counts and sums.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession
from rich.table import Table as Printed

from sluice.contract.entries import Changes, Snapshot
from sluice.ingest.options import IngestOptions
from sluice.ingest.supervisor import Ingest
from sluice.manifest.reader import load_state, read_entries
from sluice.source.sessions import SourceOptions
from sluice.store.opening import open_store
from sluice_spark import session as sessions
from sluice_spark.lake.opening import Lake
from sluice_spark.modes.target import removals_are_sent
from sluice_spark.options import ApplyOptions
from sluice_spark.read.window import Window
from sluice_spark.table_apply import TableApply
from tests.bench.contest import console
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
WARM_UPS = 8
"""Windows until the JVM has compiled what a window runs: the cost of one falls from eleven seconds
to three on the way.
"""
SUMS = "SELECT count(*) AS rows, sum(id) AS ids, sum(qty) AS qty, sum(customer) AS customers FROM {table}"


class Bench:
    """A source, its spool, and one lake table on a warm session."""

    def __init__(self, server: PostgresServer, folder: Path, spark: SparkSession) -> None:
        self.server = server
        self.folder = folder
        self.store = open_store((folder / "spool").as_uri(), prefix="bench/", options={})
        self.options = ApplyOptions(
            "bench",
            (folder / "spool").as_uri(),
            (folder / "lake").as_uri(),
            spark_master="local[2]",
            driver_memory="4g",
        )
        self.session = spark.newSession()
        self.taken = 0

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

    def apply(self) -> float:
        """Seconds for everything new in the manifest, as one window of the table."""
        state = load_state(self.store)
        (table,) = state.tables.values()
        entries = [entry for entry, _ in read_entries(self.store, after_seq=self.taken)]
        self.taken = state.seq
        snapshots = [entry for entry in entries if isinstance(entry.body, Snapshot)]
        if snapshots:
            window = Window(snapshots[0].body.segments, table.generation_seq, is_snapshot=True)  # type: ignore[union-attr]
        else:
            segments = tuple(
                segment for entry in entries if isinstance(entry.body, Changes) for segment in entry.body.segments
            )
            window = Window(segments, state.seq)
        began = time.perf_counter()
        sent = removals_are_sent(state.opened, table)
        lake = Lake(self.options, self.store, before_commit=lambda: None)
        delta, handover = lake.table(table, self.session), lake.handover(self.session)
        TableApply(self.options, self.store, delta, handover, state=table, removals_sent=sent).apply(window)
        return time.perf_counter() - began

    def verify(self) -> None:
        with self.server.superuser() as connection:
            expected = connection.execute(SUMS.format(table="t").encode()).fetchone()
        path = self.folder / "lake" / "public" / "t"
        found = QueryBuilder().register("lake", DeltaTable(path)).execute(SUMS.format(table="lake")).read_all()
        row = tuple(int(found.column(index)[0].as_py()) for index in range(4))
        if row != tuple(int(value) for value in expected or ()):
            raise RuntimeError("the lake does not add up to the source")


@contextmanager
def _bench(rows: int) -> Iterator[Bench]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with temporary_server(settings=SETTINGS) as server, tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        spark = sessions.start(
            ApplyOptions("bench", folder.as_uri(), folder.as_uri(), spark_master="local[2]", driver_memory="4g")
        )
        try:
            bench = Bench(server, folder, spark)
            bench.sql(CREATE)
            for low in range(1, rows + 1, 1_000_000):
                bench.sql(FILL.format(low=low, high=min(low + 999_999, rows)))
            console.print(f"copying {rows:,} rows")
            bench.ingest()
            console.print(f"first load: {bench.apply():.1f} s")
            bench.verify()
            yield bench
        finally:
            spark.stop()


def _random_changes(bench: Bench, number: int, *, rows: int) -> None:
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
    """A warm MERGE of 1,000 random-key changes into 1,000,000 rows, and an append of 1,000 rows."""
    rows = 1_000_000
    merges: list[float] = []
    appends: list[float] = []
    with _bench(rows) as bench:
        for number in range(rounds + WARM_UPS):
            _random_changes(bench, number + 1, rows=rows)
            bench.ingest()
            merge = bench.apply()
            first = 10 * rows + number * 1000
            bench.sql(FILL.format(low=first, high=first + 999))
            bench.ingest()
            append = bench.apply()
            console.print(
                f"P5 {'round' if number >= WARM_UPS else 'warm-up'}: merge {merge:.2f} s, append {append:.2f} s"
            )
            if number >= WARM_UPS:
                merges.append(merge)
                appends.append(append)
        bench.verify()
    _print("P5", {"merge of 1,000 random keys": merges, "append of 1,000 rows": appends})
    return {
        "ours_s": statistics.median(merges),
        "append_s": statistics.median(appends),
        "ours_min_s": min(merges),
        "append_min_s": min(appends),
    }


def p7(rounds: int) -> dict[str, float | None]:
    """Fold and MERGE 1,000,000 changes into 10,000,000 rows."""
    rows, changes = 10_000_000, 1_000_000
    merges: list[float] = []
    with _bench(rows) as bench:
        _random_changes(bench, 99, rows=rows)
        bench.ingest()
        console.print(f"P7 warm-up: {bench.apply():.2f} s")
        for number in range(rounds):
            low = rows + 1_000_000 * (number + 1)
            bench.sql(
                FILL.format(low=low, high=low + changes // 2 - 1),
                f"UPDATE t SET qty = qty + 1 WHERE id % 25 = {number} AND id <= {rows}",
                f"DELETE FROM t WHERE id % 100 = {50 + number} AND id <= {rows}",
            )
            bench.ingest()
            merges.append(bench.apply())
            console.print(f"P7 round {number + 1}: {merges[-1]:.2f} s")
        bench.verify()
    _print("P7", {"fold and merge of 1,000,000 changes": merges})
    return {
        "ours_s": statistics.median(merges),
        "ours_min_s": min(merges),
        "changes_per_s": changes / statistics.median(merges),
    }


def _print(title: str, figures: dict[str, list[float]]) -> None:
    table = Printed(title=title)
    for heading in ("work", "min s", "median s"):
        table.add_column(heading)
    for name, seconds in figures.items():
        table.add_row(name, f"{min(seconds):.2f}", f"{statistics.median(seconds):.2f}")
    console.print(table)

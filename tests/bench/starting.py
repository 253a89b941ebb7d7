"""P10: how long a start takes until the first window is committed, with many tables that all have
changes to apply.

The spool is written by hand and the lake by the applier: one table is applied, the others are copies
of it with the markers of their own. Each start is a process of its own, and every window that it
committed is checked with a second engine. Then as many seconds as tables that the lake does not have yet need
to appear in it, made by Spark's jobs and by commits without one.
"""

import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import structlog
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from sluice.contract.entries import Changes, Snapshot
from sluice.contract.schema import TableSchema
from sluice.manifest import checkpoint
from sluice.manifest.reader import identity, load_state, read_entries
from sluice.manifest.targets import lake_tables
from sluice.manifest.values import TableState
from sluice.store.opening import open_store
from sluice_spark import session
from sluice_spark.applier import Applier
from sluice_spark.lake.commit_way import DIRECT, DISTRIBUTED
from sluice_spark.lake.opening import Lake, application_id
from sluice_spark.options import ApplyOptions
from sluice_spark.progress.ledger import Ledger
from sluice_spark.progress.reports import Reports
from sluice_spark.progress.restart import find_tables
from sluice_spark.read.window import Window
from sluice_spark.snapshot_apply import SnapshotApply
from sluice_spark.table_apply import TableApply
from sluice_spark.telemetry import ApplyTelemetry
from tests.bench.contest import console, said, show_table
from tests.spark.changes import INT4, TEXT, Change, Manifest, column, table_schema

NAME = "bench"
COUNTS = tuple(int(count) for count in os.environ.get("BENCH_P10_TABLES", "10 200 1000").split())
NEW = int(os.environ.get("BENCH_P10_NEW", "200"))
ROWS = 1000
TO_REACH = {10: 6.0, 200: 8.0, 1000: 10.0}


def options(folder: Path) -> ApplyOptions:
    return ApplyOptions(
        NAME,
        (folder / "spool").as_uri(),
        (folder / "lake").as_uri(),
        spark_master="local[2]",
        driver_memory="2g",
    )


def _schema(number: int) -> TableSchema:
    made = table_schema(
        column("id", 1, INT4, key=True), column("v", 2, INT4), column("note", 3, TEXT), table=f"t{number:04d}"
    )
    return replace(made, table_id=str(20_000 + number))


def _row(key: int) -> dict[str, object]:
    return {"id": key, "v": key, "note": f"note {key}"}


class Tables:
    """A spool and a lake of `count` tables, of which every one has a snapshot and one window."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.options = options(folder)
        self.store = open_store((folder / "spool").as_uri(), prefix=f"{NAME}/", options={})
        self.manifest = Manifest(self.store)
        self.schemas = [_schema(number) for number in range(count)]

    def begin(self) -> None:
        """The snapshots alone."""
        for schema in self.schemas:
            self.manifest.table(schema)
            self.manifest.snapshot([_row(key) for key in range(ROWS)], schema)
            self.manifest.table(schema, state="live", new=False)

    def make(self, spark: SparkSession) -> None:
        self.begin()
        self.change(v=-1)
        state = load_state(self.store)
        checkpoint.write(self.store, state)
        lake = Lake(self.options, self.store, before_commit=lambda: None)
        first, *others = lake_tables(state, self.options.targets_of).values()
        self._apply(lake, first, spark)
        for other in others:
            self._copy(first, other)
        self._report(lake, spark)
        self.change(v=-2)

    def change(self, *, v: int) -> None:
        """One entry that changes one row of every table."""
        self.manifest.entry([([Change("u", {**_row(7), "v": v})], schema) for schema in self.schemas])

    def _apply(self, lake: Lake, table: TableState, spark: SparkSession) -> None:
        bodies = [(entry.seq, entry.body) for entry, _ in read_entries(self.store, after_seq=0)]
        initial = next(body for _, body in bodies if isinstance(body, Snapshot) and body.table_id == table.table_id)
        changed, body = next((seq, body) for seq, body in bodies if isinstance(body, Changes))
        assert isinstance(body, Changes)
        segments = tuple(segment for segment in body.segments if segment.table_id == table.table_id)
        place = None
        for window in (
            Window(initial.segments, table.generation_seq, is_snapshot=True),
            Window(segments, changed),
        ):
            private = session.private(spark)
            target, handover = lake.table(table, private, place=place), lake.handover(private)
            snapshots = SnapshotApply(self.options, self.store, target, table)
            apply = TableApply(self.options, self.store, target, handover, snapshots, state=table, removals_sent=True)
            place = apply.apply(window).place

    def _copy(self, first: TableState, other: TableState) -> None:
        there = self.folder / "lake" / other.path
        shutil.copytree(self.folder / "lake" / first.path, there, ignore=shutil.ignore_patterns(".*"))
        ours, theirs = (application_id(NAME, state, manifest=identity(self.store)) for state in (first, other))
        for file in [*there.glob("_delta_log/*.json"), *there.glob("_delta_log/*.crc")]:
            file.write_text(file.read_text().replace(ours, theirs))

    def _report(self, lake: Lake, spark: SparkSession) -> None:
        """What an applier writes when it ends."""
        state = load_state(self.store)
        ledger = Ledger(self.options, state)
        ledger.begin(
            find_tables(
                ledger.state.tables,
                None,
                lake=lake,
                session=spark,
                telemetry=ApplyTelemetry(self.options),
            )
        )
        for entry, sha256 in read_entries(self.store, after_seq=ledger.read_seq):
            ledger.take_in(entry, sha256)
        Reports.of(self.options, self.store, lake, instance=NAME).log(ledger.report())


def _verified(folder: Path, schemas: Sequence[TableSchema], *, v: int) -> int:
    """Every table is as it was or has the last change, and one has it at least. How many have."""
    applied = 0
    for schema in schemas:
        if DeltaTable(folder / "lake" / "public" / schema.table_name).version() > 1:
            _require_sum(folder, schema, sum(range(ROWS)) - 7 + v)
            applied += 1
    if not applied:
        raise RuntimeError("P10: no window was committed")
    return applied


def p10(rounds: int) -> dict[str, float | None]:
    """From a running JVM to the first window committed: 10, 200 and 1,000 tables with changes."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    figures: dict[str, float | None] = {}
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as directory:
        made = {count: Tables(Path(directory) / str(count), count) for count in COUNTS}
        spark = session.start(options(Path(directory)))
        try:
            for tables in made.values():
                tables.make(spark)
            figures |= _new_tables(spark, Path(directory), rounds)
        finally:
            spark.stop()
        runs: dict[int, list[dict[str, float]]] = {count: [] for count in COUNTS}
        for _ in range(rounds):
            for count, tables in made.items():
                runs[count].append(_started(tables, Path(directory) / "once"))
        for count, found in runs.items():
            first = [run["first_s"] for run in found]
            figures |= {f"first_{count}_s": statistics.median(first), f"first_{count}_min_s": min(first)}
            figures[f"cpu_{count}_s"] = statistics.median(run["cpu_s"] for run in found)
            shown = (statistics.median(run["jvm_s"] for run in found), min(first), statistics.median(first))
            cells = (f"{value:.1f}" for value in (*shown, figures[f"cpu_{count}_s"]))
            rows.append((str(count), *cells, f"{TO_REACH.get(count, 10.0):.0f}"))
    show_table("P10", ("tables", "JVM up, s", "first window, min s", "median s", "CPU s", "to reach"), rows)
    return figures


def _started(tables: Tables, folder: Path) -> dict[str, float]:
    """A start in a copy, so that every one finds the same."""
    shutil.copytree(tables.folder, folder)
    try:
        run: dict[str, float] = said(sys.executable, "-m", "tests.bench.start_once", str(folder))
        applied = _verified(folder, tables.schemas, v=-2)
        console.print(
            f"P10 {len(tables.schemas)} tables: first window after {run['first_s']:.1f} s, {run['cpu_s']:.1f} s of "
            f"CPU (JVM up in {run['jvm_s']:.1f} s); {applied} tables applied when it was stopped"
        )
        return run
    finally:
        shutil.rmtree(folder)


def _new_tables(spark: SparkSession, folder: Path, rounds: int) -> dict[str, float | None]:
    """Seconds for each of NEW tables to appear, by the way that makes it."""
    found: dict[str, list[float]] = {DISTRIBUTED: [], DIRECT: []}
    for number in range(rounds + 1):
        for way, seconds in found.items():
            tables = Tables(folder / f"{way}-{number}", NEW)
            tables.begin()
            started = time.monotonic()
            Applier(replace(tables.options, way=way, once=True), tables.store, spark, stop=threading.Event()).run()
            taken = (time.monotonic() - started) / NEW
            for schema in tables.schemas:
                _require_sum(tables.folder, schema, sum(range(ROWS)))
            if number:  # the first round warms the JVM up
                seconds.append(taken)
    figures: dict[str, float | None] = {}
    for way, seconds in found.items():
        figures |= {f"new_{way}_s": statistics.median(seconds), f"new_{way}_min_s": min(seconds)}
        console.print(
            f"P10 {NEW} new tables, {way}: {statistics.median(seconds):.3f} s each, at least {min(seconds):.3f} s"
        )
    return figures


def _require_sum(folder: Path, schema: TableSchema, wanted: int) -> None:
    table = DeltaTable(folder / "lake" / "public" / schema.table_name)
    sums = QueryBuilder().register("t", table).execute("SELECT count(*) AS n, sum(v) AS v FROM t").read_all()
    if (sums["n"][0].as_py(), sums["v"][0].as_py()) != (ROWS, wanted):
        raise RuntimeError(f"P10: {schema.table_name} does not have the rows that were sent")

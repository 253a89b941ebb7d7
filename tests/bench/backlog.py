"""P16: a backlog of one table, with the next window prepared while one is committed and without, in
turns on one session.

The changes are written by hand into one spool, which every round applies to a lake of its own; each lake
is compared with the sums of the changes.
"""

import os
import shutil
import statistics
import threading
import time
from contextlib import ExitStack
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder

from sluice.contract import envelope
from sluice.contract.entries import Changes, Commits, Snapshot
from sluice_spark.applied_window import Applied
from sluice_spark.applier import Applier
from sluice_spark.progress.ledger import Ledger
from sluice_spark.progress.table_progress import Work
from tests.bench.applying import spark_session
from tests.bench.contest import console
from tests.bench.long_run import ITEMS
from tests.spark.changes import MAP, TS
from tests.spark.conftest import Pipeline

ROWS, CHANGES, WARM = 2_000_000, 200_000, 2


def p16(rounds: int) -> dict[str, float | None]:
    """Windows of 200,000 updates of random keys (P16_WINDOWS, 12) in 2,000,000 rows."""
    windows = int(os.environ.get("P16_WINDOWS", "12"))
    with spark_session() as (spark, folder):
        pipeline = Pipeline(spark, folder)
        pipeline.begin(ITEMS)
        size, total = _fill(pipeline, windows)
        seconds: dict[str, list[float]] = {"ahead": [], "one by one": []}
        for number in range(WARM + 2 * rounds):
            name = "ahead" if number % 2 else "one by one"
            wall, cpu = _apply(pipeline, size, ahead=name == "ahead")
            _verify(pipeline, windows, total)
            console.print(f"   {name}: {wall:.2f} s, {cpu:.2f} CPU s of Python, load {os.getloadavg()[0]:.1f}")
            if number >= WARM:
                seconds[name].append(wall)
    ahead, alone = (statistics.median(seconds[name]) for name in ("ahead", "one by one"))
    console.print(
        f"P16: {windows} windows in {ahead:.2f} s with the next one prepared, {alone:.2f} s without "
        f"({alone / ahead:.2f}x), {windows * CHANGES / ahead:,.0f} changes/s"
    )
    return {"ours_s": ahead, "one_by_one_s": alone, "ratio": alone / ahead}


def _fill(pipeline: Pipeline, windows: int) -> tuple[int, int]:
    """A second generation with the rows, and then an entry for each window. Returns how large one is,
    and the sum of the quantities in the end.
    """
    chance = np.random.default_rng(15)
    manifest = pipeline.manifest
    manifest.table(ITEMS, state="stale", reason="begins again", new=False)
    manifest.table(ITEMS, generation=2, new=False)
    rows = _rows(np.arange(ROWS), "i", manifest.lsn)
    segment = manifest.stored(rows, ITEMS, first_lsn=manifest.lsn, last_lsn=manifest.lsn)
    manifest.append(Snapshot(ITEMS.table_id, 2, 1, manifest.lsn, (segment,), True))
    manifest.table(ITEMS, state="live", generation=2, new=False)
    size, quantities = 0, np.full(ROWS, manifest.lsn)
    for _ in range(windows):
        end = manifest.lsn + 10
        ids = chance.choice(ROWS, CHANGES, replace=False)
        quantities[ids] = end
        changes = _rows(ids, "u", end)
        segment = manifest.stored(changes, ITEMS, first_lsn=end, last_lsn=end)
        size = max(size, segment.bytes)
        manifest.append(Changes((segment,), Commits([end], [end], [7])), through_lsn=end)
    return size, int(quantities.sum())


def _rows(ids: np.ndarray, op: str, lsn: int) -> pa.Table:
    count = len(ids)
    notes = pc.binary_join_element_wise("note", pa.array(ids).cast(pa.string()), str(lsn), " ")
    return pa.table(
        {
            "id": pa.array(ids),
            "qty": pa.array(np.full(count, lsn, dtype=np.int32)),
            "note": notes,
            envelope.OP: pa.array([op] * count),
            envelope.LSN: pa.array(np.full(count, lsn)),
            envelope.TS: pa.array(np.full(count, lsn)).cast(TS),
            envelope.ORDINAL: pa.array(np.arange(count)),
            envelope.XID: pa.array(np.full(count, 7)),
            envelope.UNCHANGED: pa.nulls(count, pa.list_(pa.int16())),
            envelope.OLD: pa.nulls(count, pa.struct([("id", pa.int64())])),
            envelope.SPECIAL: pa.nulls(count, MAP),
            envelope.OLD_SPECIAL: pa.nulls(count, MAP),
        }
    )


def _apply(pipeline: Pipeline, size: int, *, ahead: bool) -> tuple[float, float]:
    """Seconds, and CPU seconds of this process without the JVM, from an empty lake to its end."""
    shutil.rmtree(pipeline.folder / "lake", ignore_errors=True)
    for key in list(pipeline.store.list("apply/")):
        pipeline.store.delete(key)
    options = pipeline.options(max_window_bytes=size, way="direct", workers=2)
    # The snapshot is not what is measured: it is applied before the clock starts.
    begun = threading.Event()
    begin = Ledger.applied

    def applied(ledger: Ledger, work: Work, result: Applied, *, seconds: float) -> None:
        begin(ledger, work, result, seconds=seconds)
        if work.window.is_snapshot and not begun.is_set():
            begun.set()
            started.extend((time.perf_counter(), time.process_time()))

    started: list[float] = []
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(Ledger, "applied", applied))
        if not ahead:
            patches.enter_context(mock.patch.object(Ledger, "following", return_value=None))
        Applier(options, pipeline.store, pipeline.spark, stop=threading.Event()).run()
    wall, cpu = time.perf_counter() - started[0], time.process_time() - started[1]
    return wall, cpu


def _verify(pipeline: Pipeline, windows: int, total: int) -> None:
    """With a second engine."""
    lake = DeltaTable(pipeline.path())
    sums = "SELECT count(*) AS rows, count(DISTINCT id) AS ids, sum(qty) AS quantity FROM lake"
    found = QueryBuilder().register("lake", lake).execute(sums).read_all()
    if [int(found.column(place)[0].as_py()) for place in range(3)] != [ROWS, ROWS, total]:
        raise RuntimeError("the lake does not add up to the source")
    if lake.version() < windows:
        raise RuntimeError("the backlog was not applied window by window")

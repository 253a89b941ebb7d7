"""P11: whether a window costs the same after thousands of windows: data files, vectors and log entries
must not pile up.

The changes are written by hand into a spool, the windows are applied as a running applier applies them, and
the table is compared with a model of it in the end.
"""

import os
import random
import statistics
import tempfile
import time
from pathlib import Path

import structlog
from deltalake import DeltaTable

from sluice_spark import session as sessions
from sluice_spark.options import ApplyOptions
from tests.bench.contest import console
from tests.spark.changes import INT4, INT8, TEXT, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.spark.windows import Windows

ITEMS = table_schema(column("id", 1, INT8, key=True), column("qty", 2, INT4), column("note", 3, TEXT))
ROWS, CHANGES, GROUP = 200_000, 100, 100


def p11(_rounds: int) -> dict[str, float | None]:
    """A window of 100 changes after 2,000 windows (P11_WINDOWS) against the first hundred."""
    count = int(os.environ.get("P11_WINDOWS", "2000"))
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    chance = random.Random(11)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        options = ApplyOptions("bench", folder.as_uri(), folder.as_uri(), spark_master="local[2]", driver_memory="3g")
        spark = sessions.start(options)
        try:
            pipeline = Pipeline(spark, folder)
            quantities = dict.fromkeys(range(ROWS), 0)
            first: list[dict[str, object]] = [{"id": key, "qty": 0, "note": f"note {key}"} for key in quantities]
            pipeline.begin(ITEMS, *first)
            windows = Windows(pipeline)
            windows.apply()
            seconds = [_window(windows, quantities, chance) for _ in range(GROUP + count)]
            table = DeltaTable(pipeline.path())
            files, log = len(table.file_uris()), len(list((pipeline.path() / "_delta_log").iterdir()))
            total = sum(row["qty"] for row in pipeline.rows())  # type: ignore[misc]
            if total != sum(quantities.values()):
                raise RuntimeError("the lake does not add up to the source")
        finally:
            spark.stop()
    # The JVM is cold in the first windows of all.
    early, late = seconds[GROUP // 2 : GROUP + GROUP // 2], seconds[-GROUP:]
    ratio = statistics.median(late) / statistics.median(early)
    console.print(
        f"P11: median {statistics.median(early):.3f} s early, {statistics.median(late):.3f} s after {count} windows "
        f"({ratio:.2f}x), slowest {max(late):.2f} s; {files} data files, {log} files in the log"
    )
    return {"early_s": statistics.median(early), "ours_s": statistics.median(late), "ratio": ratio, "files": files}


def _window(windows: Windows, quantities: dict[int, int], chance: random.Random) -> float:
    changes = []
    for key in chance.sample(range(ROWS), CHANGES):
        quantities[key] += 1
        changes.append(Change("u", {"id": key, "qty": quantities[key], "note": f"note {key}"}))
    windows.pipeline.manifest.transaction(changes, ITEMS)
    began = time.perf_counter()
    windows.apply()
    return time.perf_counter() - began

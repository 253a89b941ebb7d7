"""P11: whether a window costs the same after thousands of windows: data files, vectors and log entries
must not pile up. P11_WAY=merge does the same with statements of Spark, whose small files and vectors maintenance
puts in order (P11_MAINTAINED=0: nobody does).

The changes are written by hand into a spool, the windows are applied as a running applier applies them, and
the table is compared with a model of it in the end.
"""

import os
import random
import statistics
import time
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from sluice_spark.lake.layout import CHECKPOINT_VERSIONS
from sluice_spark.lake.log_upkeep import SETTINGS as LOG_SETTINGS
from sluice_spark.maintenance.planner import DIRECT_VERSIONS, VERSIONS, Turn
from sluice_spark.maintenance.tasks import SETTINGS, Call, TableTurn
from sluice_spark.session import private
from tests.bench.applying import spark_session
from tests.bench.contest import console, cpu_seconds_of
from tests.spark.changes import INT4, INT8, TEXT, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.spark.windows import Windows

ITEMS = table_schema(column("id", 1, INT8, key=True), column("qty", 2, INT4), column("note", 3, TEXT))
ROWS, CHANGES = 200_000, 100


def p11(_rounds: int) -> dict[str, float | None]:
    """A window of 100 changes after 2,000 windows (P11_WINDOWS; 100 in the way merge) against the first hundred
    (20 in the way merge).
    """
    way = os.environ.get("P11_WAY", "auto")
    group, usual = (20, "100") if way == "merge" else (100, "2000")
    count = int(os.environ.get("P11_WINDOWS", usual))
    chance = random.Random(11)
    with spark_session() as (spark, folder):
        pipeline = Pipeline(spark, folder)
        quantities = dict.fromkeys(range(ROWS), 0)
        first: list[dict[str, object]] = [{"id": key, "qty": 0, "note": f"note {key}"} for key in quantities]
        pipeline.begin(ITEMS, *first)
        windows = Windows(pipeline, way=way)
        windows.apply()
        costs, maintained = [], []
        upkeep = Upkeep(windows) if os.environ.get("P11_MAINTAINED", "1") == "1" else None
        for _ in range(group + count):
            costs.append(_window(windows, quantities, chance, jvm_pid(spark)))
            if upkeep is not None:
                maintained.append(upkeep.turn())
        table = DeltaTable(pipeline.path())
        files, log = len(table.file_uris()), len(list((pipeline.path() / "_delta_log").iterdir()))
        total = sum(row["qty"] for row in pipeline.rows())
        if total != sum(quantities.values()):
            raise RuntimeError("the lake does not add up to the source")
    # The JVM is cold in the first windows of all.
    early, late = costs[group // 2 : group + group // 2], costs[-group:]
    before, after = (statistics.median(cost["seconds"] for cost in part) for part in (early, late))
    windows_s = sum(cost["seconds"] for cost in costs)
    console.print(
        f"P11: median {before:.3f} s early, {after:.3f} s after {count} windows ({after / before:.2f}x), "
        f"slowest {max(cost['seconds'] for cost in late):.2f} s; {files} data files, {log} files in the log; "
        f"{sum(maintained):.1f} s of maintenance beside {windows_s:.1f} s of windows"
    )
    for name in late[0]:
        found = [[cost.get(name, 0.0) * 1000 for cost in part] for part in (early, late)]
        middle, means = [statistics.median(part) for part in found], [statistics.fmean(part) for part in found]
        console.print(
            f"   {name}, ms: median {middle[0]:.1f} early, {middle[1]:.1f} late; mean {means[0]:.1f} and {means[1]:.1f}"
        )
    return {"early_s": before, "ours_s": after, "ratio": after / before, "files": files}


def jvm_pid(spark: SparkSession) -> int:
    """The process of its JVM."""
    java: Any = spark._jvm
    return int(java.java.lang.ProcessHandle.current().pid())


class Upkeep:
    """Puts the files of the table in order, and writes its checkpoints, as often as a running applier does."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._session = private(windows.pipeline.spark)
        for name, value in {**SETTINGS, **LOG_SETTINGS}.items():
            self._session.conf.set(name, value)
        self._tidied = self._checkpoint = 0

    def turn(self) -> float:
        """Seconds that it took."""
        windows, began = self._windows, time.perf_counter()
        direct = windows.options.way != "merge"
        (state,) = windows.state.tables.values()
        if windows.place.version - self._checkpoint >= CHECKPOINT_VERSIONS:
            log = windows.lake.log_upkeep(state, self._session)
            log.name(log.write(windows.place.version))
            self._checkpoint = windows.place.version
        if windows.place.version - self._tidied < (DIRECT_VERSIONS if direct else VERSIONS):
            return time.perf_counter() - began
        lake = windows.lake.table(state, self._session, place=windows.place)
        turn = TableTurn(lake, Call(self._session), before_commit=lambda: None, others=())
        done = turn.run(Turn.TIDY, retention_seconds=0.0)
        windows.place, self._tidied = done.place, done.place.version
        return time.perf_counter() - began


def _window(windows: Windows, quantities: dict[int, int], chance: random.Random, jvm: int) -> dict[str, float]:
    """What one window took: seconds, CPU seconds of both processes, seconds by phase."""
    changes = []
    for key in chance.sample(range(ROWS), CHANGES):
        quantities[key] += 1
        changes.append(Change("u", {"id": key, "qty": quantities[key], "note": f"note {key}"}))
    windows.pipeline.manifest.transaction(changes, ITEMS)
    began, cpu, java = time.perf_counter(), time.process_time(), cpu_seconds_of(jvm)
    applied = windows.apply()
    return {
        "seconds": time.perf_counter() - began,
        "CPU of Python": time.process_time() - cpu,
        "CPU of the JVM": cpu_seconds_of(jvm) - java,
        **applied.seconds,
    }

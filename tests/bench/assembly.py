"""P12: Sluice's applier beside the usual assembly: change files, a stream of Spark that reads them, and a
MERGE for each of its batches.

Both get the same changes at the same pace, on the same session, one after the other, alternating. A change
is visible when the commit that holds it is in the table's log. CPU is that of the JVM and of Python, without the
thread that makes the changes and looks for their commits.
"""

import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

from tests.bench.applying import spark_session
from tests.bench.contest import console, cpu_seconds_of
from tests.bench.long_run import ITEMS
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline, running
from tests.spark.lake import rows_in

ROWS, CHANGES = 200_000, 500
Visible = dict[int, float]
"""By number of the change file or entry: when it could be read, unix seconds."""


def p12(rounds: int) -> dict[str, float | None]:
    """500 changes a second for P12_SECONDS=60: freshness and CPU against change files and foreachBatch MERGE."""
    seconds = int(os.environ.get("P12_SECONDS", "60"))
    freshness: dict[str, list[float]] = {"ours": [], "assembly": []}
    cpu: dict[str, list[float]] = {"ours": [], "assembly": []}
    with spark_session() as (spark, folder):
        for number in range(rounds):
            for name, contestant in (("ours", _ours), ("assembly", _assembly)):
                place = folder / f"{name}-{number}"
                place.mkdir()
                late, used = contestant(spark, place, seconds)
                median = statistics.median(late)
                each = used * 1e6 / (seconds * CHANGES)
                console.print(f"P12 {name}: visible after {median:.2f} s (median), {each:.0f} µs of CPU a change")
                if number:
                    # The first round of each warms the JVM up.
                    freshness[name].append(median)
                    cpu[name].append(used)
    ours, theirs = statistics.median(freshness["ours"]), statistics.median(freshness["assembly"])
    cpu_ratio = statistics.median(cpu["assembly"]) / statistics.median(cpu["ours"])
    console.print(f"P12: {theirs / ours:.1f}x fresher, {cpu_ratio:.1f}x less CPU")
    return {"ours_s": ours, "assembly_s": theirs, "fresher": theirs / ours, "cpu_ratio": cpu_ratio}


def cpu_seconds(spark: SparkSession) -> float:
    """Seconds of CPU that this process and its JVM have used, without this thread."""
    gateway: Any = spark.sparkContext._gateway
    return cpu_seconds_of(gateway.proc.pid) + time.process_time() - time.thread_time()


def _changes(number: int) -> list[tuple[int, int]]:
    """(key, new quantity) of the changes in one second."""
    return [((number * 7919 + place * 104_729) % ROWS, number) for place in range(CHANGES)]


def _paced(seconds: int, send: Callable[[int], None]) -> Visible:
    """Calls `send` once a second; when each call ended."""
    sent: Visible = {}
    begin = time.monotonic()
    for number in range(1, seconds + 1):
        threading.Event().wait(max(0.0, begin + number - time.monotonic()))
        send(number)
        sent[number] = time.time()
    return sent


def _ours(spark: SparkSession, folder: Path, seconds: int) -> tuple[list[float], float]:
    pipeline = Pipeline(spark, folder)
    first: list[dict[str, object]] = [{"id": key, "qty": 0, "note": f"note {key}"} for key in range(ROWS)]
    pipeline.begin(ITEMS, *first)
    pipeline.apply()
    seqs: dict[int, int] = {}

    def send(number: int) -> None:
        rows = [Change("u", {"id": key, "qty": qty, "note": f"note {key}"}) for key, qty in _changes(number)]
        seqs[number] = pipeline.manifest.transaction(rows, ITEMS)

    began = cpu_seconds(spark)
    with running(pipeline):
        sent = _paced(seconds, send)
        commits = _until(lambda: _commits(pipeline.path()), last=seqs[seconds])
    used = cpu_seconds(spark) - began
    _verify(rows_in(pipeline.path()), seconds)
    return [_first_with(commits, seqs[number]) - sent[number] for number in sent], used


def _assembly(spark: SparkSession, folder: Path, seconds: int) -> tuple[list[float], float]:
    lake, source = folder / "lake", folder / "source"
    source.mkdir()
    keys = pa.array(range(ROWS), pa.int64())
    notes = pa.array([f"note {key}" for key in range(ROWS)])
    start = folder / "start.parquet"
    pq.write_table(pa.table({"id": keys, "qty": pa.array([0] * ROWS, pa.int32()), "note": notes}), start)
    spark.read.parquet(str(start)).write.format("delta").option("delta.enableDeletionVectors", "true").save(str(lake))

    def send(number: int) -> None:
        rows = _changes(number)
        table = pa.table(
            {
                "op": pa.array(["u"] * len(rows)),
                "id": pa.array([key for key, _ in rows], pa.int64()),
                "qty": pa.array([qty for _, qty in rows], pa.int32()),
                "note": pa.array([f"note {key}" for key, _ in rows]),
                "lsn": pa.array([number] * len(rows), pa.int64()),
            }
        )
        pq.write_table(table, folder / "next.parquet")
        (folder / "next.parquet").rename(source / f"{number:06}.parquet")

    began = cpu_seconds(spark)
    with _stream(spark, source, lake, folder / "checkpoint"):
        sent = _paced(seconds, send)
        commits = _until(lambda: _commits(lake), last=seconds)
    used = cpu_seconds(spark) - began
    _verify(rows_in(lake), seconds)
    return [_first_with(commits, number) - sent[number] for number in sent], used


@contextmanager
def _stream(spark: SparkSession, source: Path, lake: Path, checkpoint: Path) -> Iterator[None]:
    def merge(batch: DataFrame, _number: int) -> None:
        newest = Window.partitionBy("id").orderBy(sql.desc("lsn"))
        latest = batch.withColumn("n", sql.row_number().over(newest)).where("n = 1").drop("n")
        session = batch.sparkSession
        (through,) = batch.agg(sql.max("lsn")).collect()[0]
        latest.createOrReplaceTempView("changes")
        session.conf.set("spark.databricks.delta.commitInfo.userMetadata", json.dumps({"through": through}))
        session.sql(
            f"MERGE INTO delta.`{lake}` t USING changes s ON t.id = s.id WHEN MATCHED AND s.op = 'd' THEN DELETE "
            "WHEN MATCHED THEN UPDATE SET t.qty = s.qty, t.note = s.note "
            "WHEN NOT MATCHED THEN INSERT (id, qty, note) VALUES (s.id, s.qty, s.note)"
        )

    stream = (
        spark.readStream.schema("op string, id bigint, qty int, note string, lsn bigint")
        .parquet(str(source))
        .writeStream.foreachBatch(merge)
        .option("checkpointLocation", str(checkpoint))
        .start()
    )
    try:
        yield
    finally:
        stream.stop()


def _commits(lake: Path) -> list[tuple[int, float]]:
    """(through which entry or file, when) for each commit of the lake's log."""
    found = []
    for path in sorted((lake / "_delta_log").glob("*.json")):
        through, at = 0, 0.0
        for line in path.read_text().splitlines():
            action = json.loads(line)
            if "commitInfo" in action:
                at = action["commitInfo"]["timestamp"] / 1000
                through = max(through, json.loads(action["commitInfo"].get("userMetadata") or "{}").get("through") or 0)
            elif "txn" in action:
                through = max(through, action["txn"]["version"])
        found.append((through, max(at, path.stat().st_mtime)))
    return found


def _until(commits: Callable[[], list[tuple[int, float]]], *, last: int) -> list[tuple[int, float]]:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        found = commits()
        if any(through >= last for through, _ in found):
            return found
        threading.Event().wait(0.2)
    raise RuntimeError("the lake does not catch up")


def _first_with(commits: list[tuple[int, float]], number: int) -> float:
    return min(at for through, at in commits if through >= number)


def _verify(rows: list[dict[str, Any]], seconds: int) -> None:
    expected = {key: qty for number in range(1, seconds + 1) for key, qty in _changes(number)}
    if {row["id"]: row["qty"] for row in rows if row["qty"]} != expected:
        raise RuntimeError("the lake is not what the changes make of it")

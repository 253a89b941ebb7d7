"""P13: `sluice verify` of a large table as a user runs it, Spark's start included: equal, and with one
changed, one missing and one extra row.
"""

import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from sluice.manifest.reader import identity, load_state
from sluice.store.opening import open_store
from sluice_spark import session as sessions
from sluice_spark.lake.foreign_commits import tag
from sluice_spark.lake.opening import application_id
from sluice_spark.options import ApplyOptions
from tests.bench.applying import CREATE, FILL
from tests.bench.contest import console
from tests.bench.replication import SETTINGS
from tools.local.postgres import temporary_server
from tools.local.sluice import Pipeline

ROWS = int(os.environ.get("P13_ROWS", "10000000"))
_CHANGED, _MISSING, _EXTRA = 17, ROWS // 2, 3 * ROWS


def p13(rounds: int) -> dict[str, float | None]:
    """Verify 10,000,000 rows (`P13_ROWS`): equal tables, and tables that differ in three rows."""
    equal, different = [], []
    with temporary_server(settings=SETTINGS) as server, tempfile.TemporaryDirectory() as directory:
        settings: dict[str, dict[str, Any]] = {"source": {"tables": ["public.*"]}, "apply": {"driver_memory": "2GiB"}}
        pipeline = Pipeline(Path(directory), name="bench", dsn=server.dsn(), settings=settings)
        with server.superuser() as connection:
            connection.execute(CREATE.encode())
            for low in range(1, ROWS + 1, 1_000_000):
                connection.execute(FILL.format(low=low, high=min(low + 999_999, ROWS)).encode())
        _done(pipeline, "run", "--until-caught-up")
        _done(pipeline, "apply", "--once")
        console.print(f"{ROWS:,} rows in the lake")
        with pipeline.start("run"):
            for number in range(rounds):
                equal.append(_verified(pipeline, status=0)[0])
                console.print(f"P13 round {number + 1}: equal in {equal[-1]:.1f} s")
            _damage(pipeline)
            for number in range(rounds):
                seconds, table = _verified(pipeline, status=4)
                different.append(seconds)
                console.print(f"P13 round {number + 1}: three rows found in {seconds:.1f} s")
                found = {name: table[name] for name in ("changed", "missing", "extra")}
                wanted = {"changed": _CHANGED, "missing": _MISSING, "extra": _EXTRA}
                if found != {name: [{"id": str(key)}] for name, key in wanted.items()}:
                    raise RuntimeError("verify did not find the three rows")
    return {"ours_s": statistics.median(equal), "different_s": statistics.median(different)}


def _done(pipeline: Pipeline, *arguments: str) -> None:
    done = pipeline.run(*arguments, timeout=3600)
    if done.returncode:
        raise RuntimeError(f"sluice {arguments[0]} ended with {done.returncode}: {done.stderr[-2000:]}")


def _verified(pipeline: Pipeline, *, status: int) -> tuple[float, dict[str, Any]]:
    began = time.monotonic()
    done = pipeline.run("verify", "-o", "json", timeout=3600)
    took = time.monotonic() - began
    if done.returncode != status:
        raise RuntimeError(f"sluice verify ended with {done.returncode}: {done.stderr[-2000:]}")
    table: dict[str, Any] = json.loads(done.stdout)["tables"][0]
    return took, table


def _damage(pipeline: Pipeline) -> None:
    """One row other, one gone, one more, in commits that claim to be the applier's."""
    store = open_store(pipeline.spool_uri, prefix="bench/", options={})
    (state,) = load_state(store).tables.values()
    path = pipeline.directory / "lake" / "public" / "t"
    spark = sessions.start(
        ApplyOptions("bench", pipeline.spool_uri, pipeline.lake_uri, spark_master="local[2]", driver_memory="2g")
    )
    try:
        mark = tag(application_id("bench", state, manifest=identity(store)), after=0)
        spark.conf.set("spark.databricks.delta.commitInfo.userMetadata", mark)
        table = f"delta.`{path}`"
        spark.sql(f"UPDATE {table} SET qty = qty + 1 WHERE id = {_CHANGED}")
        spark.sql(f"DELETE FROM {table} WHERE id = {_MISSING}")
        frame = spark.sql(f"SELECT * FROM {table} WHERE id = 1")
        others = [f"`{name}`" for name in frame.columns if name != "id"]
        extra = frame.selectExpr(f"CAST({_EXTRA} AS BIGINT) AS id", *others)
        extra.write.format("delta").mode("append").save(str(path))
    finally:
        spark.stop()

"""The applier with a cluster of Spark's own, YARN or Kubernetes: executors are other processes with another
environment, and they die, are slow, or lack something.
"""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from sluice.contract.chunks import ENDLESS
from sluice.contract.schema import TableSchema
from sluice.store.base import ObjectStore
from sluice.store.opening import open_store
from sluice_spark.lake.build import PREFIX
from sluice_spark.lake.commit_way import DISTRIBUTED
from sluice_spark.options import AUTO, ApplyOptions
from tests.chaos import nemesis
from tests.spark.changes import Change, Manifest
from tests.spark.model import SCHEMA, by_key, named, row
from tests.spark.processes import Run, run_applier
from tests.support.extent import slow
from tests.support.kubernetes_cluster import kubernetes_cluster
from tests.support.spark_cluster import SparkCluster, executor_of, spark_cluster
from tests.support.yarn_cluster import yarn_cluster
from tools.local.s3 import running_s3

pytestmark = pytest.mark.timeout(600)
CHUNKED, OTHER, IN_PARTS = named("chunked"), named("other", "16387"), named("in_parts", "16388")
KEYS = 60
Rows = dict[object, dict[str, Any]]
POINTS = ("snapshot", "joined", "cut", "folded", "marked", "finished", "appended")
AS_CHANGELOG = {"public.chunked": {"targets": [{"kind": "changelog"}]}}
"""Chunks of a mirror are not joined: they are applied one by one."""
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.task.duration.threshold": "3s",
}


CLUSTERS = {"standalone": spark_cluster, "yarn": yarn_cluster, "kubernetes": kubernetes_cluster}


@pytest.fixture(scope="module", params=CLUSTERS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    kind: str = request.param
    folder = tmp_path_factory.mktemp(kind)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HADOOP_CONF_DIR", str(folder / "conf"))
        with CLUSTERS[kind](folder) as running:
            yield running


def _row(key: int, v: int = 0, big: str = "B") -> dict[str, Any]:
    return row(key, v, f"{big}{key}")


@dataclass(frozen=True)
class Shared:
    """All that the applier and the executors have in common."""

    cluster: SparkCluster
    uri: str
    secrets: dict[str, str]

    @property
    def store(self) -> ObjectStore:
        return open_store(f"{self.uri}/spool", prefix="shop/", options=self.secrets)

    def options(self, conf: dict[str, str], **changed: Any) -> ApplyOptions:
        values: dict[str, Any] = {
            "spool_options": self.secrets,
            "lake_options": self.secrets,
            "spark_master": self.cluster.url,
            "spark_conf": self.cluster.conf(**conf),
            "driver_memory": "1g",
            "once": True,
            "workers": 1,
            "poll_seconds": 0.05,
            "freshness_seconds": 0.0,
            "max_window_bytes": 1,
            "way": DISTRIBUTED,
            **changed,
        }
        return ApplyOptions("shop", f"{self.uri}/spool", f"{self.uri}/lake", **values)

    def table(self, name: str = "items") -> DeltaTable:
        return DeltaTable(f"{self.uri}/lake/public/{name}", storage_options=self.secrets)

    def rows(self, name: str = "items") -> Rows:
        """By key. It scans, as an engine of its own."""
        found = pa.table(QueryBuilder().register("lake", self.table(name)).execute("select * from lake").read_all())
        return by_key([{column: one[column] for column in ("id", "v", "big", "at")} for one in found.to_pylist()])


@pytest.fixture
def shared(cluster: SparkCluster, tmp_path: Path) -> Shared:
    """A folder of this machine."""
    return Shared(cluster, f"file://{tmp_path}", {})


def _begin(manifest: Manifest, schema: TableSchema = SCHEMA) -> None:
    manifest.table(schema)
    manifest.snapshot([_row(key) for key in range(KEYS)], schema)
    manifest.table(schema, state="live", new=False)


def _changes(manifest: Manifest, schema: TableSchema = SCHEMA) -> Rows:
    """Two windows: one that keeps values of the lake, moves and removes rows, and one of new rows. Returns
    the table after them.
    """
    kept = [Change("u", {"id": key, "v": 1}, unchanged=("big", "at")) for key in range(20)]
    moved = [Change("u", {"id": key + 100, "v": 2}, old={"id": key}, unchanged=("big", "at")) for key in range(20, 30)]
    gone = [Change("d", old={"id": key}) for key in range(30, 40)]
    manifest.transaction([*kept, *moved, *gone], schema)
    manifest.transaction([Change("i", _row(key, 3, "new")) for key in range(200, 240)], schema)
    expected: Rows = {key: _row(key) for key in range(40, KEYS)}
    expected.update((key, _row(key, 1)) for key in range(20))
    expected.update((key + 100, {**_row(key, 2), "id": key + 100}) for key in range(20, 30))
    expected.update((key, _row(key, 3, "new")) for key in range(200, 240))
    return expected


def _chunks(manifest: Manifest, schema: TableSchema) -> Rows:
    """A table whose snapshot was read at two moments, with changes between them. Returns the table."""
    manifest.table(schema)
    manifest.chunk([_row(key) for key in range(30)], schema, (0, 8))
    manifest.transaction([Change("u", _row(key, 1)) for key in range(10)], schema)
    manifest.chunk([_row(key) for key in range(30, KEYS)], schema, (8, ENDLESS))
    manifest.finish(schema)
    manifest.table(schema, state="live", new=False)
    return {key: _row(key, 1 if key < 10 else 0) for key in range(KEYS)}


def _every_phase(shared: Shared) -> dict[str, Rows]:
    """What brings executors to every point; the tables after it, by name."""
    manifest = Manifest(shared.store)
    _begin(manifest)
    expected = {"chunked": _chunks(manifest, CHUNKED), "in_parts": _chunks(manifest, IN_PARTS)}
    return {**expected, "items": _changes(manifest)}


@slow
def test_executors_that_share_only_a_store_make_an_equal_table(cluster: SparkCluster) -> None:
    with running_s3(buckets=("shared",)) as s3:
        shared = Shared(cluster, "s3://shared", s3.options())
        manifest = Manifest(shared.store)
        _begin(manifest)
        expected = {"in_parts": _chunks(manifest, IN_PARTS), "items": _changes(manifest)}
        run = run_applier(shared.options({}))
        assert run.code == 0, run.output
        assert run.output.count("way=distributed") == 2
        assert {name: shared.rows(name) for name in expected} == expected
        assert all(PREFIX in path for path in shared.table("in_parts").file_uris())


@slow
def test_executors_run_a_python_with_sluice_that_came_as_an_archive(shared: Shared, tmp_path: Path) -> None:
    archive = Path(shutil.make_archive(str(tmp_path / "environment"), "gztar", shared.cluster.python.parents[1]))
    manifest = Manifest(shared.store)
    _begin(manifest)
    expected = _changes(manifest)
    conf = {"spark.archives": f"{archive.as_uri()}#environment", "spark.pyspark.python": "./environment/bin/python"}
    run = run_applier(shared.options(conf))
    assert run.code == 0, run.output
    assert run.output.count("way=distributed") == 2
    assert shared.rows() == expected


def _faults(folder: Path, action: str) -> str:
    return ",".join(f"apply.distributed.{point}={action.format(folder / point)}" for point in POINTS)


def _run_and_strike(options: ApplyOptions, folder: Path, strike: Callable[[int], None]) -> Run:
    """Runs the applier. What passes a point first is stricken there, and goes on if it still can."""
    waiting = [folder / point for point in POINTS]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_applier, options)
        while not running.done():
            for said in [path for path in waiting if path.exists() and path.read_bytes()]:
                strike(int(said.read_bytes()))
                waiting.remove(said)
                said.with_suffix(".gate").touch()
            time.sleep(0.02)
    for point in POINTS:
        (folder / f"{point}.gate").touch()
    assert not waiting, f"never passed: {waiting}\n{running.result().output[-6000:]}"
    return running.result()


def _kill_executor(python: int) -> None:
    os.kill(executor_of(python), signal.SIGKILL)


def _kill_python(python: int) -> None:
    os.kill(python, signal.SIGKILL)


def _assert_each_row_once(shared: Shared, run: Run, expected: dict[str, Rows]) -> None:
    assert "window failed" not in run.output, "Spark tries a task again, and the window need not be"
    assert run.code == 0, run.output
    assert {name: shared.rows(name) for name in expected} == expected
    # The accounts are those of the attempts that were committed.
    assert all(f"rows={count} " in run.output for count in (KEYS, 40)), run.output
    table = shared.table()
    (window,) = (item["operationMetrics"] for item in table.history() if item["operation"] == "MERGE")
    assert int(window["numTargetRowsInserted"]) - int(window["numTargetRowsDeleted"]) == -10
    # What no version names is what another engine would collect.
    folder = Path(shared.uri.removeprefix("file://")) / "lake/public/items"
    named = {Path(path).name for path in table.file_uris()}
    left = {path.name for path in folder.rglob("part-*.parquet")}
    assert named <= left
    unused = table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=True, full=True)
    assert left - named <= {Path(path).name for path in unused}
    assert list(shared.store.list("apply/scratch/")) == []


def test_every_point_of_the_executors_is_one_where_they_are_killed() -> None:
    found = nemesis.points("spark_jobs/sluice_spark")
    assert sorted(point for point in found if point.startswith("apply.distributed.")) == sorted(
        f"apply.distributed.{point}" for point in POINTS
    )


@pytest.mark.parametrize("strike", [_kill_python, _kill_executor], ids=["python", "executor"])
@slow
def test_executors_killed_in_every_phase_lose_and_double_nothing(
    shared: Shared, tmp_path: Path, strike: Callable[[int], None]
) -> None:
    expected = _every_phase(shared)
    armed = _faults(tmp_path, "first:{0}+hold:{0}.gate")
    options = shared.options({"spark.executorEnv.SLUICE_FAULTS": armed}, tables=AS_CHANGELOG)
    run = _run_and_strike(options, tmp_path, strike)
    _assert_each_row_once(shared, run, expected)


@slow
def test_an_attempt_that_is_overtaken_in_every_phase_leaves_nothing_in_the_table(
    shared: Shared, tmp_path: Path
) -> None:
    expected = _every_phase(shared)
    armed = _faults(tmp_path, "first:{0}+hold:{0}.never")
    conf = {**SPECULATION, "spark.executorEnv.SLUICE_FAULTS": armed}
    run = _run_and_strike(shared.options(conf, tables=AS_CHANGELOG), tmp_path, lambda _: None)
    _assert_each_row_once(shared, run, expected)


@slow
def test_a_table_whose_tasks_always_die_is_quarantined_by_name_and_others_go_on(shared: Shared) -> None:
    manifest = Manifest(shared.store)
    _begin(manifest)
    _begin(manifest, OTHER)
    before = {key: _row(key) for key in range(KEYS)}
    expected = _changes(manifest, OTHER)
    _changes(manifest)
    conf = {"spark.executorEnv.SLUICE_FAULTS": "apply.distributed.folded=crash"}
    run = run_applier(shared.options(conf, way=AUTO, tables={"public.items": {"way": DISTRIBUTED}}))
    assert run.code == 75, run.output
    assert "1 of 2 tables are quarantined: public.items" in run.output
    assert (shared.rows(), shared.rows("other")) == (before, expected)


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("bare", "Spark's executors cannot load Sluice: No module named 'sluice_spark'"),
        ("missing", "Spark's executors cannot run their Python: spark.pyspark.python in apply.conf"),
    ],
    ids=["no Sluice", "no Python"],
)
@slow
def test_what_executors_lack_is_named(shared: Shared, python: str, said: str) -> None:
    _begin(Manifest(shared.store))
    path = str(shared.cluster.bare_python) if python == "bare" else "/nowhere/python"
    run = run_applier(shared.options({"spark.pyspark.python": path}))
    assert run.code == 75, run.output
    assert said in run.output


@slow
def test_executors_with_other_code_than_the_driver_apply_nothing(shared: Shared) -> None:
    _begin(Manifest(shared.store))
    (fold,) = shared.cluster.python.parents[1].glob("lib/*/site-packages/sluice_spark/fold/fold.py")
    whole = fold.read_text(encoding="utf-8")
    fold.write_text(f"{whole}# another version\n", encoding="utf-8")
    try:
        run = run_applier(shared.options({}))
    finally:
        fold.write_text(whole, encoding="utf-8")
    assert run.code == 75, run.output
    assert "Spark's executors have Sluice " in run.output

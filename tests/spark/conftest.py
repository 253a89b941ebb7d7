"""A pipeline of one's own for each test."""

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from service.contract import keys
from service.contract.applied import AppliedLog, Complete
from service.store.opening import open_store
from spark_jobs.applier import Applier
from spark_jobs.options import ApplyOptions
from tests.spark.changes import Manifest
from tests.spark.lake import rows_in


class Pipeline:
    """A spool, a lake and an applier that runs until everything in the manifest is applied."""

    def __init__(self, spark: SparkSession, folder: Path, *, origin: str = "any") -> None:
        self.spark = spark
        self.folder = folder
        self.store = open_store(f"file://{folder}/spool", prefix="shop/", options={})
        self.manifest = Manifest(self.store, origin=origin)

    def options(self, **changed: object) -> ApplyOptions:
        values: dict[str, object] = {"workers": 1, "once": True, "poll_seconds": 0.05, **changed}
        return ApplyOptions("shop", f"file://{self.folder}/spool", f"file://{self.folder}/lake", **values)  # type: ignore[arg-type]

    def apply(self, **changed: object) -> AppliedLog:
        Applier(self.options(**changed), self.store, self.spark, stop=threading.Event()).run()
        return AppliedLog.decode(self.store.get(list(self.store.list(keys.APPLY_LOG))[-1]))

    def complete(self) -> Complete:
        return Complete.decode(self.store.get(list(self.store.list(keys.APPLY_COMPLETE))[-1]))

    def path(self, table: str = "items") -> Path:
        return self.folder / "lake" / keys.lake_path("public", table)

    def rows(self, table: str = "items") -> list[dict[str, object]]:
        return rows_in(self.path(table))


@pytest.fixture
def pipeline(spark: SparkSession, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, tmp_path)

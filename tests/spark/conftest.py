"""A pipeline for each test."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluice.contract import keys
from sluice.contract.applied import AppliedLog, AppliedTable, Complete
from sluice.contract.schema import TableSchema
from sluice.errors import ServiceError
from sluice.store.opening import open_store
from sluice_spark.applier import Applier
from sluice_spark.options import ApplyOptions
from sluice_spark.telemetry import ApplyTelemetry
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
        values: dict[str, object] = {
            "workers": 1,
            "once": True,
            "poll_seconds": 0.05,
            "freshness_seconds": 0.0,
            "complete_seconds": 0.0,
            **changed,
        }
        return ApplyOptions("shop", f"file://{self.folder}/spool", f"file://{self.folder}/lake", **values)  # type: ignore[arg-type]

    def apply(self, **changed: object) -> AppliedLog:
        Applier(self.options(**changed), self.store, self.spark, stop=threading.Event()).run()
        return AppliedLog.decode(self.store.get(list(self.store.list(keys.APPLY_LOG))[-1]))

    def begin(self, schema: TableSchema, *rows: dict[str, object], generation: int = 1) -> None:
        """One generation of a table with its snapshot, live."""
        self.manifest.table(schema, generation=generation, new=generation == 1)
        self.manifest.snapshot(list(rows), schema, generation=generation)
        self.manifest.table(schema, state="live", generation=generation, new=False)

    def reported(self) -> dict[str, AppliedTable]:
        """What the newest log reports, by table id."""
        newest = list(self.store.list(keys.APPLY_LOG))
        return AppliedLog.decode(self.store.get(newest[-1])).tables if newest else {}

    def move(self) -> None:
        """To another path, as if by a new process: a running Spark caches the log of a table."""
        self.folder = self.folder.rename(self.folder.parent / f"{self.folder.name}-moved")
        self.store = open_store(f"file://{self.folder}/spool", prefix="shop/", options={})
        self.manifest.store = self.store

    def complete(self) -> Complete:
        return Complete.decode(self.store.get(list(self.store.list(keys.APPLY_COMPLETE))[-1]))

    def path(self, table: str = "items") -> Path:
        return self.folder / "lake" / keys.lake_path("public", table)

    def rows(self, table: str = "items") -> list[dict[str, object]]:
        return rows_in(self.path(table))


@pytest.fixture
def pipeline(spark: SparkSession, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, tmp_path)


@dataclass
class Running:
    """An applier at work. `ended` has the class of the error that it ended with."""

    stop: threading.Event
    ended: list[str]
    telemetry: ApplyTelemetry


@contextmanager
def running(pipeline: Pipeline, **options: object) -> Iterator[Running]:
    chosen = pipeline.options(once=False, **options)
    work = Running(threading.Event(), [], ApplyTelemetry(chosen))
    applier = Applier(chosen, pipeline.store, pipeline.spark, stop=work.stop, telemetry=work.telemetry)

    def run() -> None:
        try:
            applier.run()
        except ServiceError as error:
            work.ended.append(type(error).__name__)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield work
    finally:
        work.stop.set()
        thread.join(120)
    assert not thread.is_alive()

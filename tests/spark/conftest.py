"""A pipeline for each test."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice import faults
from sluice.contract import keys
from sluice.contract.applied import AppliedLog, AppliedTable, Complete
from sluice.contract.entries import Progress
from sluice.contract.schema import TableSchema
from sluice.store.opening import open_store
from sluice_spark.applier import Applier
from sluice_spark.options import ApplyOptions
from sluice_spark.telemetry import ApplyTelemetry
from tests.spark.changes import Change, Manifest
from tests.spark.lake import rows_in, version
from tests.spark.model import ID, SCHEMA
from tests.support.pipeline import wait_until

_FOREIGN_SETTINGS = {
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}


class Pipeline:
    """A spool, a lake and an applier that runs until everything in the manifest is applied."""

    def __init__(self, spark: SparkSession, folder: Path, *, origin: str = "any") -> None:
        self.spark = spark
        self.folder = folder
        self.store = open_store(f"file://{folder}/spool", prefix="shop/", options={})
        self.manifest = Manifest(self.store, origin=origin)
        self.schema = SCHEMA
        """Of the changes that do not say of which they are: the newest of the table that came last."""

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

    def applied(
        self, *, target: dict[str, Any] | None = None, state: str = "live", table_id: str = ID, **options: object
    ) -> AppliedTable:
        """What is said of a table when everything is applied. `target` is what public.items is to be in the lake."""
        if target is not None:
            options["tables"] = {"public.items": {"targets": [target]}}
        row = self.apply(**options).tables[table_id]
        assert row.state == state, row.reason
        return row

    def begin(self, schema: TableSchema, *rows: Mapping[str, Any], generation: int = 1, new: bool = False) -> None:
        """One generation of a table with its snapshot, live. With `new` it has other columns than the one before."""
        self.schema = schema
        self.manifest.table(schema, generation=generation, new=new or generation == 1)
        self.manifest.snapshot(rows, schema, generation=generation)
        self.manifest.table(schema, state="live", generation=generation, new=False)

    def begin_again(
        self, schema: TableSchema, *rows: Mapping[str, Any], generation: int = 2, new: bool = False
    ) -> None:
        """Another generation, at a later position."""
        self.progress(40)
        self.begin(schema, *rows, generation=generation, new=new)

    def evolve(self, schema: TableSchema, *, generation: int = 1) -> None:
        """The live table has other columns from here on."""
        self.schema = schema
        self.manifest.table(schema, state="live", generation=generation)

    def change(self, *changes: Change, schema: TableSchema | None = None) -> int:
        """One transaction; its entry."""
        return self.manifest.transaction(list(changes), schema or self.schema)

    def damage(self, key: str) -> None:
        """One byte of an object of the spool is another one."""
        data = bytearray(self.store.get(key))
        data[len(data) // 2] ^= 1
        self.store.put(key, bytes(data))

    def progress(self, positions: int) -> None:
        self.manifest.append(Progress(), through_lsn=self.manifest.lsn + positions)

    def sql(self, statement: str, *, table: str = "items", session: SparkSession | None = None) -> list[Any]:
        """What somebody else does to a lake table, which is called {t}."""
        session = session or self.spark.newSession()
        for name, value in _FOREIGN_SETTINGS.items():
            session.conf.set(name, value)
        return list(session.sql(statement.replace("{t}", f"delta.`{self.path(table)}`")).collect())

    def set(self, **properties: str) -> None:
        """Properties of the lake table that begin with `delta.`, by somebody else."""
        stated = ", ".join(f"'delta.{name}' = '{value}'" for name, value in properties.items())
        self.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({stated})")

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

    def log(self, table: str = "items") -> Path:
        """The folder of the log of a lake table."""
        return self.path(table) / "_delta_log"

    def version(self, table: str = "items") -> int:
        return version(self.path(table))

    def rows(self, table: str = "items", *, metadata: bool = False) -> list[dict[str, Any]]:
        """In an order that their values give."""
        return sorted(rows_in(self.path(table), metadata=metadata), key=str)

    def keys(self, table: str = "items", column: str = "id") -> list[Any]:
        return sorted(row[column] for row in self.rows(table))


@pytest.fixture
def pipeline(spark: SparkSession, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, tmp_path)


@dataclass
class Running:
    """An applier at work. `ends` is the class of the error that it is to end with, empty for none, None for any."""

    pipeline: Pipeline
    applier: Applier
    stop: threading.Event
    telemetry: ApplyTelemetry
    ends: str | None
    errors: list[BaseException] = field(default_factory=list)

    @property
    def ended(self) -> list[str]:
        """The class of the error that it ended with, if it did."""
        return [type(error).__name__ for error in self.errors]

    def run(self) -> None:
        try:
            self.applier.run()
        except BaseException as error:  # noqa: BLE001 - the test judges what it was
            self.errors.append(error)

    def until(self, claim: Callable[[], object], what: str, *, timeout: float = 180) -> None:
        """Returns when `claim` holds, or when the applier has ended as it is to."""
        wait_until(lambda: bool(self.errors) or bool(claim()), what=what, timeout=timeout)
        if self.errors and self.ends == "":
            raise AssertionError(f"the applier ended before {what}") from self.errors[0]

    def passes(self, point: str, times: int = 1) -> None:
        """Waits until it has come to a fault point so many times."""
        self.until(lambda: faults.passages(point) >= times, what=f"{point} is reached")

    def says(self, claim: Callable[[AppliedTable], object], what: str, *, table_id: str = ID) -> AppliedTable:
        """Waits for a report of the table of which `claim` holds."""

        def found() -> bool:
            row = self.pipeline.reported().get(table_id)
            return row is not None and bool(claim(row))

        self.until(found, what)
        return self.pipeline.reported()[table_id]

    def takes(self, seq: int, *, table_id: str = ID) -> AppliedTable:
        """Waits until entry `seq` is applied or the table is stopped; what is said of it then."""
        return self.says(lambda row: row.state == "stale" or row.through_seq >= seq, f"entry {seq}", table_id=table_id)


@contextmanager
def running(pipeline: Pipeline, *, ends: str | None = "", warm: bool = False, **options: object) -> Iterator[Running]:
    """The applier of `pipeline`, in a thread until the block ends. One that is `warm` does not warm up."""
    chosen, stop = pipeline.options(**{"once": False, **options}), threading.Event()
    telemetry = ApplyTelemetry(chosen)
    applier = Applier(chosen, pipeline.store, pipeline.spark, stop=stop, telemetry=telemetry)
    applier._warm = warm
    work = Running(pipeline, applier, stop, telemetry, ends)
    thread = threading.Thread(target=work.run)
    thread.start()
    try:
        yield work
    finally:
        stop.set()
        thread.join(120)
    assert not thread.is_alive()
    assert ends is None or work.ended == [ends] * bool(ends), work.errors


@contextmanager
def armed(plan: str) -> Iterator[None]:
    """Fault points of this process, until the block ends."""
    faults.arm(plan)
    try:
        yield
    finally:
        faults.arm("")


@contextmanager
def held(gate: Path, point: str, *, also: str = "") -> Iterator[Callable[[], None]]:
    """The fault point `point` (`name@passage` for one passage) waits until what is given is called, or the block ends.
    `also` are further faults.
    """
    name, _, passage = point.partition("@")
    with armed(f"{name}=hold:{gate}{'@' * bool(passage)}{passage}{',' * bool(also)}{also}"):
        try:
            yield gate.touch
        finally:
            gate.touch()

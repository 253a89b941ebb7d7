"""What the logs of tables need is known from two small objects of each. No job of Spark runs before one needs it."""

import json
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from sluice.contract.applied import CHECKPOINT
from sluice.store.base import ObjectStore
from sluice.store.memory import MemoryStore
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.lake.layout import CHECKPOINT_VERSIONS, IN_NO_COMMIT, checkpoint_interval
from sluice_spark.lake.log_upkeep import LogState, LogUpkeep
from sluice_spark.lake.opening import Lake
from sluice_spark.maintenance.checkpoints import Checkpoints
from sluice_spark.options import ApplyOptions
from sluice_spark.progress.reports import Reports
from sluice_spark.telemetry import ApplyTelemetry
from tests.spark.changes import Manifest
from tests.spark.model import SCHEMA
from tests.unit.applier.ledgers import begin, ledger_of

ID = SCHEMA.table_id
LOG = "public/items/_delta_log/"
NO_SPARK = cast("SparkSession", None)
BY_PATH = checkpoint_interval("/lake/items", {})


@pytest.mark.parametrize(
    ("last", "interval", "found"),
    [
        (b'{"version":40,"size":3}', "20", LogState(40, 20)),
        (b'{"version":40}', str(IN_NO_COMMIT), LogState(40, BY_PATH)),
        (b'{"version":40}', None, LogState(40, BY_PATH)),
        (b'{"version":40}', "often", LogState(40, BY_PATH)),
        (b"{", "20", LogState(0, 20)),
        (None, "20", LogState(0, 20)),
    ],
)
def test_a_log_that_does_not_say_is_taken_for_one_without_a_checkpoint(
    last: bytes | None, interval: str | None, found: LogState
) -> None:
    store = MemoryStore(f"look-{last!r}-{interval}", prefix="")
    if last is not None:
        store.create(f"{LOG}_last_checkpoint", last)
        store.create(f"{LOG}{40:020d}.checkpoint.parquet", b"")
    if interval is not None:
        stated = {"metadata": {"configuration": {"delta.checkpointInterval": interval}}}
        store.create(f"{LOG}{60:020d}.crc", json.dumps(stated).encode())
    upkeep = LogUpkeep(NO_SPARK, "/lake/items", store=store, folder="public/items/", require_owner=lambda: None)
    assert upkeep.look(60) == found


@pytest.mark.parametrize(
    ("name", "checkpoint"),
    [
        (f"{40:020d}.checkpoint.{1:010d}.{2:010d}.parquet", 40),
        (f"{40:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json", 40),
        (f"{41:020d}.checkpoint.parquet", 60 - BY_PATH),
        (f"{40:020d}.json", 60 - BY_PATH),
    ],
)
def test_a_checkpoint_that_is_named_is_believed_in_each_of_its_forms_and_due_where_it_is_gone(
    name: str, checkpoint: int
) -> None:
    store = MemoryStore(f"form-{name}", prefix="")
    store.create(f"{LOG}_last_checkpoint", b'{"version":40}')
    store.create(f"{LOG}{name}", b"")
    upkeep = LogUpkeep(NO_SPARK, "/lake/items", store=store, folder="public/items/", require_owner=lambda: None)
    assert upkeep.look(60) == LogState(checkpoint, BY_PATH)


def test_the_distance_of_checkpoints_follows_from_the_path() -> None:
    distances = {checkpoint_interval(f"/lake/t{number}", {}) for number in range(500)}
    assert (min(distances), max(distances)) == (CHECKPOINT_VERSIONS, 2 * CHECKPOINT_VERSIONS - 1)


class Hanging:
    """The store of a lake, which does not answer while it is away."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.here = threading.Event()
        self.here.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str) -> bytes:
        assert self.here.wait(60)
        return self._store.get(key)


class OneTable:
    """An applier's part for the logs of one table, whose newest checkpoint is of version 40 when it is at 60."""

    def __init__(self, folder: Path) -> None:
        spool = MemoryStore(folder.name, prefix="shop/")
        seq = begin(Manifest(spool), SCHEMA)
        options = ApplyOptions("shop", f"memory://{folder.name}", folder.as_uri())
        self.ledger = ledger_of(spool, ExaminedVersion(60, seq))
        lake = Lake(options, spool, before_commit=lambda: None)
        self.store = lake.files = Hanging(lake.files)
        log = f"{self.ledger.state.tables[ID].path}/_delta_log/"
        self.store.create(f"{log}_last_checkpoint", b'{"version":40}')
        self.store.create(f"{log}{40:020d}.checkpoint.parquet", b"")
        self.telemetry, self.reports = ApplyTelemetry(options), Reports.of(options, spool, lake, instance="tests")
        self.kept = Checkpoints(
            options, self.ledger, lake=lake, reports=self.reports, session=NO_SPARK, telemetry=self.telemetry
        )

    def report(self, version: int) -> None:
        self.reports.log(self.ledger.report())
        self.reports.versions[ID] = version

    @property
    def lag(self) -> str:
        lines = self.telemetry.metrics.render().decode().splitlines()
        return next(line.split()[-1] for line in lines if line.startswith("sluice_apply_checkpoint_lag_versions{"))


def test_a_table_whose_checkpoint_is_not_due_costs_no_job_of_spark(tmp_path: Path) -> None:
    one = OneTable(tmp_path)
    assert not one.kept.turn(now=0.0), "nothing was reported yet"
    one.report(60)
    one.kept.finish(threading.Event())
    assert one.kept._running is None
    one.kept.turn(now=100.0)
    assert one.lag == "20.0"
    one.kept.close()


def test_an_overdue_checkpoint_is_named_although_what_is_under_way_hangs(tmp_path: Path) -> None:
    one = OneTable(tmp_path)
    one.report(60)
    one.kept.finish(threading.Event())
    one.store.here.clear()
    one.report(600)
    one.kept.turn(now=time.monotonic() + 100)
    assert one.kept._running is not None, "a look hangs"
    failing = one.ledger.tables[ID].maintenance.failing
    assert failing == {CHECKPOINT: "the newest one is 560 versions old"}
    one.report(700)
    one.kept.turn(now=time.monotonic() + 200)
    assert one.lag == "660.0"
    one.store.here.set()
    one.kept.close()

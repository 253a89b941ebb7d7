"""A start reads the ends of the logs without Spark, and proves as much as Delta's own look does. What there was then is
all that an applier which ends by itself has to do.
"""

import json
import threading
from typing import Any

import pytest

from sluice.contract.applied import AppliedLog
from sluice.manifest.reader import load_state
from sluice.manifest.targets import lake_tables
from sluice_spark.lake.opening import Lake
from sluice_spark.progress.restart import find_tables, reported
from sluice_spark.telemetry import ApplyTelemetry
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline
from tests.spark.model import ID, SCHEMA, named, row
from tests.support.extent import slow
from tests.support.forwarding import Forwarding


class NoSpark:
    """A session that must not be asked."""

    @property
    def _jvm(self) -> Any:
        raise AssertionError("Spark was asked")

    _jsparkSession = _jvm


def _found(pipeline: Pipeline, log: AppliedLog | None, session: Any) -> tuple[Lake, dict[str, Any], dict[str, Any]]:
    """The lake, the tables of the manifest, and where a start finds them."""
    options = pipeline.options()
    lake = Lake(options, pipeline.store, before_commit=lambda: None)
    states = lake_tables(load_state(pipeline.store), options.targets_of)
    return lake, states, find_tables(states, log, lake=lake, session=session, telemetry=ApplyTelemetry(options))


@pytest.mark.parametrize("through_report", [True, pytest.param(False, marks=slow)])
def test_tables_are_found_without_spark_where_delta_finds_them(pipeline: Pipeline, through_report: bool) -> None:
    schemas = [named(f"t{number}", str(20_000 + number)) for number in range(3)]
    for schema in schemas:
        pipeline.begin(schema, row(1))
    log: AppliedLog | None = pipeline.apply()
    for schema in schemas[:2]:
        pipeline.change(Change("i", row(2)), schema=schema)
    pipeline.apply()
    # The older report: two tables have moved on since, as after a kill. Without one their own
    # commits say where to begin.
    log = log if through_report else None
    lake, states, found = _found(pipeline, log, NoSpark())
    assert [item.stale for item in found.values()] == [None, None, None]
    assert {key: item.place for key, item in found.items()} == {
        key: lake.table(state, pipeline.spark).find(reported(state, log)) for key, state in states.items()
    }


def test_a_marker_that_no_commit_left_skips_nothing_and_stops_its_table(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1))
    pipeline.apply()
    newest = max(pipeline.log().glob("0*.crc"))
    stated = json.loads(newest.read_text())
    for item in stated["setTransactions"]:
        item["version"] += 1
    newest.write_text(json.dumps(stated))
    seq = pipeline.change(Change("i", row(2)))
    stopped = pipeline.applied(state="stale")
    assert stopped.through_seq < seq
    assert "it is not the table that it was" in stopped.reason


def test_a_table_whose_last_checksum_is_missing_is_found_through_delta(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1))
    pipeline.apply()
    for file in pipeline.log().glob("*.crc"):
        file.unlink()
    pipeline.change(Change("i", row(2)))
    assert pipeline.applied().rows_applied == 2
    assert pipeline.rows() == [row(1), row(2)]


@slow
def test_a_checkpoint_is_read_by_a_fresh_thread_when_the_last_checksum_is_missing(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1))
    pipeline.apply()
    jvm: Any = pipeline.spark._jvm
    delta = jvm.org.apache.spark.sql.delta.DeltaLog
    delta.forTable(pipeline.spark._jsparkSession, str(pipeline.path())).checkpoint()
    pipeline.change(Change("i", row(2)))
    log = pipeline.apply()
    # As a kill between a commit and its checksum leaves it.
    max(pipeline.log().glob("0*.crc")).unlink()
    pipeline.move()
    (found,) = _found(pipeline, log, pipeline.spark)[2].values()
    assert (found.problem, found.failures) == (None, 0)
    assert found.place.marker == log.tables[ID].through_seq


class Busy(Forwarding):
    """Before each commit of the applier, another transaction has come: of row 10 and up, up to 20 of them."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline.store)
        self._pipeline, self._rows = pipeline, iter(range(10, 30))
        self._lock = threading.Lock()

    def size(self, key: str) -> int | None:
        with self._lock:
            if key.startswith("apply/lease/") and (number := next(self._rows, None)) is not None:
                self._pipeline.change(Change("i", row(number)))
        return super().size(key)


def test_one_that_ends_with_the_backlog_ends_although_changes_keep_coming(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, row(1))
    pipeline.change(Change("i", row(2)))
    inner, begun_seq = pipeline.store, load_state(pipeline.store).seq
    pipeline.store = Busy(pipeline)
    log = pipeline.apply()
    pipeline.store = inner
    end_seq = load_state(inner).seq
    assert log.seq < end_seq, "it has not waited for the last one"
    pipeline.apply()
    assert pipeline.keys() == [1, 2, *range(10, 10 + end_seq - begun_seq)]

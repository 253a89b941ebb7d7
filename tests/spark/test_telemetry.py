"""The metrics of windows that Spark really applied."""

from datetime import UTC, datetime

import pytest
from deltalake import DeltaTable

from sluice.manifest.newest_record import newest_log
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline, armed, running
from tests.spark.model import SCHEMA, row
from tests.support.collector import Collector
from tests.support.openlineage import events_of


def test_windows_rows_phases_and_success_are_counted_and_recorded(pipeline: Pipeline) -> None:
    began = datetime.now(UTC)
    pipeline.begin(SCHEMA, *(row(key) for key in range(3)))
    seq = pipeline.change(Change("i", row(9)), Change("u", row(9, 5)), Change("d", {"id": 0}, old={"id": 0}))
    with running(pipeline, once=True) as work:
        work.takes(seq)
    text = work.telemetry.metrics.render().decode()
    for line in (
        'sluice_apply_runs_total{outcome="committed",pipeline="shop"} 2.0',
        'sluice_apply_runs_total{outcome="failed",pipeline="shop"} 0.0',
        'sluice_apply_rows_total{op="snapshot",pipeline="shop"} 3.0',
        'sluice_apply_rows_total{op="insert",pipeline="shop"} 1.0',
        'sluice_apply_rows_total{op="update",pipeline="shop"} 1.0',
        'sluice_apply_rows_total{op="delete",pipeline="shop"} 1.0',
        *(
            f'sluice_apply_duration_seconds_count{{phase="{phase}",pipeline="shop",way="{way}"}} 1.0'
            for way, phases in {
                "none": ("look", "merge", "total"),
                "direct": ("look", "read", "merge", "find", "write", "commit", "total"),
            }.items()
            for phase in phases
        ),
        'sluice_apply_windows_total{pipeline="shop",way="direct"} 1.0',
        'sluice_apply_windows_total{pipeline="shop",way="merge"} 0.0',
        'sluice_apply_conflicts_total{kind="fresh_look",pipeline="shop"} 0.0',
        'sluice_apply_key_cache_lookups_total{pipeline="shop",result="miss"} 1.0',
        'sluice_apply_backlog_entries{pipeline="shop"} 0.0',
        'sluice_apply_lease_held{pipeline="shop"} 0.0',
        'sluice_apply_read_sequence{pipeline="shop"} 5.0',
    ):
        assert line in text
    assert work.telemetry.health.ready_problems() == ["stopping"]
    log = newest_log(pipeline.store).read()
    assert log is not None
    assert began <= datetime.fromisoformat(log.succeeded_at) <= datetime.now(UTC)
    (table,) = log.tables.values()
    assert (table.way, table.way_reason) == ("direct", "")
    assert table.files == len(DeltaTable(pipeline.path()).file_uris())


def test_an_applier_that_ends_unexpectedly_completes_no_run_of_lineage(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA)
    collector = Collector()
    with armed("apply.entries.read=raise:KeyError@1"), collector.listening(), pytest.raises(KeyError):
        pipeline.apply(lineage=collector.url("/"), lineage_source="db.example:5432")
    last = events_of(collector.requests)[-1]
    assert last["eventType"] == "FAIL"
    assert last["run"]["facets"]["errorMessage"]["message"] == "an unexpected error (KeyError)"

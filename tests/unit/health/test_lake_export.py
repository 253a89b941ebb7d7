"""What the applier reports of tables becomes metrics, and nothing that is not known."""

from datetime import datetime

from sluice.contract.applied import AppliedLog
from sluice.health.endpoint import Health
from sluice.health.export.lake import LakeExport
from sluice.health.export.observer import Observer
from sluice.health.export.process import ProcessExport
from sluice.health.facts import ChildSeen
from sluice.ingest.status import IngestStatus
from sluice.telemetry.metrics import Metrics
from sluice.telemetry.recent_errors import RecentErrors
from tests.support.recorded import NOW, RecordedPipeline, row, rows


def test_ways_and_files_of_tables_are_exported_where_they_are_known() -> None:
    pipeline, metrics = RecordedPipeline(), Metrics("shop", monotonic=iter(range(0, 100, 10)).__next__)
    export = LakeExport(metrics)
    for name in ("a", "b", "c"):
        pipeline.table(name)

    def look(number: int, *rows: tuple[str, str, int]) -> str:
        tables = {name: row(name, way=way, files=files) for name, way, files in rows}
        pipeline.said(AppliedLog(number, "a", NOW.isoformat(), tables))
        export.export(pipeline.report(), ingested_at=None)
        return metrics.render().decode()

    text = look(1, ("a", "direct", 16), ("b", "merge", -1), ("c", "", -1))
    for way, count in (("direct", 1), ("merge", 1), ("none", 1), ("distributed", 0)):
        assert f'sluice_apply_tables{{pipeline="shop",way="{way}"}} {count}.0' in text
    assert [line for line in text.splitlines() if line.startswith("sluice_apply_table_files{")] == [
        'sluice_apply_table_files{pipeline="shop",schema="public",table="a"} 16.0'
    ]
    text = look(2, ("a", "merge", -1), ("b", "direct", 0), ("c", "", -1))
    assert [line for line in text.splitlines() if line.startswith("sluice_apply_table_files{")] == [
        'sluice_apply_table_files{pipeline="shop",schema="public",table="b"} 0.0'
    ]


def test_a_verdict_that_cannot_be_made_is_exported_as_unknown_and_not_as_the_last_one() -> None:
    pipeline, metrics = RecordedPipeline(), Metrics("shop", monotonic=iter(range(0, 100, 10)).__next__)
    pipeline.table("a")
    children = [ChildSeen(running=False, restarts=0)]
    observer = Observer(
        status=IngestStatus(),
        errors=RecentErrors(),
        reporter=pipeline.reporter(),
        metrics=metrics,
        health=Health(metrics),
        applier=lambda: children[0],
    )
    observer.observe()

    def exported() -> tuple[list[str], list[str]]:
        observer.export_verdict()
        lines = metrics.render().decode().splitlines()
        chosen = [line for line in lines if line.startswith("sluice_health{") and line.endswith(" 1.0")]
        return chosen, [line for line in lines if line.startswith("sluice_problems{")]

    (known,), problems = exported()
    assert 'state="unknown"' not in known
    assert problems
    child = children.pop()
    assert exported() == (['sluice_health{pipeline="shop",state="unknown"} 1.0'], [])
    children.append(child)
    assert exported() == ([known], problems)


def test_a_table_is_not_called_complete_through_what_was_stored_while_a_look_was_under_way() -> None:
    pipeline, metrics, status = RecordedPipeline(), Metrics("shop"), IngestStatus()
    pipeline.table("a")
    pipeline.said(AppliedLog(1, "a", NOW.isoformat(), rows(pipeline.log.state), NOW.isoformat()))
    status.commits.complete_at = NOW.timestamp() - 9

    def clock() -> datetime:
        """The manifest is read; another transaction is stored, which the lake lacks."""
        status.commits.complete_at = NOW.timestamp()
        return NOW

    reporter = pipeline.reporter(clock=clock)
    Observer(status=status, errors=RecentErrors(), reporter=reporter, metrics=metrics, health=Health(metrics)).observe()
    watermark = [
        float(line.rpartition(" ")[2])
        for line in metrics.render().decode().splitlines()
        if line.startswith("sluice_apply_table_watermark_timestamp_seconds{")
    ]
    assert watermark == [NOW.timestamp() - 9]


def test_a_limit_that_is_lowered_while_ingest_runs_is_the_one_that_alerts_read() -> None:
    metrics, status = Metrics("shop"), IngestStatus(staged_limit_bytes=100)
    export = ProcessExport(metrics, status, RecentErrors())
    export.count(None)
    status.staged_limit_bytes = 10
    export.count(None)
    assert 'sluice_reorder_buffer_limit_bytes{pipeline="shop",place="store"} 10.0' in metrics.render().decode()

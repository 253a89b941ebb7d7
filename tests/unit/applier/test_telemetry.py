"""The applier's own endpoint: what is served, to whom, and what is counted."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sluice.cli import wiring
from sluice.errors import StoreUnavailable, UnsupportedChange, WriterFenced
from sluice.settings import load
from sluice.telemetry import catalogue
from sluice_spark.applied_window import Applied
from sluice_spark.lake.commit_way import CommitWay
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.lake.failures import CommitConflict
from sluice_spark.options import ApplyOptions
from sluice_spark.telemetry import ApplyTelemetry
from tests.support.answers import ask
from tests.support.authority import Authority


def telemetry() -> ApplyTelemetry:
    return ApplyTelemetry(ApplyOptions("shop", "memory://s", "memory://l", workers=3, config_hash=77))


def _address(capsys: pytest.CaptureFixture[str]) -> str:
    said = capsys.readouterr()
    found = re.search(r"127\.0\.0\.1:\d+", said.out + said.err)
    assert found is not None
    return found[0]


def test_the_endpoint_serves_the_appliers_metrics_and_probes_and_nothing_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    served = telemetry()

    with served.served("127.0.0.1:0"):
        get = partial(ask, _address(capsys))
        assert get("/startupz")[0] == 200
        assert get("/readyz") == (503, "starting\n")
        served.owns(held=True)
        served.round(running=1, backlog=4, read_seq=9)
        assert get("/readyz")[0] == 200
        assert get("/livez")[0] == 200
        assert get("/status")[0] == 404
        text = get("/metrics")[1]
        served.stopping()
        assert get("/readyz") == (503, "stopping\n")
    assert 'sluice_build_info{component="apply",pipeline="shop"' in text
    assert 'sluice_config_hash{pipeline="shop"} 77.0' in text
    assert 'sluice_apply_workers{pipeline="shop",state="idle"} 2.0' in text
    assert set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)) == {
        metric.name.removesuffix("_total") + "_total" * isinstance(metric, catalogue.Counter)
        for metric in catalogue.served_by("apply")
    }


def test_windows_are_counted_by_what_became_of_them() -> None:
    seen = telemetry()
    counts: dict[str, Any] = {"ops": {"insert": 10, "delete": 2}, "seconds": {"read": 0.2, "merge": 3.0}}
    way = CommitWay("merge", "the table is partitioned")
    seen.applied(Applied(ExaminedVersion(3, 9), 9, 12, 1, **counts, way=way, fresh_looks=2), seconds=3.5)
    seen.applied(Applied(ExaminedVersion(3, 9), 9, committed=False), seconds=0.1)
    seen.failed(StoreUnavailable("x"))
    seen.failed(CommitConflict("x"))
    seen.stale(UnsupportedChange("x"))
    seen.note("lease", WriterFenced("x"))
    text = seen.metrics.render().decode()
    for line in (
        'sluice_apply_runs_total{outcome="committed",pipeline="shop"} 1.0',
        'sluice_apply_runs_total{outcome="empty",pipeline="shop"} 1.0',
        'sluice_apply_runs_total{outcome="failed",pipeline="shop"} 2.0',
        'sluice_apply_runs_total{outcome="stale",pipeline="shop"} 1.0',
        'sluice_apply_rows_total{op="insert",pipeline="shop"} 10.0',
        'sluice_apply_duration_seconds_bucket{le="5.0",phase="merge",pipeline="shop",way="merge"} 1.0',
        'sluice_apply_duration_seconds_count{phase="total",pipeline="shop",way="merge"} 1.0',
        'sluice_apply_duration_seconds_count{phase="total",pipeline="shop",way="none"} 1.0',
        'sluice_apply_windows_total{pipeline="shop",way="merge"} 1.0',
        'sluice_apply_windows_total{pipeline="shop",way="direct"} 0.0',
        'sluice_apply_conflicts_total{kind="fresh_look",pipeline="shop"} 2.0',
        'sluice_apply_conflicts_total{kind="concurrent",pipeline="shop"} 1.0',
        'sluice_apply_conflicts_total{kind="fenced",pipeline="shop"} 1.0',
        'sluice_errors_total{class="ApplyError",component="apply",pipeline="shop",retryable="true"} 1.0',
    ):
        assert line in text
    assert seen.succeeded_at > 0


def test_the_applier_asks_for_a_client_certificate_as_the_settings_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path, "one")
    cert, key = authority.pair("applier")
    file = tmp_path / "sluice.yaml"
    file.write_text(
        f"""\
version: 1
pipeline: shop
source: {{dsn: "postgresql://"}}
spool: {{uri: "file:///tmp/spool"}}
lake: {{uri: "file:///tmp/lake"}}
telemetry: {{tls_cert_path: {cert}, tls_key_path: {key}, tls_client_ca_path: {authority.path}}}
"""
    )
    settings = load(str(file), environ={}).settings
    options = ApplyOptions.from_json(wiring.apply_options(settings, log_format="json"))
    with ApplyTelemetry(options).served("127.0.0.1:0"):
        address = _address(capsys)
        assert authority.get(address, "/livez")[0] == 200
        assert authority.get(address, "/metrics")[0] == 403
        assert authority.get(address, "/metrics", certificate=authority.pair("prometheus"))[0] == 200

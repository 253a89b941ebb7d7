"""One verdict for page, probes and metrics, whoever asks."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from sluice.health.endpoint import Health
from sluice.health.live_report import LiveReport
from sluice.health.process_state import ProcessState
from sluice.ingest.status import IngestStatus
from sluice.telemetry.metrics import Metrics
from sluice.telemetry.recent_errors import RecentErrors
from tests.support.recorded import RecordedPipeline


@pytest.fixture
def watched() -> Iterator[tuple[LiveReport, IngestStatus]]:
    pipeline = RecordedPipeline()
    status = IngestStatus(state="streaming", connected=True, manifest=pipeline.log.state)
    live = LiveReport(
        status=status,
        reporter=pipeline.reporter(clock=lambda: datetime.now(UTC)),
        process_state=ProcessState(status, RecentErrors(), None),
        health=Health(Metrics("shop")),
    )
    with closing(live):
        yield live, status


@pytest.mark.parametrize(
    ("late_seconds", "said"),
    [(5, set()), (100, {("ingest.behind", "warning")}), (400, {("ingest.behind", "critical")})],
)
def test_what_only_the_process_knows_of_its_lag_is_in_every_verdict(
    watched: tuple[LiveReport, IngestStatus], late_seconds: int, said: set[tuple[str, str]]
) -> None:
    live, status = watched
    status.oldest_unflushed_us = int((datetime.now(UTC) - timedelta(seconds=late_seconds)).timestamp() * 1e6)
    page = {(one.code, one.severity) for one in live.now(patience_seconds=1).verdict.problems}
    probes = {(one.code, one.severity) for one in live.verdict().problems}
    assert (page, probes) == (said, said)

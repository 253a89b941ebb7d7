"""What a running process says of its health while the object store accepts questions and never answers."""

import threading
import uuid

from sluice.health.endpoint import Health
from sluice.health.live_report import LiveReport
from sluice.health.process_state import ProcessState
from sluice.health.reporter import Reporter
from sluice.ingest.status import IngestStatus
from sluice.store.memory import MemoryStore
from sluice.telemetry.metrics import Metrics
from sluice.telemetry.recent_errors import RecentErrors
from tests.support.manifests import open_log


class _Hanging(MemoryStore):
    """Answers nothing while `held` is set."""

    held = False
    answers = threading.Event()

    def get(self, key: str) -> bytes:
        if self.held:
            self.answers.wait(120)
        return super().get(key)


def test_a_process_whose_store_hangs_is_not_healthy_once_status_would_say_so() -> None:
    store = _Hanging(f"hangs-{uuid.uuid4().hex}", prefix="t/")
    log = open_log(store)
    status = IngestStatus(state="streaming", connected=True, manifest=log.state)
    reporter = Reporter(pipeline="t", store=store, lake_uri="file:///nowhere", source=None)
    live = LiveReport(
        status=status,
        reporter=reporter,
        process_state=ProcessState(status, RecentErrors(), None),
        health=Health(Metrics("t")),
    )
    live.take(asked_within_seconds=60)
    assert live.verdict().state == "healthy"
    store.held = True
    tick = threading.Event()
    tick.wait(1.1)  # a report is fresh for a second
    look = threading.Thread(target=lambda: live.take(asked_within_seconds=60), daemon=True)
    look.start()
    for _ in range(250):
        if live.verdict().state != "healthy":
            break
        tick.wait(0.1)
    assert [problem.code for problem in live.verdict().problems] == ["spool.away"]
    store.held = False
    store.answers.set()
    look.join(30)
    assert live.verdict().state == "healthy"

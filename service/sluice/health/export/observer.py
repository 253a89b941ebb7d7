"""What ingest counts and what a report finds, brought to metrics, readiness and /status.

Invariants: the verdict and the positions of /status, /readyz and the metrics are one and the same.
A quantity that could not be read is withdrawn, never left at its old value. A failing look at the
server or the store is counted and never disturbs the stream.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from sluice.errors import ServiceError
from sluice.health.endpoint import Health
from sluice.health.export.lake import LakeExport
from sluice.health.export.process import ProcessExport
from sluice.health.export.source import export_answer, export_lag
from sluice.health.export.verdict import export_unknown, export_verdict
from sluice.health.facts import ChildSeen
from sluice.health.lag_history import History
from sluice.health.live_report import LiveReport
from sluice.health.neighbours import Neighbours
from sluice.health.process_state import ProcessState
from sluice.health.reporter import Reporter
from sluice.health.verdict import Verdict
from sluice.health.wal import headroom
from sluice.ingest.status import IngestStatus
from sluice.telemetry import catalogue
from sluice.telemetry.metrics import Metrics
from sluice.telemetry.recent_errors import RecentErrors

_PATIENCE_SECONDS = 2.0
"""How long /status waits for a look that hangs in the object store, before it shows the last one
with its age.
"""
_SHARED_SECONDS = 20.0
"""How old the server's answer may be in a regular look: `poll_source` asks every 15 s."""


class Observer:
    """Feeds `metrics` from one ingest. `status`, `verdict` and `export_verdict` may be called from
    any thread, `look` from one, `poll_source` and `poll_neighbours` from others, `count` from the event loop.
    `health` knows which of this process's loops are late.
    """

    def __init__(
        self,
        *,
        status: IngestStatus,
        errors: RecentErrors,
        reporter: Reporter,
        metrics: Metrics,
        health: Health,
        applier: Callable[[], ChildSeen] | None = None,
        neighbours: Neighbours | None = None,
        runbook_url: str = "",
    ) -> None:
        self._status = status
        self._errors = errors
        self._applier = applier
        self._source = reporter.source
        self._metrics = metrics
        self._lake = LakeExport(metrics)
        self._process = ProcessExport(metrics, status, errors)
        self._neighbours = neighbours or Neighbours({})
        self._process_state = ProcessState(
            status, errors, applier, neighbours=lambda: self._neighbours.newest, runbook_url=runbook_url
        )
        self._history = History(began_at=time.time())
        self._live = LiveReport(status=status, reporter=reporter, process_state=self._process_state, health=health)
        self._logger = structlog.get_logger("report")
        metrics.add(catalogue.REPORT_ERRORS, 0)
        metrics.add(catalogue.PROBE_ERRORS, 0)

    def status(self) -> dict[str, Any]:
        """The answer of /status: what is stored is at most a second old, or as old as it says when
        the object store does not answer, what the process knows is of this moment. Raises
        StoreError and ManifestCorrupt.
        """
        return self._live.now(patience_seconds=_PATIENCE_SECONDS).to_json()

    def history(self, tables: Sequence[str]) -> dict[str, Any]:
        """The answer of /history: the last two hours of the pipeline and of the tables with these
        names, as far as this process remembers. Asks nobody.
        """
        return self._history.to_json(tables, now=time.time())

    def verdict(self) -> Verdict:
        """The verdict of this moment. Asks nobody."""
        return self._live.verdict()

    def observe(self) -> None:
        """Takes a report and exports it. Blocks; for a thread."""
        try:
            report = self._live.take(asked_within_seconds=_SHARED_SECONDS)
            self._process_state.applied(report.tables)
            now = time.time()
            self._history.note(report.tables, flush_seconds=self._live.positions().flush_seconds(now=now), now=now)
            self._lake.export(report, ingested_at=self._live.ingested_at)
            # Last: whoever sees it sees all that was read with it.
            self._metrics.set(catalogue.REPORT_TIMESTAMP, report.taken_at.timestamp())
        except ServiceError as error:
            self._errors.note("report", error)
            self._metrics.add(catalogue.REPORT_ERRORS, 1)
            self._logger.warning("could not take a report", error=str(error))
        except Exception as error:
            self._errors.note("report", error)
            self._metrics.add(catalogue.REPORT_ERRORS, 1)
            self._logger.error("could not take a report", exc_info=error)
        self._metrics.set(catalogue.HEARTBEAT, time.time(), loop="report")

    def poll_source(self) -> None:
        """Asks the server and exports what it says. Blocks; for a thread, and not the one of
        `look`: either of the two may be away.
        """
        answer = self._live.ask_source()
        if answer is not None and self._source is not None:
            if answer.error is not None:
                self._errors.note("probe", answer.error)
                self._metrics.add(catalogue.PROBE_ERRORS, 1)
            facts = answer.facts
            kept = headroom(facts.server, facts.slot, self._source.history) if facts is not None else None
            export_answer(self._metrics, facts, kept, manifest=self._status.manifest)
        self._metrics.set(catalogue.HEARTBEAT, time.time(), loop="probe")

    def poll_neighbours(self) -> None:
        """Asks the neighbours how they are. Blocks; for a thread of its own."""
        self._neighbours.poll()

    def count(self) -> None:
        """Brings the counters of this process up to date; costs microseconds."""
        self._process_state.count()
        self._process.count(self._applier() if self._applier is not None else None)
        at, now = self._live.positions(), time.time()
        export_lag(self._metrics, at, now=now)
        self._lake.export_freshness(at.flush_seconds(now=now), now=now)

    def export_verdict(self) -> None:
        """Brings the verdict of this moment to the metrics. When they are rendered, in the thread
        of who asks: the event loop may stand still.
        """
        if not self._live.has_looked:
            return
        try:
            export_verdict(self._metrics, self.verdict())
        except Exception as error:
            export_unknown(self._metrics)
            self._logger.error("metrics could not be brought up to date", exc_info=error)

    def close(self) -> None:
        """Lets the side connection go, once nobody looks any more."""
        self._live.close()

"""What ingest counts and what a report finds, brought to metrics, health and /status.

Invariants: reads plain counters that others write, and changes nothing; a quantity that could not be read is withdrawn, never left at its old value; a
failing look at the server or the store is counted and never disturbs the stream.
"""

import threading
import time
from dataclasses import replace
from typing import Any

import structlog

from service.errors import ServiceError, StoreUnavailable
from service.runtime.applier_process import ApplierProcess
from service.runtime.backlog import Backlog
from service.runtime.ingest import Ingest
from service.runtime.observelake import LakeExport
from service.runtime.observeprocess import ProcessExport
from service.runtime.observesource import SourceExport
from service.runtime.presence import Presence
from service.runtime.report import Report, Reporter
from service.source.slotprobe import SlotProbe
from service.telemetry import catalogue
from service.telemetry.health import Health
from service.telemetry.metrics import Metrics

_FRESH_SECONDS = 1.0
"""How old a report may be that /status answers with: many askers cost one look."""
_PATIENCE_SECONDS = 2.0
"""How long /status waits for a look that hangs in the object store, before it shows the last one with its age."""


class Observer:
    """Feeds `metrics` and `health` from one ingest. `status` may be called from any thread, `look` from one, `look_at_source` from another, `count` from the
    event loop."""

    def __init__(self, *, ingest: Ingest, reporter: Reporter, metrics: Metrics, health: Health, applier: ApplierProcess | None) -> None:
        self._ingest = ingest
        self._reporter = reporter
        self._metrics = metrics
        self._health = health
        self._source = SourceExport(metrics, SlotProbe(ingest.options.source), ingest.errors)
        self._lake = LakeExport(metrics, Backlog(ingest.store))
        self._process = ProcessExport(metrics, ingest, applier)
        self._presence = Presence(ingest, applier)
        self._lock = threading.Lock()
        self._complete_lsn = 0
        self._report: Report | None = None
        self._reported_at = float("-inf")
        self._logger = structlog.get_logger("report")
        metrics.add(catalogue.REPORT_ERRORS, 0)

    def status(self) -> dict[str, Any]:
        """The answer of /status: what is stored is at most a second old, or as old as it says when the object store does not answer, what the process knows
        is of this moment. Raises StoreError and ManifestCorrupt."""
        try:
            report = self._take(patience_seconds=_PATIENCE_SECONDS)
        except StoreUnavailable:
            # Counted by `look`, which also meets it: how many watch the page is no measure of trouble.
            if self._report is None:
                raise
            report = self._report
        return replace(report, process=self._presence.facts()).to_json()

    def look(self) -> None:
        """Takes a report and exports it. Blocks; for a thread."""
        try:
            report = self._take()
            self._presence.applied(report.tables)
            self._metrics.set(catalogue.REPORT_TIMESTAMP, report.taken_at.timestamp())
            self._complete_lsn = report.complete_lsn
            self._lake.look(report, ingested_at=self._ingested_at())
        except ServiceError as error:
            self._ingest.errors.note("report", error)
            self._metrics.add(catalogue.REPORT_ERRORS, 1)
            self._logger.warning("could not take a report", error=str(error))
        except Exception as error:
            self._ingest.errors.note("report", error)
            self._metrics.add(catalogue.REPORT_ERRORS, 1)
            self._logger.error("could not take a report", exc_info=error)
        self._metrics.set(catalogue.HEARTBEAT, time.time(), loop="report")

    def look_at_source(self) -> None:
        """Asks the server and exports what it says. Blocks; for a thread, and not the one of `look`: either of the two may be away."""
        log = self._ingest.log
        self._source.look(view=self._ingest.view, manifest=log.state if log is not None else None, complete_lsn=self._complete_lsn)
        self._metrics.set(catalogue.HEARTBEAT, time.time(), loop="probe")

    def count(self) -> None:
        """Brings the counters of this process up to date; costs microseconds."""
        self._presence.count()
        self._process.count()
        self._export_lag(time.time())
        view = self._ingest.view
        if view.state == "streaming" and view.connected:
            self._health.ready()
        else:
            self._health.not_ready(view.state)

    def close(self) -> None:
        """Lets the side connection go, once nobody looks any more."""
        self._source.close()

    def _take(self, *, patience_seconds: float = -1) -> Report:
        """A fresh report; after `patience_seconds` of waiting for somebody else's look the last one, if there is one."""
        last = self._report
        if not self._lock.acquire(timeout=patience_seconds if last is not None else -1):
            assert last is not None
            return last
        try:
            if self._report is None or time.monotonic() - self._reported_at > _FRESH_SECONDS:
                self._report = self._reporter.take()
                self._reported_at = time.monotonic()
            return self._report
        finally:
            self._lock.release()

    def _ingested_at(self) -> float | None:
        """Everything committed before this time, by our clock, is in the manifest."""
        view, committer = self._ingest.view, self._ingest.committer
        proven = self._source.complete_at(view.complete_lsn)
        flushed = committer.counts.last_commit_time_us / 1e6 if committer is not None else 0.0
        return max(proven or 0.0, flushed) or None

    def _export_lag(self, now: float) -> None:
        metrics, view = self._metrics, self._ingest.view
        received = self._behind(max(view.received_lsn, view.complete_lsn), now)
        flushed = self._behind(view.complete_lsn, now)
        if view.oldest_unflushed_us is not None:
            flushed = max(flushed or 0.0, now - view.oldest_unflushed_us / 1e6)
        for stage, seconds in (("receive", received), ("flush", flushed), ("apply", self._lake.freshness(flushed, now=now))):
            metrics.show(catalogue.LAG_SECONDS, seconds, stage=stage)

    def _behind(self, lsn: int, now: float) -> float | None:
        return self._source.behind_seconds(lsn, now=now) if lsn else None

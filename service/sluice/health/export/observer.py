"""What ingest counts and what a report finds, brought to metrics, readiness and /status.

Invariants: the verdict of /status, /readyz and the metrics is one and the same; reads plain
counters that others write, and changes nothing; a quantity that could not be read is withdrawn,
never left at its old value; a failing look at the server or the store is counted and never disturbs
the stream.
"""

import threading
import time
from collections import Counter as Tally
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import structlog

from sluice.errors import ManifestCorrupt, ServiceError
from sluice.health.backlog import Backlog
from sluice.health.endpoint import Health
from sluice.health.export.lake import LakeExport
from sluice.health.export.process import ProcessExport
from sluice.health.export.source import Probed, SourceExport
from sluice.health.facts import Away, ChildSeen, Facts, ProcessSeen
from sluice.health.presence import Presence
from sluice.health.problems import BY_CODE
from sluice.health.process_facts import ProcessFacts
from sluice.health.report import Report, Reporter, away, lost_from
from sluice.health.verdict import Verdict, judge
from sluice.health.wal import headroom
from sluice.ingest.status import IngestStatus
from sluice.manifest.state import PipelineState
from sluice.source.slot_probe import SlotProbe
from sluice.telemetry import catalogue
from sluice.telemetry.metrics import Metrics
from sluice.telemetry.recent_errors import RecentErrors

_FRESH_SECONDS = 1.0
"""How old a report may be that /status answers with: many askers cost one look."""
_PATIENCE_SECONDS = 2.0
"""How long /status waits for a look that hangs in the object store, before it shows the last one
with its age.
"""


class Observer:
    """Feeds `metrics` from one ingest. `status`, `verdict` and `export_verdict` may be called from
    any thread, `look` from one, `look_at_source` from another, `count` from the event loop.
    `health` knows which of this process's loops are late.
    """

    def __init__(
        self,
        *,
        status: IngestStatus,
        errors: RecentErrors,
        probe: SlotProbe,
        backlog: Backlog,
        reporter: Reporter,
        metrics: Metrics,
        health: Health,
        applier: Callable[[], ChildSeen] | None = None,
    ) -> None:
        self._status = status
        self._errors = errors
        self._applier = applier
        self._reporter = reporter
        self._metrics = metrics
        self._health = health
        self._source = SourceExport(metrics, probe, errors)
        self._lake = LakeExport(metrics, backlog)
        self._process = ProcessExport(metrics, status, errors)
        self._presence = Presence(status, errors, applier)
        self._lock = threading.Lock()
        self._complete_lsn = 0
        self._report: Report | None = None
        self._unread: Away | None = None
        self._reported_at = float("-inf")
        self._logger = structlog.get_logger("report")
        metrics.add(catalogue.REPORT_ERRORS, 0)

    def status(self) -> dict[str, Any]:
        """The answer of /status: what is stored is at most a second old, or as old as it says when
        the object store does not answer, what the process knows is of this moment. Raises
        StoreError and ManifestCorrupt.
        """
        try:
            report = self._take(patience_seconds=_PATIENCE_SECONDS)
        except ServiceError:
            # Counted by `look`, which also meets it: how many watch the page is no measure of
            # problems.
            if self._report is None:
                raise
            report = self._report
        return self._present(report, self._presence.facts()).to_json()

    def verdict(self) -> Verdict:
        """The verdict of this moment: on what was stored and said by the server at the last look,
        and on what the process knows now. Asks nobody.
        """
        report = self._report
        if report is None:
            return judge(Facts(now=time.time(), unread=self._unread, process=self._seen()))
        return judge(replace(self._present(report, None).facts(), process=self._seen()))

    def _seen(self) -> ProcessSeen:
        seen = self._presence.seen()
        return replace(seen, stuck=(*seen.stuck, *self._health.live_problems()))

    def _present(self, report: Report, process: ProcessFacts | None) -> Report:
        """`report` as it is to be judged now. While what is stored cannot be read, what the probe
        says of the server is newer.
        """
        unread, probed = self._unread, self._source.probed
        if process is not None:
            process = replace(process, seen=self._seen())
        if report.manifest.opened is None and self._status.manifest is not None:
            # The first look may have been taken before the first entry.
            report = replace(report, manifest=self._status.manifest)
        if unread is not None and probed is not None and probed.at > report.taken_at.timestamp():
            report = replace(report, **self._from_probe(report, probed))
        return replace(report, process=process, unread=unread, judged_at=datetime.now(UTC))

    def _from_probe(self, report: Report, probed: Probed) -> dict[str, Any]:
        facts = probed.facts
        if facts is None:
            return {"server": None, "slot": None, "headroom": None, "lost": None, "source_away": probed.away}
        state = self._status.manifest or report.manifest
        return {
            "server": facts.server,
            "slot": facts.slot,
            "headroom": headroom(facts.server, facts.slot, self._source.forecast),
            "lost": lost_from(state, facts.server, facts.slot),
            "source_away": None,
        }

    def look(self) -> None:
        """Takes a report and exports it. Blocks; for a thread."""
        try:
            report = self._take()
            self._presence.applied(report.tables)
            self._complete_lsn = report.complete_lsn
            self._lake.look(report, ingested_at=self._ingested_at())
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

    def look_at_source(self) -> None:
        """Asks the server and exports what it says. Blocks; for a thread, and not the one of
        `look`: either of the two may be away.
        """
        self._source.look(status=self._status, complete_lsn=self._complete_lsn)
        self._metrics.set(catalogue.HEARTBEAT, time.time(), loop="probe")

    def count(self) -> None:
        """Brings the counters of this process up to date; costs microseconds."""
        self._presence.count()
        self._process.count(self._applier() if self._applier is not None else None)
        self._export_lag(time.time())

    def export_verdict(self) -> None:
        """Brings the verdict of this moment to the metrics. When they are rendered, in the thread
        of who asks: the event loop may stand still.
        """
        if self._report is None and self._unread is None:
            return
        try:
            export_verdict(self._metrics, self.verdict())
        except Exception as error:
            self._logger.error("metrics could not be brought up to date", exc_info=error)

    def close(self) -> None:
        """Lets the side connection go, once nobody looks any more."""
        self._source.close()

    def _take(self, *, patience_seconds: float = -1) -> Report:
        """A fresh report; after `patience_seconds` of waiting for somebody else's look the last
        one, if there is one.
        """
        last = self._report
        if not self._lock.acquire(timeout=patience_seconds if last is not None else -1):
            assert last is not None
            return last
        try:
            if self._report is None or time.monotonic() - self._reported_at > _FRESH_SECONDS:
                self._report = self._looked()
                self._reported_at = time.monotonic()
                self._unread = None
            return self._report
        except ServiceError as error:
            self._unread = away(error, since=self._unread.since if self._unread is not None else time.time())
            raise
        finally:
            self._lock.release()

    def _looked(self) -> Report:
        """A report of a manifest that holds what this process has written. Raises ManifestCorrupt
        when it does not: then nothing in it can be relied on.
        """
        written = self._status.manifest
        report = self._reporter.take()
        if written is not None:
            check_holds(report.manifest, written)
        return report

    def _ingested_at(self) -> float | None:
        """Everything committed before this time, by our clock, is in the manifest."""
        proven = self._source.complete_at(self._status.complete_lsn)
        flushed = self._status.commits.last_commit_time_us / 1e6
        return max(proven or 0.0, flushed) or None

    def _export_lag(self, now: float) -> None:
        metrics, status = self._metrics, self._status
        received = self._behind(max(status.received_lsn, status.complete_lsn), now)
        flushed = self._behind(status.complete_lsn, now)
        if status.oldest_unflushed_us is not None:
            flushed = max(flushed or 0.0, now - status.oldest_unflushed_us / 1e6)
        for stage, seconds in (
            ("receive", received),
            ("flush", flushed),
            ("apply", self._lake.freshness(flushed, now=now)),
        ):
            metrics.show(catalogue.LAG_SECONDS, seconds, stage=stage)

    def _behind(self, lsn: int, now: float) -> float | None:
        return self._source.behind_seconds(lsn, now=now) if lsn else None


def check_holds(seen: PipelineState, written: PipelineState) -> None:
    """Raises ManifestCorrupt unless `seen`, read after `written` was stored by this process, can be
    the same manifest.
    """
    if seen.seq < written.seq:
        raise ManifestCorrupt(
            f"the manifest ends at entry {seen.seq}, and this process has stored entry {written.seq}: "
            "objects of the spool are gone",
            hint="stop ingest and the applier; was the spool deleted, unmounted, or cut by a lifecycle "
            "rule? restore it, then `sluice spool verify`",
        )
    if seen.seq == written.seq and seen.previous_sha256 != written.previous_sha256:
        raise ManifestCorrupt(
            f"manifest entry {seen.seq} is not the one that this process has stored",
            hint="was the spool replaced? `sluice spool verify`",
        )


def export_verdict(metrics: Metrics, verdict: Verdict) -> None:
    """Brings a verdict to the metrics that alerts read. While the server is not reached, nothing is
    known of the slot: its series are withdrawn, so that an alert may go by what was last seen.
    """
    metrics.choose(catalogue.HEALTH, "state", verdict.state)
    counts = Tally[str]()
    for problem in verdict.problems:
        counts[problem.code] += problem.count
    for code, kind in BY_CODE.items():
        known = kind.part != "slot" or not counts["server.unreachable"]
        metrics.show(catalogue.PROBLEMS, counts[code] if known else None, code=code)

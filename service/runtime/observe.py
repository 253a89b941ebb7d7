"""What ingest counts and what a report finds, brought to metrics, health and /status.

Invariants: reads plain counters that others write, and changes nothing; a quantity that could not be read is withdrawn, never left at its old value; a
failing look at the server is counted and never disturbs the stream.
"""

import threading
import time
from collections import Counter as Tally
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import structlog

from service.contract.entries import TABLE_STATES
from service.errors import ServiceError
from service.runtime.applier_process import ApplierProcess
from service.runtime.ingest import Ingest
from service.runtime.presence import Presence
from service.runtime.report import Report, Reporter
from service.source.slot import SlotFacts
from service.telemetry import catalogue
from service.telemetry.health import Health
from service.telemetry.metrics import Metrics

WAL_STATUSES = catalogue.SLOT_STATUS.labels["status"]
_FRESH_SECONDS = 1.0
"""How old a report may be that /status answers with: many askers cost one look."""
_PATIENCE_SECONDS = 2.0
"""How long /status waits for a look that hangs in the object store, before it shows the last one with its age."""


class Observer:
    """Feeds `metrics` and `health` from one ingest. `status` may be called from any thread; the others from one."""

    def __init__(self, *, ingest: Ingest, reporter: Reporter, metrics: Metrics, health: Health, applier: ApplierProcess | None) -> None:
        self._ingest = ingest
        self._reporter = reporter
        self._metrics = metrics
        self._health = health
        self._applier = applier
        self._presence = Presence(ingest, applier)
        self._lock = threading.Lock()
        self._report: Report | None = None
        self._reported_at = float("-inf")
        self._rows: dict[tuple[str, str], dict[str, int]] = {}
        self._logger = structlog.get_logger("report")

    def status(self) -> dict[str, Any]:
        """The answer of /status: what is stored is at most a second old, or as old as it says when the object store does not answer, what the process knows
        is of this moment. Raises StoreError and ManifestCorrupt."""
        return replace(self._take(patience_seconds=_PATIENCE_SECONDS), process=self._presence.facts()).to_json()

    def look(self) -> None:
        """Takes a report and exports it. Blocks; for a thread."""
        try:
            report = self._take()
        except ServiceError as error:
            self._ingest.incidents.note("report", error)
            self._metrics.add(catalogue.REPORT_ERRORS, 1, part="manifest")
            self._logger.warning("could not take a report", error=str(error))
            return
        self._presence.applied(report.tables)
        self._metrics.set(catalogue.REPORT_TIMESTAMP, report.taken_at.timestamp())
        self._export_server(report)
        self._export_lake(report)

    def count(self) -> None:
        """Brings the counters of this process up to date; costs microseconds."""
        self._presence.count()
        metrics, view, counts = self._metrics, self._ingest.view, self._ingest.counts
        metrics.choose(catalogue.STATE, "state", view.state)
        metrics.set(catalogue.SOURCE_CONNECTED, float(view.connected))
        metrics.advance_to(catalogue.RECONNECTS, view.reconnects)
        metrics.set(catalogue.RECEIVED_LSN, view.received_lsn)
        metrics.set(catalogue.FLUSHED_LSN, view.flushed_lsn)
        metrics.advance_to(catalogue.RECEIVED_BYTES, counts.received_bytes)
        metrics.advance_to(catalogue.TRANSACTIONS, counts.transactions)
        metrics.advance_to(catalogue.SPOOL_LEFTOVERS, self._ingest.leftovers)
        self._count_commits()
        self._count_copies()
        if self._applier is not None:
            metrics.set(catalogue.APPLY_RUNNING, float(self._applier.running))
            metrics.advance_to(catalogue.APPLY_RESTARTS, self._applier.restarts)
        if view.state == "streaming" and view.connected:
            self._health.ready()
        else:
            self._health.not_ready(view.state)

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

    def _count_rows(self, tables: Mapping[tuple[str, str], Mapping[str, int]]) -> None:
        for table, rows in list(tables.items()):
            before = self._rows.get(table, {})
            now = dict(rows)
            self._metrics.add_rows(*table, {op: count - before.get(op, 0) for op, count in now.items()})
            self._rows[table] = now

    def _count_commits(self) -> None:
        committer, metrics = self._ingest.committer, self._metrics
        if committer is None:
            return
        counts = committer.counts
        self._count_rows(counts.tables)
        metrics.advance_to(catalogue.UNCHANGED_VALUES, counts.unchanged_values)
        metrics.advance_to(catalogue.SPOOL_ENTRIES, counts.entries)
        metrics.advance_to(catalogue.SPOOL_FILES, counts.files)
        metrics.advance_to(catalogue.SPOOL_BYTES, counts.bytes)
        metrics.advance_to(catalogue.SPOOL_ROWS, counts.rows)
        metrics.advance_to(catalogue.SPOOL_RETRIES, counts.retries)
        metrics.advance_to(catalogue.FLUSH_SECONDS, counts.upload_seconds, phase="upload")
        metrics.advance_to(catalogue.FLUSH_SECONDS, counts.commit_seconds, phase="commit")
        if counts.last_commit_time_us:
            metrics.set(catalogue.LAST_FLUSHED_COMMIT, counts.last_commit_time_us / 1e6)

    def _count_copies(self) -> None:
        if self._ingest.copier is None:
            return
        progress = self._ingest.copier.progress
        self._metrics.set(catalogue.SNAPSHOT_TABLES, progress.tables_total - progress.tables_done, state="waiting")
        self._metrics.set(catalogue.SNAPSHOT_TABLES, progress.tables_done, state="done")
        self._metrics.set(catalogue.SNAPSHOT_ESTIMATED_ROWS, max(0, progress.estimated_rows))
        self._metrics.advance_to(catalogue.SNAPSHOT_ROWS, progress.rows)
        self._metrics.advance_to(catalogue.SNAPSHOT_BYTES, progress.bytes)

    def _export_server(self, report: Report) -> None:
        metrics = self._metrics
        if report.unreachable:
            metrics.add(catalogue.REPORT_ERRORS, 1, part="server")
        if report.server is None:
            for gauge in (catalogue.SOURCE_WAL_LSN, catalogue.LAG_BYTES):
                metrics.withdraw(gauge)
        else:
            metrics.set(catalogue.SOURCE_WAL_LSN, report.server.wal_end_lsn)
            stages = {"receive": self._ingest.view.received_lsn, "flush": report.manifest.through_lsn, "apply": report.complete_lsn}
            for stage, lsn in stages.items():
                metrics.set(catalogue.LAG_BYTES, report.behind_bytes(lsn) or 0 if lsn else 0, stage=stage)
            metrics.withdraw(catalogue.PIPELINE_INFO)
            opened = report.manifest.opened
            if opened is not None:
                metrics.set(
                    catalogue.PIPELINE_INFO,
                    1,
                    slot=opened.slot,
                    publication=opened.publication,
                    database=opened.database,
                    server_version=str(report.server.server_version // 10000),
                )
        self._export_slot(report, report.slot)

    def _export_slot(self, report: Report, slot: SlotFacts | None) -> None:
        metrics = self._metrics
        for gauge in (
            catalogue.SLOT_ACTIVE,
            catalogue.CONFIRMED_FLUSH_LSN,
            catalogue.SLOT_RETAINED,
            catalogue.SLOT_SAFE,
            catalogue.SLOT_UNBOUNDED,
            catalogue.SLOT_XMIN_AGE,
            catalogue.SLOT_STATUS,
        ):
            metrics.withdraw(gauge)
        if slot is None:
            if report.server is not None and report.manifest.opened is not None:
                metrics.choose(catalogue.SLOT_STATUS, "status", "lost")
            return
        metrics.set(catalogue.SLOT_ACTIVE, float(slot.active_pid is not None))
        metrics.set(catalogue.SLOT_UNBOUNDED, float(slot.safe_wal_size is None))
        metrics.choose(catalogue.SLOT_STATUS, "status", slot.wal_status if slot.wal_status in WAL_STATUSES and not slot.invalidated else "lost")
        if slot.confirmed_flush_lsn is not None:
            metrics.set(catalogue.CONFIRMED_FLUSH_LSN, slot.confirmed_flush_lsn)
        if slot.restart_lsn is not None:
            metrics.set(catalogue.SLOT_RETAINED, report.behind_bytes(slot.restart_lsn) or 0)
        if slot.safe_wal_size is not None:
            metrics.set(catalogue.SLOT_SAFE, slot.safe_wal_size)
        if slot.catalog_xmin_age is not None:
            metrics.set(catalogue.SLOT_XMIN_AGE, slot.catalog_xmin_age)

    def _export_lake(self, report: Report) -> None:
        metrics = self._metrics
        states = Tally(table.state for table in report.tables)
        for state in TABLE_STATES:
            metrics.set(catalogue.TABLES, states[state], state=state)
        prepared = report.manifest.prepared.values()
        metrics.set(catalogue.PREPARED, len(prepared))
        metrics.set(catalogue.PREPARED_AGE, max(map(report.age_seconds, prepared), default=0.0))
        metrics.set(catalogue.MANIFEST_SEQ, report.manifest.seq)
        metrics.set(catalogue.APPLY_PENDING, report.pending_entries)
        metrics.set(catalogue.APPLY_ROWS, sum(table.rows_applied for table in report.tables))
        if report.complete_lsn:
            metrics.set(catalogue.APPLIED_LSN, report.complete_lsn)
        if report.applied is not None:
            metrics.set(catalogue.APPLY_LAST_SUCCESS, datetime.fromisoformat(report.applied.written_at).timestamp())
        lags = sorted(table.lag_seconds for table in report.tables if table.lag_seconds is not None)
        if not lags:
            metrics.withdraw(catalogue.APPLY_FRESHNESS)
            return
        for name, share in (("max", 1.0), ("p95", 0.95), ("p50", 0.5)):
            metrics.set(catalogue.APPLY_FRESHNESS, lags[min(len(lags) - 1, int(share * len(lags)))], quantile_of_tables=name)

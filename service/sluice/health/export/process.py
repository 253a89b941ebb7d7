"""What this process counts, brought to metrics: plain numbers of the stages, handed over once per
tick.

Invariant: reads what others write and changes nothing; costs microseconds, for it runs on the event
loop.
"""

import time
from collections.abc import Mapping
from itertools import product

from sluice.ingest.commit.committer import Committer
from sluice.ingest.snapshot.snapshotter import Copier
from sluice.ingest.supervisor import Ingest
from sluice.process.applier_process import ApplierProcess
from sluice.telemetry import catalogue
from sluice.telemetry.metrics import Metrics


class ProcessExport:
    """Feeds `metrics` from one ingest. Belongs to the event loop."""

    def __init__(self, metrics: Metrics, ingest: Ingest, applier: ApplierProcess | None) -> None:
        self._metrics = metrics
        self._ingest = ingest
        self._applier = applier
        self._rows: dict[tuple[str, str], dict[str, int]] = {}
        self._committer: Committer | None = None
        counts = ingest.counts
        metrics.attach(catalogue.TRANSACTION_ROWS, counts.transaction_rows)
        metrics.attach(catalogue.TRANSACTION_BYTES, counts.transaction_bytes)
        metrics.attach(catalogue.FLUSH_DURATION, counts.encode_seconds, phase="encode")
        metrics.attach(catalogue.FLUSH_DURATION, counts.flush_seconds, phase="total")
        metrics.set(catalogue.TABLES_DROPPED, 0)
        # A counter that appears with its first event would hide it from rate().
        for state in catalogue.TABLE_EVENTS.labels["state"]:
            metrics.add(catalogue.TABLE_EVENTS, 0, state=state)
        for kind, outcome in product(*catalogue.SCHEMA_CHANGES.labels.values()):
            metrics.add(catalogue.SCHEMA_CHANGES, 0, kind=kind, outcome=outcome)
        limits = ingest.options.builder
        # The builder lets all open transactions together hold twice what one may.
        metrics.set(catalogue.REORDER_LIMIT, 2 * limits.body_bytes, place="memory")
        metrics.set(catalogue.REORDER_LIMIT, limits.staged_bytes, place="store")

    def count(self) -> None:
        """Brings everything up to date."""
        self._ingest.refresh()
        self._count_stream()
        self._count_session()
        if self._ingest.committer is not None:
            self._count_commits(self._ingest.committer)
        if self._ingest.copier is not None:
            self._count_copies(self._ingest.copier)
        if self._ingest.book is not None:
            for state, count in list(self._ingest.book.transitions.items()):
                self._metrics.advance_to(catalogue.TABLE_EVENTS, count, state=state)
            for (kind, outcome), count in list(self._ingest.book.schema_changes.items()):
                self._metrics.advance_to(catalogue.SCHEMA_CHANGES, count, kind=kind, outcome=outcome)
        if self._applier is not None:
            self._metrics.set(catalogue.APPLY_RUNNING, float(self._applier.running))
            self._metrics.advance_to(catalogue.APPLY_RESTARTS, self._applier.restarts)

    def _count_stream(self) -> None:
        metrics, view = self._metrics, self._ingest.view
        metrics.choose(catalogue.STATE, "state", view.state)
        metrics.set(catalogue.SOURCE_CONNECTED, float(view.connected), role="replication")
        for reason in catalogue.RECONNECT_REASONS:
            metrics.advance_to(catalogue.RECONNECTS, view.reconnect_reasons[reason], reason=reason)
        metrics.set(catalogue.RETRY_DELAY, view.retry_delay_s)
        metrics.show(catalogue.RECEIVED_LSN, view.received_lsn or None)
        metrics.show(
            catalogue.FLUSHED_LSN, self._ingest.log.state.through_lsn if self._ingest.log is not None else None
        )
        metrics.show(catalogue.LAST_MESSAGE, view.last_message_at or None)
        metrics.show(catalogue.LAST_FEEDBACK, view.last_feedback_at or None)
        cause = self._ingest.backpressure_cause
        for name, seconds in self._ingest.backpressure.seconds.items():
            metrics.set(catalogue.BACKPRESSURE, float(name == cause), cause=name)
            metrics.advance_to(catalogue.BACKPRESSURE_SECONDS, seconds, cause=name)
        self._ingest.errors.export(metrics)

    def _count_session(self) -> None:
        metrics, counts = self._metrics, self._ingest.counts
        metrics.advance_to(catalogue.RECEIVED_BYTES, counts.received_bytes)
        metrics.advance_to(catalogue.DECODE_SECONDS, counts.decode_cpu_s)
        for outcome, count in (
            ("committed", counts.transactions),
            ("aborted", counts.aborted),
            ("skipped", counts.skipped),
        ):
            metrics.advance_to(catalogue.TRANSACTIONS, count, outcome=outcome)
        for trigger, count in counts.flushes.items():
            metrics.advance_to(catalogue.FLUSHES, count, trigger=trigger)
        metrics.set(catalogue.REORDER_BYTES, counts.open_bytes, place="memory")
        metrics.set(catalogue.REORDER_BYTES, counts.staged_bytes, place="store")
        metrics.set(catalogue.REORDER_TRANSACTIONS, counts.open_transactions)
        metrics.advance_to(catalogue.SPOOL_LEFTOVERS, self._ingest.leftovers)
        # Without a connection the decoder has nothing to do.
        self._beat("decoder", counts.decoder_beat if self._ingest.view.connected else time.time())

    def _count_commits(self, committer: Committer) -> None:
        metrics, counts = self._metrics, committer.counts
        if committer is not self._committer:
            self._committer = committer
            metrics.attach(catalogue.SPOOL_FILE_BYTES, counts.file_bytes)
            metrics.attach(catalogue.FLUSH_DURATION, counts.upload_seconds, phase="upload")
            metrics.attach(catalogue.FLUSH_DURATION, counts.commit_seconds, phase="commit")
        self._count_rows(counts.tables)
        metrics.advance_to(catalogue.UNCHANGED_VALUES, counts.unchanged_values)
        metrics.advance_to(catalogue.SPOOL_ENTRIES, counts.entries)
        for kind, files in counts.files.items():
            metrics.advance_to(catalogue.SPOOL_FILES, files.files, kind=kind)
            metrics.advance_to(catalogue.SPOOL_BYTES, files.bytes, kind=kind)
            metrics.advance_to(catalogue.SPOOL_ROWS, files.rows, kind=kind)
        metrics.advance_to(catalogue.SPOOL_RETRIES, counts.retries)
        metrics.show(catalogue.LAST_FLUSHED_COMMIT, counts.last_commit_time_us / 1e6 or None)
        self._beat("committer", committer.beat)

    def _count_rows(self, tables: Mapping[tuple[str, str], Mapping[str, int]]) -> None:
        for table, rows in list(tables.items()):
            before = self._rows.get(table, {})
            now = dict(rows)
            if now != before:
                self._metrics.add_rows(*table, {op: count - before.get(op, 0) for op, count in now.items()})
                self._rows[table] = now

    def _count_copies(self, copier: Copier) -> None:
        metrics, progress, totals = self._metrics, copier.progress, copier.totals
        metrics.attach(catalogue.SNAPSHOT_DURATION, totals.table_seconds)
        under_way = bool(progress.tables_total) and bool(copier.pending)
        copying = int(under_way and bool(progress.table) and progress.tables_done < progress.tables_total)
        metrics.set(
            catalogue.SNAPSHOT_TABLES, max(0, progress.tables_total - progress.tables_done - copying), state="waiting"
        )
        metrics.set(catalogue.SNAPSHOT_TABLES, copying, state="reading")
        metrics.set(catalogue.SNAPSHOT_TABLES, progress.tables_done, state="done")
        metrics.show(catalogue.SNAPSHOT_ESTIMATED_ROWS, progress.expected_rows)
        metrics.show(catalogue.SNAPSHOT_START, progress.began_at if under_way else None)
        metrics.show(catalogue.SNAPSHOT_ETA, progress.seconds_left(time.monotonic()) if under_way else None)
        metrics.advance_to(catalogue.SNAPSHOT_ROWS, totals.rows)
        metrics.advance_to(catalogue.SNAPSHOT_BYTES, totals.bytes)
        self._beat("snapshot", totals.beat)
        self._beat("catalog", self._ingest.view.catalog_beat)

    def _beat(self, loop: str, at: float) -> None:
        self._metrics.show(catalogue.HEARTBEAT, at or None, loop=loop)

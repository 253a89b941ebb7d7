"""What this process counts, brought to metrics: plain numbers of the stages, handed over once per
tick.

Invariant: reads what others write and changes nothing; costs microseconds, for it runs on the event
loop.
"""

import time
from collections.abc import Mapping
from itertools import product

from sluice.health.facts import ChildSeen
from sluice.ingest.status import IngestStatus
from sluice.telemetry import catalogue
from sluice.telemetry.error_counts import ErrorCounts
from sluice.telemetry.metrics import Metrics


class ProcessExport:
    """Feeds `metrics` from one ingest. Belongs to the event loop."""

    def __init__(self, metrics: Metrics, status: IngestStatus, errors: ErrorCounts) -> None:
        self._metrics = metrics
        self._status = status
        self._errors = errors
        self._rows: dict[tuple[str, str], dict[str, int]] = {}
        counts, commits = status.stream, status.commits
        metrics.attach(catalogue.TRANSACTION_ROWS, counts.transaction_rows)
        metrics.attach(catalogue.TRANSACTION_BYTES, counts.transaction_bytes)
        metrics.attach(catalogue.FLUSH_DURATION, counts.encode_seconds, phase="encode")
        metrics.attach(catalogue.FLUSH_DURATION, counts.flush_seconds, phase="total")
        metrics.attach(catalogue.SPOOL_FILE_BYTES, commits.file_bytes)
        metrics.attach(catalogue.FLUSH_DURATION, commits.upload_seconds, phase="upload")
        metrics.attach(catalogue.FLUSH_DURATION, commits.commit_seconds, phase="commit")
        metrics.attach(catalogue.SNAPSHOT_DURATION, status.snapshots.table_seconds)
        metrics.set(catalogue.TABLES_DROPPED, 0)
        # A counter that appears with its first event would hide it from rate().
        for state in catalogue.TABLE_EVENTS.labels["state"]:
            metrics.add(catalogue.TABLE_EVENTS, 0, state=state)
        for cause in catalogue.RESYNCS.labels["cause"]:
            metrics.add(catalogue.RESYNCS, 0, cause=cause)
        for kind, outcome in product(*catalogue.SCHEMA_CHANGES.labels.values()):
            metrics.add(catalogue.SCHEMA_CHANGES, 0, kind=kind, outcome=outcome)
        errors.announce(metrics, catalogue.INGEST_COMPONENTS)

    def count(self, applier: ChildSeen | None) -> None:
        """Brings everything up to date. `applier` is the child that this process supervises."""
        self._count_stream()
        self._count_session()
        self._count_commits()
        self._count_snapshots()
        for state, count in list(self._status.tables.transitions.items()):
            self._metrics.advance_to(catalogue.TABLE_EVENTS, count, state=state)
        for cause, count in list(self._status.tables.resyncs.items()):
            self._metrics.advance_to(catalogue.RESYNCS, count, cause=cause)
        for (kind, outcome), count in list(self._status.tables.schema_changes.items()):
            self._metrics.advance_to(catalogue.SCHEMA_CHANGES, count, kind=kind, outcome=outcome)
        if applier is not None:
            self._metrics.set(catalogue.APPLY_RUNNING, float(applier.running))
            self._metrics.advance_to(catalogue.APPLY_RESTARTS, applier.restarts)

    def _count_stream(self) -> None:
        metrics, status = self._metrics, self._status
        metrics.choose(catalogue.STATE, "state", status.state)
        metrics.set(catalogue.SOURCE_CONNECTED, float(status.connected), role="replication")
        for reason in catalogue.RECONNECT_REASONS:
            metrics.advance_to(catalogue.RECONNECTS, status.reconnect_reasons[reason], reason=reason)
        metrics.set(catalogue.RETRY_DELAY, status.retry_delay_s)
        metrics.show(catalogue.RECEIVED_LSN, status.received_lsn or None)
        metrics.show(catalogue.FLUSHED_LSN, status.manifest.through_lsn if status.manifest is not None else None)
        metrics.show(catalogue.LAST_MESSAGE, status.last_message_at or None)
        metrics.show(catalogue.LAST_FEEDBACK, status.last_feedback_at or None)
        for name, seconds in status.backpressure_seconds.items():
            metrics.set(catalogue.BACKPRESSURE, float(name == status.backpressure_cause), cause=name)
            metrics.advance_to(catalogue.BACKPRESSURE_SECONDS, seconds, cause=name)
        self._errors.export(metrics)

    def _count_session(self) -> None:
        metrics, counts = self._metrics, self._status.stream
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
        # Limits may change while the process runs.
        metrics.set(catalogue.REORDER_LIMIT, self._status.memory_limit_bytes, place="memory")
        metrics.set(catalogue.REORDER_LIMIT, self._status.staged_limit_bytes, place="store")
        metrics.advance_to(catalogue.SPOOL_LEFTOVERS, self._status.leftovers)
        # Without a connection the decoder has nothing to do.
        self._beat("decoder", counts.decoder_beat if self._status.connected else time.time())

    def _count_commits(self) -> None:
        metrics, counts = self._metrics, self._status.commits
        self._count_rows(counts.tables)
        metrics.advance_to(catalogue.UNCHANGED_VALUES, counts.unchanged_values)
        metrics.advance_to(catalogue.SPOOL_ENTRIES, counts.entries)
        for kind, files in counts.files.items():
            metrics.advance_to(catalogue.SPOOL_FILES, files.files, kind=kind)
            metrics.advance_to(catalogue.SPOOL_BYTES, files.bytes, kind=kind)
            metrics.advance_to(catalogue.SPOOL_ROWS, files.rows, kind=kind)
        metrics.advance_to(catalogue.SPOOL_RETRIES, counts.retries)
        metrics.show(catalogue.LAST_FLUSHED_COMMIT, counts.last_commit_time_us / 1e6 or None)
        self._beat("committer", counts.beat)

    def _count_rows(self, tables: Mapping[tuple[str, str], Mapping[str, int]]) -> None:
        for table, rows in list(tables.items()):
            before = self._rows.get(table, {})
            now = dict(rows)
            if now != before:
                self._metrics.add_rows(*table, {op: count - before.get(op, 0) for op, count in now.items()})
                self._rows[table] = now

    def _count_snapshots(self) -> None:
        metrics, totals = self._metrics, self._status.snapshots
        progress = totals.progress
        under_way = bool(progress.tables_total) and bool(totals.pending)
        reading = len(progress.tables) if under_way else 0
        metrics.set(
            catalogue.SNAPSHOT_TABLES, max(0, progress.tables_total - progress.tables_done - reading), state="waiting"
        )
        metrics.set(catalogue.SNAPSHOT_TABLES, reading, state="reading")
        metrics.set(catalogue.SNAPSHOT_TABLES, progress.tables_done, state="done")
        metrics.show(catalogue.SNAPSHOT_ESTIMATED_ROWS, progress.expected_rows)
        metrics.show(catalogue.SNAPSHOT_START, progress.began_at if under_way else None)
        metrics.show(catalogue.SNAPSHOT_ETA, progress.seconds_left(time.monotonic()) if under_way else None)
        waits = totals.load_wait if totals.pending else None
        waiting = waits.signals if waits is not None else ()
        for signal in catalogue.SNAPSHOT_WAITING.labels["signal"]:
            metrics.set(catalogue.SNAPSHOT_WAITING, signal in waiting, signal=signal)
        metrics.advance_to(catalogue.SNAPSHOT_ROWS, totals.rows)
        metrics.advance_to(catalogue.SNAPSHOT_BYTES, totals.bytes)
        self._beat("snapshot", totals.beat)
        self._beat("catalog", self._status.catalog_beat)

    def _beat(self, loop: str, at: float) -> None:
        self._metrics.show(catalogue.HEARTBEAT, at or None, loop=loop)

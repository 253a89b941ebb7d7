"""What only the running process knows of its pipeline: its age, what it has received, what passed
in the last hour, what went wrong.

Invariant: reads what others count and changes nothing; every fact is from memory, so that it is
there while PostgreSQL and the object store are away.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

from sluice.health.facts import ChildSeen, ProcessSeen
from sluice.health.process_facts import ProcessFacts
from sluice.health.snapshots import SnapshotReport, SnapshotRound, under_way
from sluice.health.tables import TableReport
from sluice.health.throughput import Throughput
from sluice.ingest.status import IngestStatus, SnapshotProgress
from sluice.telemetry.recent_errors import RecentErrors

QUANTITIES = ("transactions", "rows", "bytes", "snapshot_rows", "applied_rows")
"""Counted by minute: transactions and bytes as received, rows as they became durable, rows of
snapshots, change rows applied to the lake.
"""
STUCK_SECONDS = 300.0
"""A stage that works and finished nothing for this long; an upload or a batch takes seconds."""


class Presence:
    """Watches one ingest, and the applier beside it in `up`. May be asked from any thread."""

    def __init__(self, status: IngestStatus, errors: RecentErrors, applier: Callable[[], ChildSeen] | None) -> None:
        self._status = status
        self._errors = errors
        self._applier = applier
        self._started_at = datetime.now(UTC)
        self._throughput = Throughput(QUANTITIES)
        self._applied: dict[tuple[str, str], tuple[int, int]] = {}
        self._applied_rows = 0
        self._snapshot_total = 0
        self._under_way: SnapshotProgress | None = None
        self._lock = threading.Lock()

    def count(self) -> None:
        """Brings the minutes up to date; costs microseconds."""
        with self._lock:
            self._throughput.add(
                {
                    "transactions": self._status.stream.transactions,
                    "bytes": self._status.stream.received_bytes,
                    "rows": self._status.commits.rows,
                    "snapshot_rows": self._snapshot_rows(),
                },
                now=time.time(),
            )

    def applied(self, tables: Iterable[TableReport]) -> None:
        """What the applier's records say now; a generation begins at no rows. Rows that were
        applied before the first look are not counted.
        """
        first = not self._applied
        for table in tables:
            key = (table.schema, table.table)
            generation, before = self._applied.get(key, (0, table.rows_applied if first else 0))
            self._applied_rows += (
                table.rows_applied - before if generation in (0, table.generation) else table.rows_applied
            )
            self._applied[key] = (table.generation, table.rows_applied)
        self._throughput.add({"applied_rows": self._applied_rows}, now=time.time())

    def seen(self) -> ProcessSeen:
        """What health is judged by; costs microseconds."""
        status = self._status
        streaming = status.state == "streaming" and status.connected
        return ProcessSeen(
            state=status.state,
            connected=status.connected,
            streaming_since=time.time() - (time.monotonic() - status.streaming_at) if streaming else None,
            stuck=tuple(self._stuck()),
            errors=self._errors.recent(),
            applier=self._applier() if self._applier is not None else None,
        )

    def _stuck(self) -> Iterator[str]:
        status, now = self._status, time.time()
        beats = {
            "committer": status.commits.beat,
            # Without a connection the decoder has nothing to do.
            "decoder": status.stream.decoder_beat if status.connected else 0.0,
            # Not the snapshotter: it may rightly wait for hours until older transactions end, and a
            # table whose snapshot takes long is a problem of its own.
            "catalog": status.catalog_beat,
        }
        for stage, at in beats.items():
            if at and now - at > STUCK_SECONDS:
                yield f"the {stage} has not moved for {now - at:.0f} s"

    def facts(self) -> ProcessFacts:
        self.count()
        status = self._status
        return ProcessFacts(
            seen=self.seen(),
            started_at=self._started_at,
            instance=status.instance,
            reconnects=status.reconnects,
            received_lsn=status.received_lsn,
            complete_lsn=status.complete_lsn,
            oldest_unflushed_at=None if status.oldest_unflushed_us is None else status.oldest_unflushed_us / 1e6,
            snapshot=self._snapshot(),
            throughput=tuple(self._throughput.to_json(now=time.time())),
        )

    def _snapshot_rows(self) -> int:
        """Rows of snapshots that this process has read; a round's own counts begin at nothing."""
        progress = self._status.snapshots.progress
        if progress is not self._under_way and self._under_way is not None:
            self._snapshot_total += self._under_way.rows_before + self._under_way.rows
        self._under_way = progress
        return self._snapshot_total + progress.rows_before + progress.rows

    def _snapshot(self) -> SnapshotRound | None:
        progress, now = self._status.snapshots.progress, time.monotonic()
        if not self._status.snapshots.pending or not progress.table:
            return None
        present = under_way(
            progress.table,
            rows=progress.rows,
            estimated_rows=progress.estimated_rows,
            seconds=now - progress.table_started_at,
        )
        waiting = [
            SnapshotReport(name, None, rows if rows >= 0 else None, None, None)
            for name, rows in progress.waiting.items()
        ]
        rows = progress.rows_before + progress.rows
        return SnapshotRound(
            (present, *waiting), rows=rows, seconds=now - progress.started_at, eta_seconds=progress.seconds_left(now)
        )

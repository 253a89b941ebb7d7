"""What only the running process knows of its pipeline: its age, what it has received, what passed
in the last hour, what went wrong.

Invariant: reads what others count and changes nothing; every fact is from memory, so that it is
there while PostgreSQL and the object store are away.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from sluice.health.facts import ProcessSeen
from sluice.health.process_facts import ProcessFacts
from sluice.health.snapshots import SnapshotReport, SnapshotRound, under_way
from sluice.health.tables import TableReport
from sluice.health.throughput import Throughput
from sluice.ingest.snapshot.snapshotter import CopyProgress
from sluice.ingest.supervisor import Ingest
from sluice.process.applier_process import ApplierProcess

QUANTITIES = ("transactions", "rows", "bytes", "copied_rows", "applied_rows")
"""Counted by minute: transactions and bytes as received, rows as they became durable, rows of
snapshots, change rows applied to the lake.
"""
STUCK_SECONDS = 300.0
"""A stage that works and finished nothing for this long; an upload or a batch takes seconds."""


class Presence:
    """Watches one ingest, and the applier beside it in `up`. May be asked from any thread."""

    def __init__(self, ingest: Ingest, applier: ApplierProcess | None) -> None:
        self._ingest = ingest
        self._applier = applier
        self._started_at = datetime.now(UTC)
        self._throughput = Throughput(QUANTITIES)
        self._applied: dict[tuple[str, str], tuple[int, int]] = {}
        self._applied_rows = 0
        self._copied = 0
        self._copying: CopyProgress | None = None
        self._lock = threading.Lock()

    def count(self) -> None:
        """Brings the minutes up to date; costs microseconds."""
        counts, committer = self._ingest.counts, self._ingest.committer
        with self._lock:
            self._throughput.add(
                {
                    "transactions": counts.transactions,
                    "bytes": counts.received_bytes,
                    "rows": committer.counts.rows if committer is not None else 0,
                    "copied_rows": self._copied_rows(),
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
        view = self._ingest.view
        streaming = view.state == "streaming" and view.connected
        return ProcessSeen(
            state=view.state,
            connected=view.connected,
            streaming_since=time.time() - (time.monotonic() - view.streaming_at) if streaming else None,
            stuck=tuple(self._stuck()),
            errors=self._ingest.errors.recent(),
            applier=self._applier.seen if self._applier is not None else None,
        )

    def _stuck(self) -> Iterator[str]:
        ingest, now = self._ingest, time.time()
        beats = {
            "committer": ingest.committer.beat if ingest.committer is not None else 0.0,
            # Without a connection the decoder has nothing to do.
            "decoder": ingest.counts.decoder_beat if ingest.view.connected else 0.0,
            # Not the copier: it may rightly wait for hours until older transactions end, and a
            # table whose snapshot takes long is a problem of its own.
            "catalog": ingest.view.catalog_beat,
        }
        for stage, at in beats.items():
            if at and now - at > STUCK_SECONDS:
                yield f"the {stage} has not moved for {now - at:.0f} s"

    def facts(self) -> ProcessFacts:
        self.count()
        view = self._ingest.view
        return ProcessFacts(
            seen=self.seen(),
            started_at=self._started_at,
            instance=self._ingest.options.instance,
            reconnects=view.reconnects,
            received_lsn=view.received_lsn,
            complete_lsn=view.complete_lsn,
            oldest_unflushed_at=None if view.oldest_unflushed_us is None else view.oldest_unflushed_us / 1e6,
            snapshot=self._snapshot(),
            throughput=tuple(self._throughput.to_json(now=time.time())),
        )

    def _copied_rows(self) -> int:
        """Rows of snapshots that this process has read; a round's own counts begin at nothing."""
        progress = self._ingest.copier.progress if self._ingest.copier is not None else None
        if progress is not self._copying and self._copying is not None:
            self._copied += self._copying.rows_before + self._copying.rows
        self._copying = progress
        return self._copied + (progress.rows_before + progress.rows if progress is not None else 0)

    def _snapshot(self) -> SnapshotRound | None:
        copier = self._ingest.copier
        if copier is None or not copier.pending or not copier.progress.table:
            return None
        progress, now = copier.progress, time.monotonic()
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

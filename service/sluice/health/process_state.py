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
from sluice.health.neighbours import Neighbour
from sluice.health.process_facts import ProcessFacts
from sluice.health.snapshots import SnapshotReport, SnapshotRound, under_way
from sluice.health.tables import TableReport
from sluice.health.throughput import Throughput
from sluice.ingest.status import IngestStatus
from sluice.telemetry.recent_errors import RecentErrors
from sluice.telemetry.waits import Wait

QUANTITIES = ("transactions", "rows", "bytes", "snapshot_rows", "applied_rows")
"""Counted by minute: transactions and bytes as received, rows as they became durable, rows of
snapshots, change rows applied to the lake.
"""
STUCK_SECONDS = 300.0
"""A stage that works and finished nothing for this long; an upload or a batch takes seconds."""
UNREAD_SECONDS = 2.0
"""Shorter pauses in reading the stream are how it works, and no news."""


class ProcessState:
    """Watches one ingest, and the applier beside it in `up`. May be asked from any thread."""

    def __init__(
        self,
        status: IngestStatus,
        errors: RecentErrors,
        applier: Callable[[], ChildSeen] | None,
        *,
        neighbours: Callable[[], tuple[Neighbour, ...]] = tuple,
        runbook_url: str = "",
    ) -> None:
        self._status = status
        self._errors = errors
        self._applier = applier
        self._neighbours = neighbours
        self._runbook_url = runbook_url
        self._started_at = datetime.now(UTC)
        self._throughput = Throughput(QUANTITIES)
        self._applied: dict[tuple[str, str], tuple[int, int]] = {}
        self._applied_rows = 0
        self._lock = threading.Lock()

    def count(self) -> None:
        """Brings the minutes up to date; costs microseconds."""
        with self._lock:
            self._throughput.add(
                {
                    "transactions": self._status.stream.transactions,
                    "bytes": self._status.stream.received_bytes,
                    "rows": self._status.commits.rows,
                    "snapshot_rows": self._status.snapshots.rows,
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
        waits = status.snapshots.load_wait if status.snapshots.pending else None
        return ProcessSeen(
            state=status.state,
            connected=status.connected,
            streaming_since=time.time() - (time.monotonic() - status.streaming_at) if streaming else None,
            stuck=tuple(self._stuck()),
            errors=self._errors.recent(),
            applier=self._applier() if self._applier is not None else None,
            configuration_refused=status.configuration_refused,
            configuration_refused_at=status.configuration_refused_at or None,
            snapshots_wait=waits.reason if waits is not None else "",
            snapshots_wait_since=waits.began_at if waits is not None else None,
            snapshot_is_held=waits is not None and waits.holding,
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
                yield f"the {stage} has made no progress for {now - at:.0f} s"

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
            configured_at=datetime.fromtimestamp(status.configured_at, UTC) if status.configured_at else None,
            waits=tuple(self._waits()),
            errors=self._errors.kept(),
            neighbours=self._neighbours(),
            runbook_url=self._runbook_url,
            ddl_signal_lacks=status.ddl_signal_lacks,
        )

    def _waits(self) -> Iterator[Wait]:
        """What the stages say, and what their counters show."""
        status, now = self._status, time.time()
        yield from (*status.waits.now(), *status.snapshots.waits.now())
        if status.backpressure_cause is not None and status.unread_s > UNREAD_SECONDS:
            busy = "the upload to the spool" if status.backpressure_cause == "upload" else "the decoder"
            yield Wait("reading the stream", f"{busy} to catch up (backpressure)", now - status.unread_s)
        loaded = status.snapshots.load_wait
        if loaded is not None and status.snapshots.pending:
            yield Wait("snapshots", loaded.reason, loaded.began_at)
        most = status.snapshots.most_rows_per_second
        if most and status.snapshots.progress.tables:
            yield Wait("snapshots", f"source.snapshot_rows_per_second lets them read {most:,} rows/s", None)

    def _snapshot(self) -> SnapshotRound | None:
        progress, now = self._status.snapshots.progress, time.monotonic()
        present = dict(progress.tables)
        waits = self._status.snapshots.load_wait
        if not self._status.snapshots.pending or (not present and waits is None):
            return None
        under = [
            under_way(
                name,
                rows=one.rows_before + one.rows,
                estimated_rows=one.estimated_rows,
                seconds=now - one.started_at,
                rows_before=one.rows_before,
                nbytes=one.bytes,
            )
            for name, one in present.items()
        ]
        waiting = [
            SnapshotReport(name, None, rows if rows >= 0 else None, None, None)
            for name, rows in dict(progress.waiting).items()
        ]
        return SnapshotRound(
            (*under, *waiting),
            rows=progress.rows,
            seconds=now - progress.started_at,
            eta_seconds=progress.seconds_left(now),
            waits=waits.reason if waits is not None else "",
        )

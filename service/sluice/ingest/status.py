"""What ingest shows of itself: the one value that metrics, probes and the status page read.

Invariant: written by ingest alone, read by anyone, never a source of truth: no stage of ingest
decides anything by it. Reading it costs nothing and waits for nobody. `manifest` is never behind
what was acknowledged to the server.
"""

import time
from collections import Counter
from dataclasses import dataclass, field

from sluice.contract.table_state import State
from sluice.manifest.state import PipelineState
from sluice.telemetry import catalogue
from sluice.telemetry.distribution import Distribution


def _seconds() -> Distribution:
    return Distribution(catalogue.FLUSH_DURATION.buckets)


@dataclass(slots=True)
class StreamCounts:
    """Changes received and decoded by this process. The decoder thread adds to it once per batch or
    flush.

    `transactions` are those committed with changes of ours. What begins with `open` or `staged` is
    no counter but the present, of transactions that have not ended.
    """

    received_bytes: int = 0
    transactions: int = 0
    aborted: int = 0
    skipped: int = 0
    decode_cpu_s: float = 0.0
    transaction_rows: Distribution = field(default_factory=lambda: Distribution(catalogue.TRANSACTION_ROWS.buckets))
    transaction_bytes: Distribution = field(default_factory=lambda: Distribution(catalogue.TRANSACTION_BYTES.buckets))
    encode_seconds: Distribution = field(default_factory=_seconds)
    flush_seconds: Distribution = field(default_factory=_seconds)
    flushes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(catalogue.FLUSHES.labels["trigger"], 0))
    decoder_beat: float = 0.0
    """When the decoder last finished a step, unix seconds."""
    open_transactions: int = 0
    open_bytes: int = 0
    staged_bytes: int = 0


@dataclass(slots=True)
class FileCounts:
    """Segment files of one kind that were stored."""

    files: int = 0
    bytes: int = 0
    rows: int = 0


@dataclass(slots=True)
class CommitCounts:
    """Files and manifest entries stored by this process. `rows` are those that entries published."""

    entries: int = 0
    rows: int = 0
    retries: int = 0
    last_commit_time_us: int = 0
    unchanged_values: int = 0
    tables: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    """(schema, table) to rows by kind of change, bodies of rolled-back subtransactions included."""
    files: dict[str, FileCounts] = field(
        default_factory=lambda: {kind: FileCounts() for kind in catalogue.SPOOL_FILES.labels["kind"]}
    )
    file_bytes: Distribution = field(default_factory=lambda: Distribution(catalogue.SPOOL_FILE_BYTES.buckets))
    upload_seconds: Distribution = field(default_factory=_seconds)
    commit_seconds: Distribution = field(default_factory=_seconds)
    under_way: int = 0
    """Files and units that wait for the store or are on their way to it."""
    moved_at: float = 0.0
    """When one of them last began after a time without any, or ended; unix seconds."""

    @property
    def beat(self) -> float:
        """When something was last finished, unix seconds; now, when there is nothing to do."""
        return self.moved_at if self.under_way else time.time()


@dataclass(slots=True)
class TableCounts:
    """How often this process put tables into each state, and followed changes of shape:
    `schema_changes` is by (kind, outcome).
    """

    transitions: Counter[State] = field(default_factory=Counter)
    schema_changes: Counter[tuple[str, str]] = field(default_factory=Counter)


@dataclass(slots=True)
class SnapshotProgress:
    """One round of snapshots: the tables that are read from one snapshot of the source.

    `rows` and `bytes` are of the present `table`, begun at `table_started_at` (monotonic);
    `rows_before` are those of the tables finished in this round. `waiting` has the server's
    estimate of rows by table for those not begun yet, negative where it has none.
    """

    table: str = ""
    rows: int = 0
    bytes: int = 0
    estimated_rows: int = 0
    tables_done: int = 0
    tables_total: int = 0
    rows_before: int = 0
    waiting: dict[str, int] = field(default_factory=dict)
    started_at: float = field(default_factory=time.monotonic)
    table_started_at: float = field(default_factory=time.monotonic)
    began_at: float = field(default_factory=time.time)
    """Unix seconds, for people and metrics."""

    def begin(self, table: str, *, estimated_rows: int) -> None:
        """The next table's turn."""
        self.rows_before += self.rows
        self.waiting = {name: rows for name, rows in self.waiting.items() if name != table}
        self.table, self.rows, self.bytes, self.estimated_rows, self.table_started_at = (
            table,
            0,
            0,
            estimated_rows,
            time.monotonic(),
        )

    @property
    def expected_rows(self) -> int | None:
        """Rows of the whole round: those of finished tables and what the server expects of the
        others. None where it has no estimate for one.
        """
        estimates = [*self.waiting.values(), *([self.estimated_rows] if self.table else [])]
        if min(estimates, default=0) < 0:
            return None
        return self.rows_before + max(self.rows, self.estimated_rows) + sum(self.waiting.values())

    def seconds_left(self, now: float) -> float | None:
        """Until the round is finished at its rate so far; `now` is monotonic. None while there is
        no rate and where estimates say nothing (any more).
        """
        done, expected, seconds = self.rows_before + self.rows, self.expected_rows, now - self.started_at
        return (
            None if expected is None or not 0 < done < expected or seconds <= 0 else (expected - done) * seconds / done
        )


@dataclass(slots=True)
class SnapshotCounts:
    """Initial rows read by this process. `progress` is of the present round, a new value for each
    one.
    """

    rows: int = 0
    bytes: int = 0
    table_seconds: Distribution = field(default_factory=lambda: Distribution(catalogue.SNAPSHOT_DURATION.buckets))
    beat: float = 0.0
    """When the thread that reads snapshots last went round or took rows, unix seconds."""
    pending: int = 0
    """Tables that wait for their rows, as of the last refresh."""
    progress: SnapshotProgress = field(default_factory=SnapshotProgress)


@dataclass(slots=True)
class IngestStatus:
    """The present of one ingest, and what its stages have counted. Positions, times and
    backpressure are as of the last `Ingest.refresh`.
    """

    instance: str = ""
    memory_limit_bytes: int = 0
    """What all open transactions together may hold in memory; `staged_limit_bytes` in the store."""
    staged_limit_bytes: int = 0
    state: str = "starting"
    connected: bool = False
    received_lsn: int = 0
    flushed_lsn: int = 0
    complete_lsn: int = 0
    """Through which nothing that was received is missing from the manifest: beyond `flushed_lsn`
    when only WAL of others came since.
    """
    oldest_unflushed_us: int | None = None
    """Commit time of the oldest transaction received that is not in the manifest."""
    manifest: PipelineState | None = None
    """Our own manifest, None before it was opened."""
    reconnects: int = 0
    reconnect_reasons: Counter[str] = field(default_factory=Counter)
    retry_delay_s: float = 0.0
    last_error: str = ""
    last_message_at: float = 0.0
    """Unix seconds, 0 before the first; likewise `last_feedback_at` and `catalog_beat`, when the
    catalog watch last went round.
    """
    last_feedback_at: float = 0.0
    catalog_beat: float = 0.0
    streaming_at: float = 0.0
    """When START_REPLICATION was last sent, monotonic seconds; `reached_at` when the target of a
    bounded run was acknowledged.
    """
    reached_at: float = 0.0
    backpressure_cause: str | None = None
    """What the socket waits for; None while it is read."""
    backpressure_seconds: dict[str, float] = field(default_factory=dict)
    leftovers: int = 0
    """Objects of older writers that were deleted."""
    stream: StreamCounts = field(default_factory=StreamCounts)
    commits: CommitCounts = field(default_factory=CommitCounts)
    tables: TableCounts = field(default_factory=TableCounts)
    snapshots: SnapshotCounts = field(default_factory=SnapshotCounts)

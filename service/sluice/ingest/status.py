"""What ingest shows of itself: the one value that metrics, probes and the status page read.

Invariant: written by ingest alone, read by anyone, never a source of truth: no stage of ingest
decides anything by it. Reading it costs nothing and waits for nobody. `manifest` is never behind
what was acknowledged to the server.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.contract.entries import Entry
from sluice.contract.table_state import State
from sluice.manifest.values import PipelineState
from sluice.telemetry import catalogue
from sluice.telemetry.distribution import Distribution
from sluice.telemetry.waits import Waits
from sluice.tracing.spans import Published


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
    """By the clock of the source."""
    complete_at: float = 0.0
    """The same in unix seconds, but never later than that was stored, by our clock: the other may be ahead."""
    unchanged_values: int = 0
    tables: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)
    """(schema, table) to rows by kind of change, bodies of rolled-back subtransactions included."""
    files: dict[str, FileCounts] = field(
        default_factory=lambda: {kind: FileCounts() for kind in catalogue.SPOOL_FILES.labels["kind"]}
    )
    file_bytes: Distribution = field(default_factory=lambda: Distribution(catalogue.SPOOL_FILE_BYTES.buckets))
    upload_seconds: Distribution = field(default_factory=_seconds)
    commit_seconds: Distribution = field(default_factory=_seconds)
    on_published: Callable[[Published], None] | None = None
    """Called from the commit thread for each entry that publishes transactions, once it is durable."""
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
    `schema_changes` is by (kind, outcome), `resyncs` by cause.
    """

    transitions: Counter[State] = field(default_factory=Counter)
    schema_changes: Counter[tuple[str, str]] = field(default_factory=Counter)
    resyncs: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class TableRead:
    """One table whose rows are read: `rows` and `bytes` in this round, begun at `started_at`
    (monotonic); `rows_before` are in the spool from earlier rounds of the same snapshot.
    `estimated_rows` is what the server expects of the whole table, negative where it does not.
    """

    estimated_rows: int
    rows_before: int = 0
    rows: int = 0
    bytes: int = 0
    started_at: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> int:
        """Rows that are expected to come, negative when that is not known."""
        if self.estimated_rows < 0:
            return -1
        return max(0, self.estimated_rows - self.rows_before - self.rows)


@dataclass(slots=True)
class SnapshotProgress:
    """One round of snapshots: the tables that are read from one snapshot of the source, by several
    threads.

    `tables` are those under way, by name. `rows_done` are those read in this round of the tables that
    have left it. `waiting` has the server's estimate of rows by table for those not begun yet,
    negative where it has none.
    """

    tables: dict[str, TableRead] = field(default_factory=dict)
    tables_done: int = 0
    tables_total: int = 0
    rows_done: int = 0
    waiting: dict[str, int] = field(default_factory=dict)
    started_at: float = field(default_factory=time.monotonic)
    began_at: float = field(default_factory=time.time)
    """Unix seconds, for people and metrics."""

    def begin(self, table: str, *, estimated_rows: int, rows_before: int = 0) -> None:
        """The table is read from now on. Nothing when it is already."""
        self.waiting.pop(table, None)
        if table not in self.tables:
            self.tables[table] = TableRead(estimated_rows, rows_before)

    def left(self, table: str, *, done: bool) -> float:
        """The table is read no longer, because it is `done` or for another reason. Returns for how many
        seconds it was.
        """
        one = self.tables.pop(table, None)
        self.waiting.pop(table, None)
        self.tables_done += done
        if one is None:
            return 0.0
        self.rows_done += one.rows
        return time.monotonic() - one.started_at

    @property
    def rows(self) -> int:
        """Rows read in this round."""
        return self.rows_done + sum(one.rows for one in tuple(self.tables.values()))

    @property
    def expected_rows(self) -> int | None:
        """Rows that this round reads: those that were, and what the server expects of the others. None
        where it has no estimate for one.
        """
        coming = [*tuple(self.waiting.values()), *(one.left for one in tuple(self.tables.values()))]
        return None if min(coming, default=0) < 0 else self.rows + sum(coming)

    def seconds_left(self, now: float) -> float | None:
        """Until the round is finished at its rate so far; `now` is monotonic. None while there is
        no rate and where estimates say nothing (any more).
        """
        done, expected, seconds = self.rows, self.expected_rows, now - self.started_at
        return (
            None if expected is None or not 0 < done < expected or seconds <= 0 else (expected - done) * seconds / done
        )


@dataclass(frozen=True, slots=True)
class SnapshotWait:
    """Snapshots wait because the source is loaded: `signals` are above their limits, and `reason` says so of
    the first, since `began_at` (unix seconds). `holding`: a snapshot is held meanwhile.
    """

    signals: tuple[str, ...]
    reason: str
    began_at: float
    holding: bool


@dataclass(slots=True)
class SnapshotCounts:
    """Initial rows read by this process. `progress` is of the present round, a new value for each
    one. Thread-safe for those who count.
    """

    rows: int = 0
    bytes: int = 0
    table_seconds: Distribution = field(default_factory=lambda: Distribution(catalogue.SNAPSHOT_DURATION.buckets))
    beat: float = 0.0
    """When the thread that reads snapshots last went round or took rows, unix seconds."""
    pending: int = 0
    """Tables that wait for their rows, as of the last refresh."""
    most_rows_per_second: int = 0
    """What all of them together may read; 0: no limit."""
    waits: Waits = field(default_factory=Waits)
    """What keeps them from being read now."""
    progress: SnapshotProgress = field(default_factory=SnapshotProgress)
    load_wait: SnapshotWait | None = None
    """That the source's load keeps them from being read."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, table: str, *, estimated_rows: int, rows_before: int = 0) -> None:
        """The table is read from now on."""
        with self._lock:
            self.progress.begin(table, estimated_rows=estimated_rows, rows_before=rows_before)

    def add(self, table: str, *, rows: int, nbytes: int) -> None:
        """Rows of a table under way were read."""
        with self._lock:
            if (one := self.progress.tables.get(table)) is not None:
                one.rows += rows
                one.bytes += nbytes
            self.rows += rows
            self.bytes += nbytes
            self.beat = time.time()

    def left(self, table: str, *, done: bool) -> None:
        """The table is read no longer."""
        with self._lock:
            seconds = self.progress.left(table, done=done)
            if done:
                self.table_seconds.add(seconds)


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
    stored: Callable[[], PipelineState | None] = lambda: None
    """The same as it is at this moment, from any thread."""
    entry: Callable[[int], Entry | None] = lambda _seq: None
    """One of the newest entries by its number, from any thread; None for others."""
    reconnects: int = 0
    reconnect_reasons: Counter[str] = field(default_factory=Counter)
    retry_delay_s: float = 0.0
    last_error: str = ""
    last_message_at: float = 0.0
    """Unix seconds, 0 before the first, as are `last_feedback_at` and `catalog_beat`, when the loop of the
    catalog watch last ran.
    """
    last_feedback_at: float = 0.0
    catalog_beat: float = 0.0
    ddl_signal_lacks: str = "it was not looked for yet"
    """Why completeness needs looks at the catalog, empty while the DDL signal says when."""
    streaming_at: float = 0.0
    """When START_REPLICATION was last sent, monotonic seconds; `reached_at` when the target of a
    bounded run was acknowledged.
    """
    reached_at: float = 0.0
    backpressure_cause: str | None = None
    """What the socket waits for; None while it is read. `unread_s` is for how long it has waited."""
    unread_s: float = 0.0
    backpressure_seconds: dict[str, float] = field(default_factory=dict)
    configured_at: float = 0.0
    """When the settings in force were read, unix seconds; 0 before."""
    configuration_refused: str = ""
    """Why the file as it is now is not in force, since `configuration_refused_at`; empty when it is."""
    configuration_refused_at: float = 0.0
    leftovers: int = 0
    """Objects of older writers that were deleted."""
    stream: StreamCounts = field(default_factory=StreamCounts)
    commits: CommitCounts = field(default_factory=CommitCounts)
    tables: TableCounts = field(default_factory=TableCounts)
    snapshots: SnapshotCounts = field(default_factory=SnapshotCounts)
    waits: Waits = field(default_factory=Waits)
    """What keeps changes from being streamed now."""

"""Every metric that Sluice exports, as data.

Invariants: one quantity per name, base units, counters end in `_total`; label values come from a
closed set, except schema and table, which the publication bounds and `Metrics` caps; never an LSN,
transaction id, file name, error text or query in a label. Every series carries `pipeline`.
docs/metrics.md is generated from here, alerts and dashboards refer to it. (Prometheus: Metric and
label naming.)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.contract.table_state import State
from sluice.health.problems import BY_CODE
from sluice.health.verdict import STATES as HEALTH_STATES

OPEN: tuple[str, ...] = ()
"""A label whose values are not listed here."""

INGEST = ("ingest",)
APPLY = ("apply",)
BOTH = ("ingest", "apply")

STATES = ("starting", "streaming", "reconnecting", "draining", "stopped", "failed")
RECONNECT_REASONS = (
    "connect_failed",
    "connection_lost",
    "server_stopping",
    "server_silent",
    "store_unavailable",
    "other",
)
LOOPS = ("events", "decoder", "committer", "copier", "catalog", "report", "probe", "apply", "lease")
STAGES = ("receive", "flush", "apply")
ERROR_COMPONENTS = (
    "stream",
    "decode",
    "spool",
    "manifest",
    "copy",
    "catalog",
    "leftovers",
    "report",
    "probe",
    "apply",
    "lease",
)
ERROR_CLASSES = (
    "UsageError",
    "LimitReached",
    "PreflightFailed",
    "VerificationFailed",
    "SourceError",
    "SourceUnavailable",
    "SourceRefused",
    "SlotBusy",
    "DecodeError",
    "ProtocolViolation",
    "StoreError",
    "StoreUnavailable",
    "StoreRefused",
    "ObjectExists",
    "ObjectMissing",
    "ManifestCorrupt",
    "FormatTooNew",
    "SlotLost",
    "WriterFenced",
    "SessionBroken",
    "Interrupted",
    "UnsupportedChange",
    "ApplyError",
    "ServiceError",
    "Other",
)
"""The classes of service/sluice/errors.py, and `Other` for whatever is not ours."""

_KIBI = 1024
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_LONG_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
_LOOP_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
_FILE_BYTES = tuple(float(64 * _KIBI * 4**step) for step in range(8))
_POWERS_OF_TEN = tuple(float(10**power) for power in range(10))
_BYTE_POWERS = tuple(float(10**power) for power in range(2, 12))


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family. `labels` maps each label to the values it may have, or to OPEN. `group` is
    the heading in the documentation.

    `components` are the processes that serve it: ingest on telemetry.listen, the applier on
    telemetry.apply_listen.
    """

    name: str
    help: str
    group: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    components: tuple[str, ...] = INGEST

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True, slots=True, eq=False)
class Counter(Metric):
    __hash__ = Metric.__hash__


@dataclass(frozen=True, slots=True, eq=False)
class Gauge(Metric):
    __hash__ = Metric.__hash__


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Histogram(Metric):
    buckets: tuple[float, ...]
    __hash__ = Metric.__hash__


_STATE = "Identity and state"
BUILD_INFO = Gauge(
    "sluice_build_info",
    "Always 1; what is running.",
    _STATE,
    {"version": OPEN, "python": OPEN, "component": BOTH},
    BOTH,
)
PIPELINE_INFO = Gauge(
    "sluice_pipeline_info",
    "Always 1; what it is connected to.",
    _STATE,
    {"slot": OPEN, "publication": OPEN, "database": OPEN, "server_version": OPEN},
)
STATE = Gauge("sluice_state", "1 for the present state of ingest, 0 for the others.", _STATE, {"state": STATES})
CONFIG_HASH = Gauge(
    "sluice_config_hash",
    "48 bits of a hash of the configuration in force, secrets left out; two processes agree or do not.",
    _STATE,
    {},
    BOTH,
)
HEALTH = Gauge(
    "sluice_health",
    "1 for the state of the pipeline as `sluice status` says it, 0 for the others. Absent until what "
    "is stored was read once.",
    _STATE,
    {"state": HEALTH_STATES},
)
PROBLEMS = Gauge(
    "sluice_problems",
    "The problems that `sluice status` shows, by code: how many tables or times each stands for, 0 "
    "without one. Absent as `sluice_health`.",
    _STATE,
    {"code": tuple(BY_CODE)},
)
HEARTBEAT = Gauge(
    "sluice_heartbeat_timestamp_seconds",
    "When a loop last went round, or a thread that works on demand last had nothing to do or "
    "finished a step. `/livez` watches `events` and `apply`.",
    _STATE,
    {"loop": LOOPS},
    BOTH,
)
EVENT_LOOP_LAG = Histogram(
    "sluice_event_loop_lag_seconds", "How late the event loop ran a timer.", _STATE, buckets=_LOOP_SECONDS
)
SCRAPE_DURATION = Gauge(
    "sluice_scrape_duration_seconds", "How long rendering these metrics took the last time.", _STATE, {}, BOTH
)
TABLES_DROPPED = Gauge(
    "sluice_metrics_tables_dropped",
    "Tables without series of their own, because telemetry.max_tables was reached.",
    _STATE,
)
ERRORS = Counter(
    "sluice_errors_total",
    "Errors by where they came up. `retryable` is true for what the process tries again by itself.",
    _STATE,
    {"component": ERROR_COMPONENTS, "class": ERROR_CLASSES, "retryable": ("true", "false")},
    BOTH,
)
RETRY_DELAY = Gauge(
    "sluice_retry_delay_seconds",
    "The pause before the next try that is under way, 0 when nothing waits.",
    _STATE,
    {},
    BOTH,
)

_SOURCE = "Source, WAL and slot"
SOURCE_CONNECTED = Gauge(
    "sluice_source_connected",
    "1 while the connection is up; `query` is the side connection for these figures.",
    _SOURCE,
    {"role": ("replication", "query")},
)
RECONNECTS = Counter(
    "sluice_source_reconnects_total", "Times the stream had to be begun again.", _SOURCE, {"reason": RECONNECT_REASONS}
)
SOURCE_WAL_LSN = Gauge("sluice_source_wal_lsn_bytes", "The server's write position in the WAL.", _SOURCE)
RECEIVED_LSN = Gauge("sluice_received_lsn_bytes", "The highest position received from the server.", _SOURCE)
FLUSHED_LSN = Gauge("sluice_flushed_lsn_bytes", "The position through which the manifest holds everything.", _SOURCE)
CONFIRMED_FLUSH_LSN = Gauge(
    "sluice_confirmed_flush_lsn_bytes", "The slot's confirmed_flush_lsn as the server reports it.", _SOURCE
)
APPLIED_LSN = Gauge(
    "sluice_applied_lsn_bytes",
    "The position through which the lake is complete over all tables that are not left out.",
    _SOURCE,
)
LAG_BYTES = Gauge(
    "sluice_replication_lag_bytes",
    "Bytes of WAL between the server's position and ours, by stage; absent while the server cannot be asked.",
    _SOURCE,
    {"stage": STAGES},
)
LAG_SECONDS = Gauge(
    "sluice_replication_lag_seconds",
    "For how long at least a stage has been behind what is known of the source, 0 when it is caught "
    "up. While the server cannot be asked: the time since "
    "the stage was last known to be caught up.",
    _SOURCE,
    {"stage": STAGES},
)
LAST_MESSAGE = Gauge(
    "sluice_last_message_timestamp_seconds",
    "When the replication connection last brought a message, keepalives included.",
    _SOURCE,
)
LAST_FEEDBACK = Gauge(
    "sluice_last_feedback_timestamp_seconds", "When a status message was last sent to the server.", _SOURCE
)
LAST_FLUSHED_COMMIT = Gauge(
    "sluice_last_flushed_commit_timestamp_seconds",
    "Commit time, by the source's clock, of the newest transaction in the manifest.",
    _SOURCE,
)
SLOT_ACTIVE = Gauge("sluice_slot_active", "1 while a walsender uses the slot.", _SOURCE)
SLOT_RETAINED = Gauge(
    "sluice_slot_retained_wal_bytes",
    "WAL that the server keeps because of the slot: write position minus restart_lsn.",
    _SOURCE,
)
SLOT_SAFE = Gauge(
    "sluice_slot_safe_wal_bytes",
    "WAL that can still be written before the slot may be lost; absent while there is no limit.",
    _SOURCE,
)
SLOT_KEEP_LIMIT = Gauge(
    "sluice_slot_wal_keep_limit_bytes", "max_slot_wal_keep_size; absent while there is no limit.", _SOURCE
)
SLOT_UNBOUNDED = Gauge(
    "sluice_slot_wal_unbounded",
    "1 when max_slot_wal_keep_size sets no limit, so that the server's disk is the limit.",
    _SOURCE,
)
SLOT_SECONDS_LEFT = Gauge(
    "sluice_slot_seconds_until_lost",
    "Forecast: time until the slot may be lost if it advances no further and the server writes WAL "
    "as in the last minutes; absent without a limit, "
    "while nothing is written and until it has been watched for a minute.",
    _SOURCE,
)
SLOT_STATUS = Gauge(
    "sluice_slot_wal_status",
    "1 for the slot's present wal_status.",
    _SOURCE,
    {"status": ("reserved", "extended", "unreserved", "lost")},
)
SLOT_INACTIVE_SINCE = Gauge(
    "sluice_slot_inactive_since_timestamp_seconds",
    "Since when nobody uses the slot; absent while somebody does and before PostgreSQL 17.",
    _SOURCE,
)
SLOT_XMIN_AGE = Gauge(
    "sluice_slot_catalog_xmin_age_transactions",
    "Age of the slot's catalog_xmin; what it holds back in vacuum.",
    _SOURCE,
)
DECODER_SPILL_BYTES = Counter(
    "sluice_decoder_spill_bytes_total",
    "Bytes of transactions that the server's decoder wrote to its disk (pg_stat_replication_slots).",
    _SOURCE,
)
DECODER_SPILL_TRANSACTIONS = Counter(
    "sluice_decoder_spill_transactions_total", "Transactions that it wrote to disk.", _SOURCE
)
DECODER_STREAMED_BYTES = Counter(
    "sluice_decoder_streamed_bytes_total", "Bytes that it sent before their transaction ended.", _SOURCE
)
DECODER_STREAMED_TRANSACTIONS = Counter(
    "sluice_decoder_streamed_transactions_total", "Transactions that it sent before they ended.", _SOURCE
)
DECODER_BYTES = Counter(
    "sluice_decoder_decoded_bytes_total", "Bytes of transactions that it decoded for the slot.", _SOURCE
)
DECODER_TRANSACTIONS = Counter(
    "sluice_decoder_decoded_transactions_total", "Transactions that it decoded for the slot.", _SOURCE
)
PROBE_ERRORS = Counter(
    "sluice_slot_probe_errors_total",
    "Side queries for slot and WAL facts that failed; the facts are absent meanwhile.",
    _SOURCE,
)

_STREAM = "Stream and memory"
TRANSACTIONS = Counter(
    "sluice_transactions_total",
    "Transactions taken from the stream by how they ended: committed with changes of ours, rolled "
    "back after they had been streamed or prepared, "
    "skipped because they were durable before.",
    _STREAM,
    {"outcome": ("committed", "aborted", "skipped")},
)
ROWS = Counter(
    "sluice_rows_total",
    "Row changes made durable in the spool.",
    _STREAM,
    {"schema": OPEN, "table": OPEN, "op": ("insert", "update", "delete", "truncate")},
)
TRANSACTION_ROWS = Histogram(
    "sluice_transaction_rows", "Row changes of committed and prepared transactions.", _STREAM, buckets=_POWERS_OF_TEN
)
TRANSACTION_BYTES = Histogram(
    "sluice_transaction_bytes", "Bytes of their row changes as received.", _STREAM, buckets=_BYTE_POWERS
)
PREPARED = Gauge(
    "sluice_prepared_transactions", "Prepared transactions whose rows are durable and that have not ended.", _STREAM
)
PREPARED_AGE = Gauge(
    "sluice_prepared_oldest_seconds",
    "Time since the oldest of them was prepared, 0 without any; it holds back WAL, vacuum and new copies.",
    _STREAM,
)
RECEIVED_BYTES = Counter("sluice_received_bytes_total", "Bytes received on the replication connection.", _STREAM)
UNCHANGED_VALUES = Counter(
    "sluice_unchanged_toast_values_total", "Values that the server did not send because they had not changed.", _STREAM
)
DECODE_SECONDS = Counter(
    "sluice_decode_cpu_seconds_total",
    "CPU time of the thread that decodes; at one second a second it is the limit.",
    _STREAM,
)
REORDER_BYTES = Gauge(
    "sluice_reorder_buffer_bytes",
    "Bytes of transactions that have not ended: in memory, and staged in the object store.",
    _STREAM,
    {"place": ("memory", "store")},
)
REORDER_LIMIT = Gauge(
    "sluice_reorder_buffer_limit_bytes",
    "Past it in memory rows go to the store; past it in the store (limits.staged) the pipeline stops.",
    _STREAM,
    {"place": ("memory", "store")},
)
REORDER_TRANSACTIONS = Gauge(
    "sluice_reorder_buffer_transactions", "Transactions that have not ended and of which rows are held.", _STREAM
)
BACKPRESSURE = Gauge(
    "sluice_backpressure_active",
    "1 while the socket is left unread because the decoder or the uploads are behind.",
    _STREAM,
    {"cause": ("decoder", "upload")},
)
BACKPRESSURE_SECONDS = Counter(
    "sluice_backpressure_seconds_total",
    "Time for which the socket was left unread.",
    _STREAM,
    {"cause": ("decoder", "upload")},
)

_SPOOL = "Spool"
_KINDS = ("changes", "staged", "snapshot")
SPOOL_ENTRIES = Counter("sluice_spool_entries_total", "Manifest entries with changes or an advance.", _SPOOL)
SPOOL_FILES = Counter(
    "sluice_spool_files_total",
    "Segment files written: changes, rows of transactions that have not ended, copies.",
    _SPOOL,
    {"kind": _KINDS},
)
SPOOL_BYTES = Counter("sluice_spool_bytes_total", "Bytes of the segment files written.", _SPOOL, {"kind": _KINDS})
SPOOL_ROWS = Counter("sluice_spool_rows_total", "Rows of the segment files written.", _SPOOL, {"kind": _KINDS})
SPOOL_FILE_BYTES = Histogram("sluice_spool_file_bytes", "Size of segment files.", _SPOOL, buckets=_FILE_BYTES)
SPOOL_LEFTOVERS = Counter(
    "sluice_spool_leftovers_deleted_total",
    "Objects deleted that older writers left and no manifest entry names.",
    _SPOOL,
)
SPOOL_RETRIES = Counter(
    "sluice_spool_retries_total", "Writes tried again because the object store did not answer.", _SPOOL
)
FLUSH_DURATION = Histogram(
    "sluice_flush_duration_seconds",
    "Time of a flush: encode closes its files, upload stores one of them, commit appends the "
    "manifest entry, total is all of it until it is durable.",
    _SPOOL,
    {"phase": ("encode", "upload", "commit", "total")},
    buckets=_SECONDS,
)
FLUSHES = Counter(
    "sluice_flush_total",
    "Flushes by what caused them: size limits, age, an idle advance, or being asked to (the server "
    "or we stop, a bounded run).",
    _SPOOL,
    {"trigger": ("bytes", "rows", "age", "progress", "asked")},
)
STORE_REQUESTS = Counter(
    "sluice_object_store_requests_total",
    "Requests to the object store.",
    _SPOOL,
    {
        "operation": ("get", "put", "create", "size", "list", "delete"),
        "outcome": ("ok", "conflict", "missing", "unavailable", "refused", "error"),
    },
    BOTH,
)
STORE_DURATION = Histogram(
    "sluice_object_store_request_duration_seconds",
    "Time of one request to the object store, retries included.",
    _SPOOL,
    {"operation": ("get", "put", "create", "size", "list", "delete")},
    BOTH,
    buckets=_SECONDS,
)
MANIFEST_SEQ = Gauge("sluice_manifest_sequence", "Sequence number of the newest manifest entry.", _SPOOL)
PENDING_FILES = Gauge(
    "sluice_spool_pending_files",
    "Segment files that are in the manifest and not in the lake, over tables that are not left out.",
    _SPOOL,
)
PENDING_BYTES = Gauge("sluice_spool_pending_bytes", "Bytes of these files.", _SPOOL)
OLDEST_PENDING = Gauge(
    "sluice_spool_oldest_pending_timestamp_seconds",
    "Commit time of the oldest change among them (of a copy: when it was written); absent without any.",
    _SPOOL,
)

_SNAPSHOT = "Initial copy"
SNAPSHOT_TABLES = Gauge(
    "sluice_snapshot_tables",
    "Tables of the present or last copy: still to come, being read, finished.",
    _SNAPSHOT,
    {"state": ("waiting", "copying", "done")},
)
SNAPSHOT_ROWS = Counter("sluice_snapshot_rows_total", "Rows copied.", _SNAPSHOT)
SNAPSHOT_BYTES = Counter("sluice_snapshot_bytes_total", "Bytes received while copying.", _SNAPSHOT)
SNAPSHOT_ESTIMATED_ROWS = Gauge(
    "sluice_snapshot_estimated_rows",
    "The server's estimate of the rows of all tables of the copy, finished ones included.",
    _SNAPSHOT,
)
SNAPSHOT_START = Gauge(
    "sluice_snapshot_start_timestamp_seconds", "When the present copy began; absent without one.", _SNAPSHOT
)
SNAPSHOT_ETA = Gauge(
    "sluice_snapshot_eta_seconds",
    "Time until the present copy is finished at its rate so far; absent without one and while it cannot be told.",
    _SNAPSHOT,
)
SNAPSHOT_DURATION = Histogram(
    "sluice_snapshot_table_duration_seconds", "Time that the copy of one table took.", _SNAPSHOT, buckets=_LONG_SECONDS
)

_TABLES = "Tables and schemas"
_STATES = tuple(state.value for state in State)
TABLES = Gauge(
    "sluice_tables",
    "Tables by state, the worse of what ingest and applier say.",
    _TABLES,
    {"state": _STATES},
)
TABLE_EVENTS = Counter(
    "sluice_table_transitions_total",
    "Times ingest put a table into a state.",
    _TABLES,
    {"state": _STATES},
)
SCHEMA_CHANGES = Counter(
    "sluice_schema_changes_total",
    "Changes of a table's shape, and whether the lake can follow: what it cannot follow turns the table stale.",
    _TABLES,
    {"kind": ("identity", "added_columns", "other"), "outcome": ("followed", "stale")},
)
TABLE_WATERMARK = Gauge(
    "sluice_apply_table_watermark_timestamp_seconds",
    "Time of the source through which the lake table is complete; advances for idle tables too. "
    "Tables that are left out have none.",
    _TABLES,
    {"schema": OPEN, "table": OPEN},
)

_RECORDS = "Apply, as its records in the object store tell ingest"
APPLY_RUNNING = Gauge(
    "sluice_apply_process_running",
    "1 while the applier that `up` supervises is running; absent outside `up`.",
    _RECORDS,
)
APPLY_RESTARTS = Counter("sluice_apply_process_restarts_total", "Times `up` started its applier again.", _RECORDS)
APPLY_LAST_RECORD = Gauge(
    "sluice_apply_last_record_timestamp_seconds",
    "When the applier last wrote a record of its progress, which it does at least every 20 s.",
    _RECORDS,
)
APPLY_PENDING = Gauge(
    "sluice_apply_entries_pending",
    "Manifest entries that the lake is behind, over all tables that are not left out.",
    _RECORDS,
)
APPLY_TABLE_ROWS = Gauge(
    "sluice_apply_table_rows", "Change rows applied in the present generations of all tables.", _RECORDS
)
APPLY_FRESHNESS = Gauge(
    "sluice_apply_freshness_seconds",
    "How far the lake is behind the source, over tables that are not left out: the age of the oldest "
    "change that a table lacks, in the spool or before it; "
    "0 when none.",
    _RECORDS,
    {"quantile_of_tables": ("max", "p95", "p50")},
)
REPORT_TIMESTAMP = Gauge(
    "sluice_report_timestamp_seconds",
    "When apply records and slot were last read; the gauges that come from them are as old as this.",
    _RECORDS,
)
REPORT_ERRORS = Counter("sluice_report_errors_total", "Looks at the stored state that failed.", _RECORDS)

_APPLY = "Apply, at its own endpoint"
APPLY_LAST_SUCCESS = Gauge(
    "sluice_apply_last_success_timestamp_seconds",
    "When the applier last committed a window or found nothing to do. Served by ingest too, from the "
    "applier's records, so that it outlives the applier.",
    _APPLY,
    {},
    BOTH,
)
APPLY_LAST_ATTEMPT = Gauge(
    "sluice_apply_last_attempt_timestamp_seconds", "When a window was last begun.", _APPLY, {}, APPLY
)
APPLY_RUNS = Counter(
    "sluice_apply_runs_total",
    "Windows by outcome: committed, empty (nothing in it for the lake), stale (the table cannot "
    "follow), failed (tried again).",
    _APPLY,
    {"outcome": ("committed", "empty", "stale", "failed")},
    APPLY,
)
APPLY_DURATION = Histogram(
    "sluice_apply_duration_seconds",
    "Time of a window that ended well: look finds what others committed, read fetches and checks its "
    "segments, schema alters the table, merge folds and "
    "commits, total is all of it.",
    _APPLY,
    {"phase": ("look", "read", "schema", "merge", "total")},
    APPLY,
    buckets=_LONG_SECONDS,
)
APPLY_ROWS = Counter(
    "sluice_apply_rows_total",
    "Change rows taken into the lake; `copy` are rows of copies.",
    _APPLY,
    {"op": ("insert", "update", "delete", "truncate", "copy")},
    APPLY,
)
APPLY_CONFLICTS = Counter(
    "sluice_apply_conflicts_total",
    "Commits lost to another writer: concurrent (Delta saw another commit; tried again), fenced "
    "(another applier took over).",
    _APPLY,
    {"kind": ("concurrent", "fenced")},
    APPLY,
)
APPLY_BACKLOG = Gauge(
    "sluice_apply_backlog_entries", "Manifest entries read and not applied, summed over tables.", _APPLY, {}, APPLY
)
APPLY_READ_SEQ = Gauge(
    "sluice_apply_read_sequence",
    "Sequence number of the newest manifest entry that the applier has read.",
    _APPLY,
    {},
    APPLY,
)
APPLY_WORKERS = Gauge(
    "sluice_apply_workers",
    "Windows that may be applied at the same time, and that are.",
    _APPLY,
    {"state": ("busy", "idle")},
    APPLY,
)
APPLY_LEASE = Gauge("sluice_apply_lease_held", "1 while this process may commit to the lake.", _APPLY, {}, APPLY)

CATALOGUE: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


def served_by(component: str) -> tuple[Metric, ...]:
    """The metrics of one kind of process."""
    return tuple(metric for metric in CATALOGUE if component in metric.components)

"""Every metric that Sluice exports, as data.

Invariants: one quantity per name, base units, counters end in `_total`; label values come from a closed set, except schema and table, which the
publication bounds and `Metrics` caps; never an LSN, transaction id, file name, error text or query in a label. Every series carries `pipeline`.
docs/metrics.md is generated from here. (Prometheus: Metric and label naming.)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from service.contract.entries import TABLE_STATES

OPEN: tuple[str, ...] = ()
"""A label whose values are not listed here."""

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_LOOP_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)

STATES = ("starting", "streaming", "reconnecting", "draining", "stopped", "failed")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family. `labels` maps each label to the values it may have, or to OPEN. `group` is the heading in the documentation."""

    name: str
    help: str
    group: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

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
BUILD_INFO = Gauge("sluice_build_info", "Always 1; what is running.", _STATE, {"version": OPEN, "python": OPEN, "component": ("ingest", "apply")})
PIPELINE_INFO = Gauge(
    "sluice_pipeline_info", "Always 1; what it is connected to.", _STATE, {"slot": OPEN, "publication": OPEN, "database": OPEN, "server_version": OPEN}
)
STATE = Gauge("sluice_state", "1 for the present state of the pipeline, 0 for the others.", _STATE, {"state": STATES})
HEARTBEAT = Gauge("sluice_heartbeat_timestamp_seconds", "When a loop last went round; liveness reads the same clock.", _STATE, {"loop": OPEN})
EVENT_LOOP_LAG = Histogram("sluice_event_loop_lag_seconds", "How late the event loop ran a timer.", _STATE, buckets=_LOOP_SECONDS)
SCRAPE_DURATION = Gauge("sluice_scrape_duration_seconds", "How long rendering these metrics took the last time.", _STATE)
TABLES_DROPPED = Gauge("sluice_metrics_tables_dropped", "Tables without series of their own, because telemetry.max_tables was reached.", _STATE)

_SOURCE = "Source, WAL and slot"
SOURCE_CONNECTED = Gauge("sluice_source_connected", "1 while the replication connection is up.", _SOURCE)
RECONNECTS = Counter("sluice_source_reconnects_total", "Connections to the source that had to be made again.", _SOURCE)
SOURCE_WAL_LSN = Gauge("sluice_source_wal_lsn_bytes", "The server's write position in the WAL.", _SOURCE)
RECEIVED_LSN = Gauge("sluice_received_lsn_bytes", "The highest position received from the server.", _SOURCE)
FLUSHED_LSN = Gauge("sluice_flushed_lsn_bytes", "The position through which the manifest holds everything.", _SOURCE)
CONFIRMED_FLUSH_LSN = Gauge("sluice_confirmed_flush_lsn_bytes", "The slot's confirmed_flush_lsn as the server reports it.", _SOURCE)
APPLIED_LSN = Gauge("sluice_applied_lsn_bytes", "The position through which the lake is complete over all tables that are not left out.", _SOURCE)
LAG_BYTES = Gauge(
    "sluice_replication_lag_bytes", "Bytes of WAL between the server's position and ours, by stage.", _SOURCE, {"stage": ("receive", "flush", "apply")}
)
LAST_FLUSHED_COMMIT = Gauge(
    "sluice_last_flushed_commit_timestamp_seconds", "Commit time, by the source's clock, of the newest transaction in the manifest.", _SOURCE
)
SLOT_ACTIVE = Gauge("sluice_slot_active", "1 while a walsender uses the slot.", _SOURCE)
SLOT_RETAINED = Gauge("sluice_slot_retained_wal_bytes", "WAL that the server keeps because of the slot: write position minus restart_lsn.", _SOURCE)
SLOT_SAFE = Gauge("sluice_slot_safe_wal_bytes", "WAL that can still be written before the slot may be lost; absent while there is no limit.", _SOURCE)
SLOT_UNBOUNDED = Gauge("sluice_slot_wal_unbounded", "1 when max_slot_wal_keep_size sets no limit, so that the server's disk is the limit.", _SOURCE)
SLOT_STATUS = Gauge("sluice_slot_wal_status", "1 for the slot's present wal_status.", _SOURCE, {"status": ("reserved", "extended", "unreserved", "lost")})
SLOT_XMIN_AGE = Gauge("sluice_slot_catalog_xmin_age_transactions", "Age of the slot's catalog_xmin; what it holds back in vacuum.", _SOURCE)

_STREAM = "Stream"
TRANSACTIONS = Counter("sluice_transactions_total", "Committed transactions taken from the stream.", _STREAM)
ROWS = Counter(
    "sluice_rows_total",
    "Row changes made durable in the spool.",
    _STREAM,
    {"schema": OPEN, "table": OPEN, "op": ("insert", "update", "delete", "truncate")},
)
PREPARED = Gauge("sluice_prepared_transactions", "Prepared transactions whose rows are durable and that have not ended.", _STREAM)
PREPARED_AGE = Gauge(
    "sluice_prepared_oldest_seconds", "Time since the oldest of them was prepared, 0 without any; it holds back WAL, vacuum and new copies.", _STREAM
)
RECEIVED_BYTES = Counter("sluice_received_bytes_total", "Bytes received on the replication connection.", _STREAM)
UNCHANGED_VALUES = Counter("sluice_unchanged_toast_values_total", "Values that the server did not send because they had not changed.", _STREAM)

_SPOOL = "Spool"
SPOOL_ENTRIES = Counter("sluice_spool_entries_total", "Manifest entries with changes.", _SPOOL)
SPOOL_FILES = Counter("sluice_spool_files_total", "Segments of changes written.", _SPOOL)
SPOOL_BYTES = Counter("sluice_spool_bytes_total", "Bytes of segments of changes written.", _SPOOL)
SPOOL_ROWS = Counter("sluice_spool_rows_total", "Rows of segments of changes written.", _SPOOL)
SPOOL_LEFTOVERS = Counter("sluice_spool_leftovers_deleted_total", "Objects deleted that older writers left and no manifest entry names.", _SPOOL)
SPOOL_RETRIES = Counter("sluice_spool_retries_total", "Writes tried again because the object store did not answer.", _SPOOL)
FLUSH_SECONDS = Counter("sluice_flush_seconds_total", "Time spent writing segments and manifest entries.", _SPOOL, {"phase": ("upload", "commit")})
STORE_REQUESTS = Counter(
    "sluice_object_store_requests_total",
    "Requests to the object store.",
    _SPOOL,
    {"operation": ("get", "put", "create", "size", "list", "delete"), "outcome": ("ok", "conflict", "missing", "unavailable", "refused", "error")},
)
STORE_DURATION = Histogram(
    "sluice_object_store_request_duration_seconds",
    "Time of one request to the object store, retries included.",
    _SPOOL,
    {"operation": ("get", "put", "create", "size", "list", "delete")},
    buckets=_SECONDS,
)
MANIFEST_SEQ = Gauge("sluice_manifest_sequence", "Sequence number of the newest manifest entry.", _SPOOL)

_SNAPSHOT = "Initial copy"
SNAPSHOT_TABLES = Gauge("sluice_snapshot_tables", "Tables of the present copy.", _SNAPSHOT, {"state": ("waiting", "done")})
SNAPSHOT_ROWS = Counter("sluice_snapshot_rows_total", "Rows copied.", _SNAPSHOT)
SNAPSHOT_BYTES = Counter("sluice_snapshot_bytes_total", "Bytes received while copying.", _SNAPSHOT)
SNAPSHOT_ESTIMATED_ROWS = Gauge("sluice_snapshot_estimated_rows", "The server's estimate of the rows of all tables being copied.", _SNAPSHOT)

_TABLES = "Tables"
TABLES = Gauge("sluice_tables", "Tables by state, the worse of what ingest and applier say.", _TABLES, {"state": TABLE_STATES})

_APPLY = "Apply, as its records in the object store tell"
APPLY_RUNNING = Gauge("sluice_apply_process_running", "1 while the applier that `up` supervises is running.", _APPLY)
APPLY_RESTARTS = Counter("sluice_apply_process_restarts_total", "Times `up` started its applier again.", _APPLY)
APPLY_LAST_SUCCESS = Gauge("sluice_apply_last_success_timestamp_seconds", "When the applier last wrote a record of its progress.", _APPLY)
APPLY_PENDING = Gauge("sluice_apply_entries_pending", "Manifest entries that the lake is behind, over all tables that are not left out.", _APPLY)
APPLY_ROWS = Gauge("sluice_apply_rows", "Change rows applied in the present generations of all tables.", _APPLY)
APPLY_FRESHNESS = Gauge(
    "sluice_apply_freshness_seconds",
    "Age of the oldest change that is spooled and not in the lake, over tables; 0 when none.",
    _APPLY,
    {"quantile_of_tables": ("max", "p95", "p50")},
)
REPORT_TIMESTAMP = Gauge(
    "sluice_report_timestamp_seconds", "When apply records and slot were last read; the gauges that come from them are as old as this.", _APPLY
)
REPORT_ERRORS = Counter("sluice_report_errors_total", "Looks at the stored state or at the server that failed.", _APPLY, {"part": ("manifest", "server")})

CATALOGUE: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


def page() -> str:
    """docs/metrics.md."""
    lines = [_PAGE_HEAD]
    for group in dict.fromkeys(metric.group for metric in CATALOGUE):
        lines += [f"\n## {group}\n", "| name | type | labels | meaning |", "|---|---|---|---|"]
        lines += [_row(metric) for metric in CATALOGUE if metric.group == group]
    return "\n".join([*lines, ""])


def _row(metric: Metric) -> str:
    labels = "; ".join(f"{name}: {', '.join(values)}" if values else name for name, values in metric.labels.items())
    return f"| `{metric.name}` | {type(metric).__name__.lower()} | {labels} | {metric.help} |"


_PAGE_HEAD = """\
# Metrics

Served at `/metrics` on `telemetry.listen`. Every series carries the label `pipeline`. LSNs are exported as plain numbers of bytes; times are
unix seconds, so that `time() - x` grows when the process hangs. Only `sluice_rows_total` grows with the number of tables: past
`telemetry.max_tables` tables are counted under schema and table `_other`, and `sluice_metrics_tables_dropped` says how many.

`/livez` fails when a loop has stopped going round or a step has outlived its own deadline, never because PostgreSQL or the object store are away.
`/readyz` holds while changes are streamed, `/startupz` once configuration is read, and `/status` is `sluice status --json`.

<!-- Generated from service/telemetry/catalogue.py by `python -m service.cli.docs`; a test compares. -->"""

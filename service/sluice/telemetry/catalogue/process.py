"""What a process is, in which state, and how its loops go round."""

from sluice.telemetry.catalogue.metric import APPLY, BOTH, FLEET, OPEN, Counter, Gauge, Histogram

OUTCOMES = ("sent", "dropped")
"""Of what is sent to others."""
STATES = ("starting", "streaming", "reconnecting", "draining", "stopped", "failed")
LOOPS = ("events", "decoder", "committer", "snapshot", "catalog", "report", "probe", "apply", "lease")
INGEST_COMPONENTS = (
    "stream",
    "decode",
    "spool",
    "manifest",
    "snapshot",
    "catalog",
    "leftovers",
    "report",
    "probe",
)
APPLY_COMPONENTS = ("apply", "lease")
ERROR_COMPONENTS = INGEST_COMPONENTS + APPLY_COMPONENTS
ERROR_CLASSES = (
    "UsageError",
    "LimitReached",
    "PreflightFailed",
    "VerificationFailed",
    "SourceError",
    "SourceUnavailable",
    "TableUnavailable",
    "NoFreeConnection",
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
    "SourceMoved",
    "UnsupportedChange",
    "TablesStopped",
    "ApplyError",
    "ServiceError",
    "Other",
)
"""The classes of service/sluice/errors.py, and `Other` for whatever is not ours."""
HEALTH_STATES = ("healthy", "degraded", "stopped", "lost", "new", "unknown")
"""The states of `sluice.health.verdict`, which is above this package; a test compares."""
PROBLEM_CODES = (
    "slot.lost",
    "slot.unreserved",
    "slot.headroom",
    "slot.inactive",
    "slot.foreign",
    "server.unreachable",
    "ingest.stopped",
    "ingest.stuck",
    "ingest.behind",
    "catalog.unexamined",
    "ingest.error",
    "snapshot.waiting",
    "spool.away",
    "spool.unreadable",
    "spool.gone",
    "spool.upkeep",
    "request.refused",
    "prepared.open",
    "applier.never",
    "applier.dead",
    "applier.other",
    "applier.failing",
    "applier.clock",
    "lake.behind",
    "configuration.refused",
    "table.stale",
    "table.gap",
    "verify.different",
    "verify.late",
    "verify.unreadable",
    "table.path",
    "table.quarantined",
    "table.failing",
    "table.maintenance",
    "table.catalog",
    "publication.operations",
    "table.detached",
    "table.pending",
    "table.snapshot",
)
"""The codes of `sluice.health.problems`, likewise."""
_LOOP_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)

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
    "48 bits of a hash of the configuration in force, without secrets; compare it to see whether two "
    "processes have the same configuration.",
    _STATE,
    {},
    BOTH,
)
HEALTH = Gauge(
    "sluice_health",
    "1 for the state of the pipeline that `sluice status` shows, 0 for the others. Absent until the "
    "stored state was read once; unknown also if the state cannot be computed.",
    _STATE,
    {"state": HEALTH_STATES},
)
PROBLEMS = Gauge(
    "sluice_problems",
    "The problems that `sluice status` shows, by code: for how many tables or times each stands, 0 "
    "for a code without a problem. Absent when `sluice_health` is, or if the state cannot be computed.",
    _STATE,
    {"code": PROBLEM_CODES},
)
HEARTBEAT = Gauge(
    "sluice_heartbeat_timestamp_seconds",
    "When a loop last ran, or when a thread that works on demand last had nothing to do or finished a "
    "step. `/livez` watches `events` and `apply`.",
    _STATE,
    {"loop": LOOPS},
    BOTH,
)
EVENT_LOOP_LAG = Histogram(
    "sluice_event_loop_lag_seconds", "How late the event loop ran a timer.", _STATE, buckets=_LOOP_SECONDS
)
SCRAPE_DURATION = Gauge(
    "sluice_scrape_duration_seconds",
    "How long rendering these metrics took the last time.",
    _STATE,
    {},
    (*BOTH, *FLEET),
)
TABLES_DROPPED = Gauge(
    "sluice_metrics_tables_dropped",
    "Tables without their own series, because telemetry.max_tables was reached.",
    _STATE,
)
ERRORS = Counter(
    "sluice_errors_total",
    "Errors by the place where they occurred. `retryable` is true for errors after which the process "
    "retries by itself.",
    _STATE,
    {"component": ERROR_COMPONENTS, "class": ERROR_CLASSES, "retryable": ("true", "false")},
    BOTH,
)
RETRY_DELAY = Gauge(
    "sluice_retry_delay_seconds",
    "The pause before the next attempt, 0 while nothing waits.",
    _STATE,
    {},
    BOTH,
)
TRACE_SPANS = Counter(
    "sluice_trace_spans_total",
    "Spans for the collector at telemetry.traces: sent, or dropped because it was away, too slow or refused them.",
    _STATE,
    {"outcome": OUTCOMES},
    BOTH,
)
LINEAGE_EVENTS = Counter(
    "sluice_lineage_events_total",
    "OpenLineage events for telemetry.lineage: sent, or dropped after some attempts.",
    _STATE,
    {"outcome": OUTCOMES},
    APPLY,
)

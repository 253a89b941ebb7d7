"""The applier: what its records say to ingest, and what it serves itself."""

from sluice.contract.applied import CHECKPOINT, MAINTENANCE_TASKS, WAYS
from sluice.contract.envelope import OP_NAMES
from sluice.telemetry.catalogue.metric import APPLY, BOTH, Counter, Gauge, Histogram

_WINDOW_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)

_RECORDS = "Apply, from its records in the object store"
APPLY_RUNNING = Gauge(
    "sluice_apply_process_running",
    "1 while the applier that `up` supervises is running; absent outside `up`.",
    _RECORDS,
)
APPLY_RESTARTS = Counter("sluice_apply_process_restarts_total", "How many times `up` restarted its applier.", _RECORDS)
APPLY_LAST_RECORD = Gauge(
    "sluice_apply_last_record_timestamp_seconds",
    "When the applier last wrote a record of its progress or renewed its lease, which it does at least every 40 s.",
    _RECORDS,
)
APPLY_PENDING = Gauge(
    "sluice_apply_entries_pending",
    "How many manifest entries the lake is behind, over all tables that are not left out.",
    _RECORDS,
)
APPLY_TABLE_ROWS = Gauge(
    "sluice_apply_table_rows", "Change rows applied in the present generations of all tables.", _RECORDS
)
APPLY_TABLES = Gauge(
    "sluice_apply_tables",
    "Tables by the way in which their newest changes were committed; none: no changes since the snapshot.",
    _RECORDS,
    {"way": (*WAYS, "none")},
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
    "When the applier's records and the slot were last read; the gauges that come from them are as old as this.",
    _RECORDS,
)
REPORT_ERRORS = Counter("sluice_report_errors_total", "Readings of the stored state that failed.", _RECORDS)

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
    "Time of a successful window: look checks what others committed, read fetches and checks its "
    "segments, schema alters the table, merge folds and commits, join replaces small files with one "
    "file, "
    "expire removes rows that were deleted long enough ago, total is all of it. Parts of merge: find "
    "searches the rows that a direct commit replaces, write makes and stores its files, commit is the "
    "transaction or the "
    "statement of Spark. Way none: a snapshot, or nothing to commit.",
    _APPLY,
    {
        "way": (*WAYS, "none"),
        "phase": ("look", "read", "schema", "merge", "find", "write", "commit", "join", "expire", "total"),
    },
    APPLY,
    buckets=_WINDOW_SECONDS,
)
APPLY_WINDOWS = Counter(
    "sluice_apply_windows_total",
    "Committed windows of changes, by the way in which they were committed.",
    _APPLY,
    {"way": WAYS},
    APPLY,
)
APPLY_KEY_LOOKUPS = Counter(
    "sluice_apply_key_cache_lookups_total",
    "Data files whose keys a direct commit searched: hit (kept from an earlier window) or miss (read from "
    "the data file).",
    _APPLY,
    {"result": ("hit", "miss")},
    APPLY,
)
APPLY_KEY_BYTES = Gauge(
    "sluice_apply_key_cache_bytes",
    "Keys of data files that are kept between windows, in memory (apply.key_cache) and on local disk.",
    _APPLY,
    {"where": ("memory", "disk")},
    APPLY,
)
APPLY_ROWS = Counter(
    "sluice_apply_rows_total",
    "Change rows taken into the lake; `snapshot` are rows of snapshots.",
    _APPLY,
    {"op": (*OP_NAMES.values(), "snapshot")},
    APPLY,
)
APPLY_CONFLICTS = Counter(
    "sluice_apply_conflicts_total",
    "Commits that conflicted with another writer: fresh_look (a direct commit conflicted with another "
    "commit, read the table again and was prepared again at once), concurrent (the window failed "
    "because of another commit and is tried again), fenced (another applier took over).",
    _APPLY,
    {"kind": ("fresh_look", "concurrent", "fenced")},
    APPLY,
)
_TURNS = ("tidy", "vacuum", CHECKPOINT)
MAINTENANCE_TURNS = Counter(
    "sluice_apply_maintenance_turns_total",
    "Turns in which a lake table was maintained (tidy: its files were counted and, where it was worth it, put in "
    "order; vacuum: files that no version needs were removed; checkpoint: one was written in parallel with "
    "windows, and the log was cleaned), by outcome: done, failed (shown for the table, tried again later), interrupted "
    "(postponed because of windows, a stop or another writer).",
    _APPLY,
    {"turn": _TURNS, "outcome": ("done", "failed", "interrupted")},
    APPLY,
)
MAINTENANCE_SECONDS = Counter(
    "sluice_apply_maintenance_seconds_total",
    "Time that turns of maintenance took of one worker; apply.maintenance_share limits it. "
    "Checkpoints have a separate thread.",
    _APPLY,
    {"turn": _TURNS},
    APPLY,
)
CHECKPOINT_LAG = Gauge(
    "sluice_apply_checkpoint_lag_versions",
    "Versions since the newest checkpoint of the lake table that has the most of them. A checkpoint is due after 50 to "
    "99, or as the table's delta.checkpointInterval says.",
    _APPLY,
    {},
    APPLY,
)
CATALOG_NAMES = Gauge(
    "sluice_apply_catalog_tables",
    "Lake tables that are registered in the catalog by name, and those for which that fails. Only with a catalog.",
    _APPLY,
    {"state": ("registered", "failing")},
    APPLY,
)
MAINTENANCE_RUNS = Counter(
    "sluice_apply_maintenance_tasks_total",
    "Tasks that were worth running in successful turns: join (small and sparse files), purge (removed rows), "
    "checkpoint, vacuum.",
    _APPLY,
    {"task": MAINTENANCE_TASKS},
    APPLY,
)
MAINTENANCE_FILES = Counter(
    "sluice_apply_maintenance_files_total",
    "Data files that maintenance took out of lake tables (vacuum: removed from the store) and that it added.",
    _APPLY,
    {"task": MAINTENANCE_TASKS, "change": ("removed", "added")},
    APPLY,
)
MAINTENANCE_BYTES = Counter(
    "sluice_apply_maintenance_bytes_total",
    "Bytes of the files of sluice_apply_maintenance_files_total.",
    _APPLY,
    {"task": MAINTENANCE_TASKS, "change": ("removed", "added")},
    APPLY,
)
APPLY_BACKLOG = Gauge(
    "sluice_apply_backlog_entries",
    "Manifest entries that were read but not applied, summed over tables.",
    _APPLY,
    {},
    APPLY,
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
    "Workers: busy with a window or with maintenance, or idle.",
    _APPLY,
    {"state": ("busy", "idle")},
    APPLY,
)
APPLY_LEASE = Gauge("sluice_apply_lease_held", "1 while this process may commit to the lake.", _APPLY, {}, APPLY)

"""What is written to the object store, and how long that takes."""

from sluice.telemetry.catalogue.metric import BOTH, Counter, Gauge, Histogram

_KIBI = 1024
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_FILE_BYTES = tuple(float(64 * _KIBI * 4**step) for step in range(8))

_SPOOL = "Spool"
_KINDS = ("changes", "staged", "snapshot")
SPOOL_ENTRIES = Counter("sluice_spool_entries_total", "Manifest entries with changes or an advance.", _SPOOL)
SPOOL_FILES = Counter(
    "sluice_spool_files_total",
    "Segment files written: changes, rows of transactions that have not ended, snapshots.",
    _SPOOL,
    {"kind": _KINDS},
)
SPOOL_BYTES = Counter("sluice_spool_bytes_total", "Bytes of the segment files written.", _SPOOL, {"kind": _KINDS})
SPOOL_ROWS = Counter("sluice_spool_rows_total", "Rows of the segment files written.", _SPOOL, {"kind": _KINDS})
SPOOL_FILE_BYTES = Histogram("sluice_spool_file_bytes", "Size of segment files.", _SPOOL, buckets=_FILE_BYTES)
SPOOL_LEFTOVERS = Counter(
    "sluice_spool_leftovers_deleted_total",
    "Deleted objects that older writers left and that no manifest entry names.",
    _SPOOL,
)
SPOOL_RETRIES = Counter(
    "sluice_spool_retries_total", "Writes that were retried because the object store did not answer.", _SPOOL
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
    "Flushes by cause: no other flush was running (idle), size limits, age, an advance without "
    "changes (progress), a request (the server or ingest stops, or a run with an end), or another "
    "shape of a table.",
    _SPOOL,
    {"trigger": ("idle", "bytes", "rows", "age", "progress", "asked", "shape")},
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
    "Segment files that are in the manifest but not in the lake, of tables that are not left out.",
    _SPOOL,
)
PENDING_BYTES = Gauge("sluice_spool_pending_bytes", "Bytes of these files.", _SPOOL)
OLDEST_PENDING = Gauge(
    "sluice_spool_oldest_pending_timestamp_seconds",
    "Commit time of the oldest change among them (of a snapshot: when it was written); absent without any.",
    _SPOOL,
)

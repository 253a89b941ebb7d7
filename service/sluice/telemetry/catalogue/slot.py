"""The source: its WAL, the slot, and how far each stage is behind."""

from sluice.telemetry.catalogue.metric import Counter, Gauge

RECONNECT_REASONS = (
    "connect_failed",
    "connection_lost",
    "server_stopping",
    "server_silent",
    "store_unavailable",
    "other",
)
STAGES = ("receive", "flush", "apply")

_SOURCE = "Source, WAL and slot"
SOURCE_CONNECTED = Gauge(
    "sluice_source_connected",
    "1 while the connection is up; `query` is the separate connection for these metrics.",
    _SOURCE,
    {"role": ("replication", "query")},
)
RECONNECTS = Counter(
    "sluice_source_reconnects_total",
    "How many times the stream was begun again.",
    _SOURCE,
    {"reason": RECONNECT_REASONS},
)
SOURCE_WAL_LSN = Gauge("sluice_source_wal_lsn_bytes", "The server's write position in the WAL.", _SOURCE)
RECEIVED_LSN = Gauge("sluice_received_lsn_bytes", "The highest position received from the server.", _SOURCE)
FLUSHED_LSN = Gauge("sluice_flushed_lsn_bytes", "The position through which the manifest holds everything.", _SOURCE)
CONFIRMED_FLUSH_LSN = Gauge(
    "sluice_confirmed_flush_lsn_bytes", "The slot's confirmed_flush_lsn as the server reports it.", _SOURCE
)
APPLIED_LSN = Gauge(
    "sluice_applied_lsn_bytes",
    "The position through which all tables in the lake are complete, except tables that are left out.",
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
    "The least time for which a stage has been behind the known position of the source, 0 when it is "
    "caught up. While the server cannot be asked: the time since "
    "the stage was last known to be caught up.",
    _SOURCE,
    {"stage": STAGES},
)
LAST_MESSAGE = Gauge(
    "sluice_last_message_timestamp_seconds",
    "When the last message arrived on the replication connection, including keepalives.",
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
    "Forecast: time until the slot may be lost if it advances no further and the server writes WAL as "
    "in the last minutes. Absent without a limit, while nothing is written, and until a minute has "
    "been observed.",
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
    "Since when no process uses the slot; absent while a process does, and before PostgreSQL 17.",
    _SOURCE,
)
SLOT_XMIN_AGE = Gauge(
    "sluice_slot_catalog_xmin_age_transactions",
    "Age of the slot's catalog_xmin, which holds back vacuum.",
    _SOURCE,
)
DECODER_SPILL_BYTES = Counter(
    "sluice_decoder_spill_bytes_total",
    "Bytes of transactions that the server's decoder wrote to its disk (pg_stat_replication_slots).",
    _SOURCE,
)
DECODER_SPILL_TRANSACTIONS = Counter(
    "sluice_decoder_spill_transactions_total", "Transactions that the server's decoder wrote to its disk.", _SOURCE
)
DECODER_STREAMED_BYTES = Counter(
    "sluice_decoder_streamed_bytes_total",
    "Bytes that the server's decoder sent before their transaction ended.",
    _SOURCE,
)
DECODER_STREAMED_TRANSACTIONS = Counter(
    "sluice_decoder_streamed_transactions_total",
    "Transactions that the server's decoder sent before they ended.",
    _SOURCE,
)
DECODER_BYTES = Counter(
    "sluice_decoder_decoded_bytes_total", "Bytes of transactions that the server decoded for the slot.", _SOURCE
)
DECODER_TRANSACTIONS = Counter(
    "sluice_decoder_decoded_transactions_total", "Transactions that the server decoded for the slot.", _SOURCE
)
PROBE_ERRORS = Counter(
    "sluice_slot_probe_errors_total",
    "Queries for facts about slot and WAL that failed; these facts are absent meanwhile.",
    _SOURCE,
)

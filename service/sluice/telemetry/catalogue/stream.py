"""What comes off the stream, and the memory that it takes."""

from sluice.contract.envelope import OP_NAMES
from sluice.telemetry.catalogue.metric import OPEN, Counter, Gauge, Histogram

_POWERS_OF_TEN = tuple(float(10**power) for power in range(10))
_BYTE_POWERS = tuple(float(10**power) for power in range(2, 12))

_STREAM = "Stream and memory"
TRANSACTIONS = Counter(
    "sluice_transactions_total",
    "Transactions from the stream by how they ended: committed with changes of carried tables, rolled "
    "back after they had been streamed or prepared, or skipped because they were already durable.",
    _STREAM,
    {"outcome": ("committed", "aborted", "skipped")},
)
ROWS = Counter(
    "sluice_rows_total",
    "Row changes made durable in the spool.",
    _STREAM,
    {"schema": OPEN, "table": OPEN, "op": tuple(OP_NAMES.values())},
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
    "Time since the oldest prepared transaction was prepared, 0 if there is none; it holds back WAL, "
    "vacuum and new snapshots.",
    _STREAM,
)
RECEIVED_BYTES = Counter("sluice_received_bytes_total", "Bytes received on the replication connection.", _STREAM)
UNCHANGED_VALUES = Counter(
    "sluice_unchanged_toast_values_total", "Values that the server did not send because they had not changed.", _STREAM
)
DECODE_SECONDS = Counter(
    "sluice_decode_cpu_seconds_total",
    "CPU time of the decoder thread; at one second per second this thread is the bottleneck.",
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
    "The limits: above the limit for memory, rows go to the store; above the limit for the store "
    "(limits.staged), the pipeline stops.",
    _STREAM,
    {"place": ("memory", "store")},
)
REORDER_TRANSACTIONS = Gauge(
    "sluice_reorder_buffer_transactions", "Transactions that have not ended and whose rows are held.", _STREAM
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

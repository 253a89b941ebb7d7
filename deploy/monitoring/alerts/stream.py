"""Does ingest keep up: lag, a flush that does not move, backpressure, open transactions, the object
store.
"""

from deploy.monitoring.model import Alert, Threshold, one
from deploy.monitoring.promql import over, total, worst
from sluice.telemetry import catalogue as known

LAG_WARNING = Threshold("lagWarningSeconds", 60, "how far the spool is behind the source")
LAG_CRITICAL = Threshold("lagCriticalSeconds", 300, "how far the spool is behind the source")
LAG_WARNING_BYTES = Threshold("lagWarningBytes", 1073741824, "WAL between the server's position and the spool (1 GiB)")
LAG_CRITICAL_BYTES = Threshold(
    "lagCriticalBytes", 4294967296, "WAL between the server's position and the spool (4 GiB)"
)
STUCK = Threshold(
    "flushStuckBytes", 67108864, "WAL waiting behind a flushed position that has not moved for 15 minutes (64 MiB)"
)
BACKPRESSURE = Threshold("backpressurePercent", 80, "share of the time in which the socket is not read")
STAGED = Threshold("stagedPercent", 80, "share of limits.staged that open transactions take; at 100 the pipeline stops")
STORE_ERRORS = Threshold("storeErrorPercent", 10, "share of requests to the object store that failed")

THRESHOLDS = (
    LAG_WARNING,
    LAG_CRITICAL,
    LAG_WARNING_BYTES,
    LAG_CRITICAL_BYTES,
    STUCK,
    BACKPRESSURE,
    STAGED,
    STORE_ERRORS,
)

LAG = worst(one(known.LAG_SECONDS, stage="flush"))
LAG_BYTES = worst(one(known.LAG_BYTES, stage="flush"))
STORE_FAILED = total(over("rate", one(known.STORE_REQUESTS, outcome=("unavailable", "refused", "error")), "5m"))
STORE_ALL = total(over("rate", one(known.STORE_REQUESTS), "5m"))
MOVED = worst(over("changes", one(known.FLUSHED_LSN), "15m"))
UNREAD = worst(over("rate", one(known.BACKPRESSURE_SECONDS), "5m"), "cause")

ALERTS = (
    Alert(
        "SluiceLagHigh",
        "warning",
        f"({LAG} > {LAG_WARNING}) or on (pipeline) ({LAG_BYTES} > {LAG_WARNING_BYTES})",
        "1m",
        "The spool of pipeline {{ $labels.pipeline }} is behind the source",
        "Changes that were committed long ago are not durable in the spool yet, and the server keeps their WAL.",
    ),
    Alert(
        "SluiceLagCritical",
        "critical",
        f"({LAG} > {LAG_CRITICAL}) or on (pipeline) ({LAG_BYTES} > {LAG_CRITICAL_BYTES})",
        "2m",
        "The spool of pipeline {{ $labels.pipeline }} is far behind the source",
        "Changes that were committed long ago are not durable in the spool yet. The server keeps "
        "their WAL, and the slot approaches its limit.",
    ),
    Alert(
        "SluiceFlushStuck",
        "critical",
        f"{LAG_BYTES} > {STUCK} and on (pipeline) {MOVED} == 0",
        "5m",
        "Nothing of pipeline {{ $labels.pipeline }} has become durable for 15 minutes",
        "{{ $value | humanize1024 }}B of WAL wait. Ingest receives and does not store, or does not receive.",
    ),
    Alert(
        "SluiceBackpressureSustained",
        "warning",
        f"100 * {UNREAD} > {BACKPRESSURE} and on (pipeline) {LAG} > {LAG_WARNING}",
        "10m",
        "Ingest of pipeline {{ $labels.pipeline }} cannot keep up: {{ $labels.cause }}",
        'For {{ $value | printf "%.0f" }} % of the time nothing is read from the server, because '
        "decoding or uploading is behind, and the lag is high.",
    ),
    Alert(
        "SluiceStagedNearLimit",
        "critical",
        f"100 * {worst(one(known.REORDER_BYTES, place='store'))} / "
        f"{worst(one(known.REORDER_LIMIT, place='store'))} > {STAGED}",
        "5m",
        'Open transactions of pipeline {{ $labels.pipeline }} take {{ $value | printf "%.0f" }} % of '
        "what limits.staged allows",
        "At 100 % the pipeline stops (exit code 2). Nothing is lost, and the server keeps WAL until "
        "you raise the limit.",
    ),
    Alert(
        "SluiceObjectStoreFailing",
        "warning",
        f"100 * {STORE_FAILED} / on (pipeline) {STORE_ALL} > {STORE_ERRORS}",
        "5m",
        "The object store fails pipeline {{ $labels.pipeline }}",
        '{{ $value | printf "%.0f" }} % of the requests fail. What is not stored is not '
        "acknowledged, so lag and retained WAL grow.",
    ),
)

"""Does ingest keep up: lag, and the object store."""

from deploy.monitoring.model import Alert, Threshold, one
from deploy.monitoring.promql import over, total, worst
from sluice.telemetry import catalogue as known

LAG_WARNING = Threshold("lagWarningSeconds", 60, "how far the spool is behind the source")
LAG_CRITICAL = Threshold("lagCriticalSeconds", 300, "how far the spool is behind the source")
LAG_WARNING_BYTES = Threshold("lagWarningBytes", 1073741824, "WAL between the server's position and the spool (1 GiB)")
LAG_CRITICAL_BYTES = Threshold(
    "lagCriticalBytes", 4294967296, "WAL between the server's position and the spool (4 GiB)"
)
STORE_ERRORS = Threshold("storeErrorPercent", 10, "share of requests to the object store that failed")

THRESHOLDS = (LAG_WARNING, LAG_CRITICAL, LAG_WARNING_BYTES, LAG_CRITICAL_BYTES, STORE_ERRORS)

LAG = worst(one(known.LAG_SECONDS, stage="flush"))
LAG_BYTES = worst(one(known.LAG_BYTES, stage="flush"))
STORE_FAILED = total(over("rate", one(known.STORE_REQUESTS, outcome=("unavailable", "refused", "error")), "5m"))
STORE_ALL = total(over("rate", one(known.STORE_REQUESTS), "5m"))

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
        # As long as a lake that comes back needs to catch up.
        held="15m",
    ),
    Alert(
        "SluiceObjectStoreFailing",
        "warning",
        f"100 * {STORE_FAILED} / on (pipeline) {STORE_ALL} > {STORE_ERRORS}",
        "5m",
        "Requests to the object store fail for pipeline {{ $labels.pipeline }}",
        '{{ $value | printf "%.0f" }} % of the requests fail. What is not stored is not '
        "acknowledged, so lag and retained WAL grow.",
    ),
)

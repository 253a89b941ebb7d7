"""Do the processes run, are they connected, and are the figures themselves current?"""

from deploy.monitoring.model import Alert, Threshold, one
from deploy.monitoring.promql import Not, gone, missing, over, risen, total, worst
from sluice.health.verdict import CARRYING
from sluice.telemetry import catalogue as known

RECONNECTS = Threshold("reconnects", 5, "connections to the source that had to be made again within 15 minutes")
EVENT_LOOP_LAG = Threshold(
    "eventLoopLagSeconds", 5, "how late the event loop runs a timer, 99th percentile over 5 minutes"
)
REPORT_AGE = Threshold(
    "reportAgeSeconds", 120, "age of the look at slot and apply records from which most figures come"
)

THRESHOLDS = (RECONNECTS, EVENT_LOOP_LAG, REPORT_AGE)

INGEST = one(known.BUILD_INFO, component="ingest")
REMEMBERED = "6h"
"""How long a pipeline without data is reported by name; after that it counts as never seen."""

STREAMED = worst(over("max_over_time", one(known.HEALTH, state=CARRYING), "5m"))

ALERTS = (
    Alert(
        "SluiceDown",
        "critical",
        gone(INGEST, REMEMBERED),
        "5m",
        "Ingest of pipeline {{ $labels.pipeline }} is gone",
        "Prometheus scraped it within the last hours and cannot scrape it now. PostgreSQL keeps WAL "
        "for its slot until it is back or the slot is lost. No other alert about this pipeline can "
        "fire meanwhile.",
    ),
    Alert(
        "SluiceMetricsAbsent",
        "critical",
        f"absent_over_time({INGEST}[{REMEMBERED}])",
        "10m",
        "No ingest process{{ with $labels.pipeline }} of pipeline {{ . }}{{ end }} is scraped",
        "Prometheus has not seen one for hours, or never. It does not run, or its endpoint is not "
        "scraped. None of the other alerts can fire.",
    ),
    Alert(
        "SluiceNotStreaming",
        "critical",
        # Windows longer than a scrape, so that a process that ends and is started again, and is
        # seen now and then, neither looks alive nor gone.
        f"group by (pipeline) (last_over_time({INGEST}[10m])) unless on (pipeline) {STREAMED} == 1",
        "5m",
        "Pipeline {{ $labels.pipeline }} has not streamed for ten minutes",
        "An ingest process appears, at least now and then, but it is starting, reconnecting, or "
        "ending again and again. The server keeps WAL for the slot.",
        held="10m",
    ),
    Alert(
        "SluiceSourceDisconnected",
        "critical",
        f"{worst(one(known.SOURCE_CONNECTED, role='replication'))} == 0",
        "5m",
        "Pipeline {{ $labels.pipeline }} has no replication connection",
        "Ingest runs and keeps trying, but nothing is received. The server keeps WAL for the slot meanwhile.",
    ),
    Alert(
        "SluiceReconnectLoop",
        "warning",
        f"{total(over('increase', one(known.RECONNECTS), '15m'))} > {RECONNECTS}",
        "0m",
        "Pipeline {{ $labels.pipeline }} keeps losing its connection",
        'The stream began again {{ $value | printf "%.0f" }} times in 15 minutes. Each time the '
        "server sends again what was not acknowledged.",
        held="10m",
    ),
    Alert(
        "SluiceErrors",
        "critical",
        total(
            risen(one(known.ERRORS, retryable="false", **{"class": Not(("UnsupportedChange",))}), "15m"),
            "component",
            "class",
        )
        + " > 0",
        "0m",
        "Pipeline {{ $labels.pipeline }} met {{ $labels.class }}, which it does not retry",
        "It occurred in {{ $labels.component }}. What could not be carried was not acknowledged. "
        "You have to act before the pipeline continues.",
        held="15m",
    ),
    Alert(
        "SluiceIngestStuck",
        "critical",
        f"{worst(one(known.PROBLEMS, code='ingest.stuck'))} > 0",
        "2m",
        "Ingest of pipeline {{ $labels.pipeline }} does not move",
        "Its event loop or one of its stages has not moved for minutes, although the process lives. "
        "Its other figures are as old as that. PostgreSQL keeps WAL for the slot meanwhile.",
    ),
    Alert(
        "SluiceEventLoopStalled",
        "warning",
        "histogram_quantile(0.99, "
        f"{total(over('rate', one.buckets(known.EVENT_LOOP_LAG), '5m'), 'le')}) > {EVENT_LOOP_LAG}",
        "10m",
        "Ingest of pipeline {{ $labels.pipeline }} does not get enough CPU",
        'Its event loop runs {{ $value | printf "%.1f" }} s late. It may fail to answer the server '
        "in time (wal_sender_timeout) and lose the connection.",
    ),
    Alert(
        "SluiceReportStale",
        "critical",
        f"time() - {worst(one(known.REPORT_TIMESTAMP))} > {REPORT_AGE} or on (pipeline) "
        f"({missing(one(known.REPORT_TIMESTAMP), INGEST)})",
        "5m",
        "Pipeline {{ $labels.pipeline }} has no current report",
        "Ingest has not been able to read the manifest or the applier's records for minutes. Figures "
        "of slot, tables, backlog and freshness are as old as that, "
        "so do not trust their alerts.",
    ),
    Alert(
        "SluiceSlotUnwatched",
        "critical",
        missing(one(known.SLOT_STATUS), INGEST),
        "10m",
        "The slot of pipeline {{ $labels.pipeline }} is not watched",
        "Ingest runs, but its side queries for slot and WAL fail. It cannot measure how much WAL the "
        "server keeps, and how long that can last.",
    ),
)

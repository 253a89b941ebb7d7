"""Does ingest run and carry changes, and are the figures themselves current?"""

from deploy.monitoring.alerts.presence import EXPECTED, INGEST, PAUSED_INGEST
from deploy.monitoring.model import Alert, Threshold, one
from deploy.monitoring.promql import Not, missing, over, risen, total, worst
from sluice.health.verdict import CARRYING
from sluice.telemetry import catalogue as known

RECONNECTS = Threshold("reconnects", 5, "connections to the source that had to be made again within 15 minutes")
REPORT_AGE = Threshold(
    "reportAgeSeconds", 120, "age of the last report on slot and apply records, from which most metrics come"
)

THRESHOLDS = (RECONNECTS, REPORT_AGE)

CARRIED = f"{worst(over('max_over_time', one(known.HEALTH, state=CARRYING), '5m'))} == 1"
"""A window longer than a scrape: a process that ends and is started again, and is seen now and then,
neither looks alive nor gone."""
AWAITED = f"{EXPECTED} and on (pipeline) {EXPECTED} offset 5m"
"""One that is new, or comes back from a pause, has the same time to start."""
STUCK = f"{worst(one(known.PROBLEMS, code=('ingest.stuck', 'slot.inactive')))} > 0"
NOTHING = f"absent({EXPECTED} or {PAUSED_INGEST})"
REPORT_OLD = f"time() - {worst(one(known.REPORT_TIMESTAMP))} > {REPORT_AGE}"

ALERTS = (
    Alert(
        "SluiceIngestDown",
        "critical",
        f"({AWAITED} unless on (pipeline) {CARRIED}) or on (pipeline) ({STUCK}) or on (pipeline) {NOTHING}",
        "3m",
        "{{ with $labels.pipeline }}Ingest of pipeline {{ . }} carries no changes{{ else }}"
        "No Sluice pipeline is scraped{{ end }}",
        "The process of ingest is gone, ends repeatedly, cannot reach the source, or makes no progress. PostgreSQL "
        "keeps WAL for the slot until ingest is back or the slot is lost. While no process is scraped, nothing "
        "measures how much WAL that is.",
        # As long as a lake that comes back needs to catch up: until then its freshness says nothing new.
        held="15m",
    ),
    Alert(
        "SluiceUnwatched",
        "critical",
        f"{REPORT_OLD} or on (pipeline) ({missing(one(known.REPORT_TIMESTAMP), INGEST)}) or on (pipeline) "
        f"({missing(one(known.SLOT_STATUS), INGEST)})",
        "15m",
        "The state of pipeline {{ $labels.pipeline }} cannot be observed",
        "Ingest runs, but it could not read the manifest and the applier's reports, or could not query the slot at "
        "the server. The metrics of slot, tables and lake are old or missing, so you cannot rely on the other alerts "
        "on them.",
        held="5m",
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
        "warning",
        total(
            risen(one(known.ERRORS, retryable="false", **{"class": Not(("UnsupportedChange",))}), "15m"),
            "component",
            "class",
        )
        + " > 0",
        "0m",
        "Pipeline {{ $labels.pipeline }} met {{ $labels.class }}, which it does not retry",
        "A failure that is not retried occurred in {{ $labels.component }}. Changes that could not be stored were not "
        "acknowledged. If the process does not come back, another alert pages.",
        held="15m",
    ),
)

"""The parts of a fleet, as the process that runs them sees them."""

from sluice.telemetry.catalogue.metric import FLEET, Counter, Gauge

PARTS = ("ingest", "apply")
_FLEET = "Fleet"

FLEET_RUNNING = Gauge(
    "sluice_fleet_running",
    "1 while the part of the pipeline runs, 0 while it does not: it failed, or waits for its next start.",
    _FLEET,
    {"part": PARTS},
    FLEET,
)
FLEET_RESTARTS = Counter(
    "sluice_fleet_restarts_total",
    "How many times the process was restarted. The pipelines share one applier, so they have the same number for it.",
    _FLEET,
    {"part": PARTS},
    FLEET,
)

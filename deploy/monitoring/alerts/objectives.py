"""The objective: the lake is fresh for most of the time. Alerts on how fast the error budget burns.

The objective is met at a moment when every followed table is fresher than the target. Time in which
an expected pipeline has no metrics counts as not met. Time in which its applier is paused does not
count. A window counts once there is data for all of it: a share of ten minutes says nothing of an
hour. (The windows and factors are those of the SRE Workbook, chapter 5.)
"""

from deploy.monitoring.alerts.presence import EXPECTED, INGEST, PAUSED_APPLIER
from deploy.monitoring.model import Alert, Recording, Threshold, one
from deploy.monitoring.promql import worst
from sluice.telemetry import catalogue as known

TARGET = Threshold("freshnessTargetSeconds", 300, "how far a table may be behind the source while the objective is met")
OBJECTIVE = Threshold(
    "freshnessObjective", 0.99, "share of the time in which the target is met; the rest is the error budget"
)

THRESHOLDS = (TARGET, OBJECTIVE)

GOOD = "pipeline:sluice_freshness_good:bool"
WINDOWS = ("5m", "30m", "1h", "6h", "3d")
_WHOLE = {"1h": "[1h:1m]) >= 57", "6h": "[6h:5m]) >= 69", "3d": "[3d:30m]) >= 137"}
"""Data for 95 % of a window, counted in steps that cost little."""


def average(window: str) -> str:
    """The recording of the share of `window` in which the target was met."""
    return f"pipeline:sluice_freshness_good:avg{window}"


def _burning(factor: float, long: str, *shorter: str) -> str:
    """All windows burn: the long one says that it matters, the shorter ones that it still does."""
    sides = [f"1 - {average(window)}{{{one.scope}}} > {factor} * (1 - {OBJECTIVE})" for window in (long, *shorter)]
    whole = f"count_over_time({GOOD}{{{one.scope}}}{_WHOLE[long]}"
    return f"({' and on (pipeline) '.join([*sides, whole])})"


RECORDINGS = (
    Recording(
        GOOD,
        f"({worst(one(known.APPLY_FRESHNESS, quantile_of_tables='max'))} <= bool {TARGET} or on "
        f"(pipeline) 0 * ({EXPECTED} unless on (pipeline) group by (pipeline) ({INGEST}))) unless on (pipeline) "
        f"{PAUSED_APPLIER}",
    ),
    *(Recording(average(window), f"avg_over_time({GOOD}{{{one.scope}}}[{window}])") for window in WINDOWS),
)

ALERTS = (
    Alert(
        "SluiceFreshnessBurnFast",
        "critical",
        f"{_burning(14.4, '1h', '5m')} or on (pipeline) {_burning(6, '6h', '30m', '5m')}",
        "2m",
        "The lake of pipeline {{ $labels.pipeline }} is not fresh; its freshness budget "
        "for the month will last a few days",
        "In the last hour, or in the last six, tables were further behind than the target for {{ $value | "
        "humanizePercentage }} of the time, and they still are.",
        # Shorter than what its causes hold: it must not outlast the page that it follows from.
        held="5m",
    ),
    Alert(
        "SluiceFreshnessBurnSlow",
        "warning",
        _burning(1, "3d", "6h"),
        "0m",
        "The lake of pipeline {{ $labels.pipeline }} will miss its objective this month",
        "In the last three days tables were further behind than the target for {{ $value | "
        "humanizePercentage }} of the time.",
        held="1h",
    ),
)

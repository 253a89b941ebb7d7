"""The objective: the lake is fresh for most of the time. Alerts on how fast the error budget burns.

The objective is met at a moment when every followed table is fresher than the target. Time without
data counts as not met. (The windows and factors are those of the SRE Workbook, chapter 5.)
"""

from deploy.monitoring.alerts.process import INGEST, REMEMBERED
from deploy.monitoring.model import Alert, Recording, Threshold, one
from deploy.monitoring.promql import gone, worst
from sluice.telemetry import catalogue as known

TARGET = Threshold("freshnessTargetSeconds", 300, "how far a table may be behind the source while the objective is met")
OBJECTIVE = Threshold(
    "freshnessObjective", 0.99, "share of the time in which the target is met; the rest is the error budget"
)

THRESHOLDS = (TARGET, OBJECTIVE)

GOOD = "pipeline:sluice_freshness_good:bool"
WINDOWS = ("5m", "30m", "1h", "6h", "3d")


def average(window: str) -> str:
    """The recording of the share of `window` in which the target was met."""
    return f"pipeline:sluice_freshness_good:avg{window}"


def _burning(factor: float, long: str, short: str) -> str:
    """Both windows burn: the long one says that it matters, the short one that it still does."""
    sides = [f"1 - {average(window)}{{{one.scope}}} > {factor} * (1 - {OBJECTIVE})" for window in (long, short)]
    return f"{sides[0]} and on (pipeline) {sides[1]}"


RECORDINGS = (
    Recording(
        GOOD,
        f"{worst(one(known.APPLY_FRESHNESS, quantile_of_tables='max'))} <= bool {TARGET} or on "
        f"(pipeline) 0 * ({gone(INGEST, REMEMBERED)})",
    ),
    *(Recording(average(window), f"avg_over_time({GOOD}{{{one.scope}}}[{window}])") for window in WINDOWS),
)

ALERTS = (
    Alert(
        "SluiceFreshnessBurnFast",
        "critical",
        _burning(14.4, "1h", "5m"),
        "0m",
        "The lake of pipeline {{ $labels.pipeline }} is not fresh; its freshness budget "
        "for the month will last two days",
        "In the last hour tables were further behind than the target for {{ $value | "
        "humanizePercentage }} of the time, and they still are.",
        held="5m",
    ),
    Alert(
        "SluiceFreshnessBurnSlow",
        "critical",
        _burning(6, "6h", "30m"),
        "0m",
        "The lake of pipeline {{ $labels.pipeline }} is often not fresh; its freshness budget "
        "for the month will last five days",
        "In the last six hours tables were further behind than the target for {{ $value | "
        "humanizePercentage }} of the time, and they still are.",
        held="15m",
    ),
    Alert(
        "SluiceFreshnessBurnTicket",
        "warning",
        _burning(1, "3d", "6h"),
        "0m",
        "The lake of pipeline {{ $labels.pipeline }} will miss its objective this month",
        "In the last three days tables were further behind than the target for {{ $value | "
        "humanizePercentage }} of the time.",
        held="1h",
    ),
)

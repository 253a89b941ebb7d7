"""The verdict, brought to the metrics that alerts read."""

from collections import Counter

from sluice.health.problems import BY_CODE
from sluice.health.verdict import Verdict
from sluice.telemetry import catalogue
from sluice.telemetry.metrics import Metrics


def export_verdict(metrics: Metrics, verdict: Verdict) -> None:
    """Exports `verdict`. While the server is not reached, nothing is known of the slot: its series
    are withdrawn, so that an alert may go by what was last seen.
    """
    metrics.choose(catalogue.HEALTH, "state", verdict.state)
    counts = Counter[str]()
    for problem in verdict.problems:
        counts[problem.code] += problem.count
    for code, kind in BY_CODE.items():
        known = kind.part != "slot" or not counts["server.unreachable"]
        metrics.show(catalogue.PROBLEMS, counts[code] if known else None, code=code)


def export_unknown(metrics: Metrics) -> None:
    """Exports that there is no verdict: no problem is known to be there, and none to be gone."""
    metrics.choose(catalogue.HEALTH, "state", "unknown")
    for code in BY_CODE:
        metrics.show(catalogue.PROBLEMS, None, code=code)

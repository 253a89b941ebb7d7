"""A real scrape, played on for an hour of simulated time under the alert rules as they are shipped.

What kept up with the clock keeps up with it, what is named goes on growing at the rate that was
measured, everything else stands still. promtool evaluates the rules over that, minute by minute.
(Prometheus: Unit testing for rules.)
"""

import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.support import commands
from tools.local.tools import tool

RULES = Path(__file__).parents[2] / "deploy" / "monitoring" / "rules.yml"
MINUTES = 75
_CLOCK = "_timestamp_seconds"
_KEEPS_UP_SECONDS = 45.0
"""A time younger than this in the scrape is one that follows the clock: above the interval of the
slowest look, below what counts as standing still.
"""

Samples = Mapping[str, float]
"""Value by series, labels and all."""


def samples(exposition: str) -> dict[str, float]:
    """The series of one scrape."""
    found = {}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if not math.isfinite(sample.value):
                continue
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def played_on(
    before: Samples, now: Samples, *, seconds: float, at: float, growing: Collection[str], frozen: Collection[str]
) -> list[dict[str, str]]:
    """promtool's input: `now`, scraped at `at` and `seconds` after `before`, and MINUTES more.
    Times of metrics in `frozen` stand still however young.
    """
    series = []
    for name, value in now.items():
        metric = name.partition("{")[0]
        per_minute = (value - before.get(name, value)) / seconds * 60 if metric in growing else 0.0
        if metric.endswith(_CLOCK):
            per_minute = 60.0 if at - value < _KEEPS_UP_SECONDS and metric not in frozen else 0.0
            value -= at
        series.append({"series": name, "values": f"{value:.3f}{per_minute:+.3f}x{MINUTES}"})
    return series


def assert_alerts(
    folder: Path,
    series: Iterable[Mapping[str, str]],
    *,
    firing: Collection[str],
    silent: Collection[str],
    at_minute: int,
) -> None:
    """At that minute those in `firing` fire and those in `silent` do not."""
    one_of = "|".join(silent)
    checks = [
        {
            "expr": f'count by (alertname) (ALERTS{{alertstate="firing",alertname="{name}"}})',
            "eval_time": f"{at_minute}m",
            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1}],
        }
        for name in firing
    ]
    if silent:
        checks.append(
            {
                "expr": f'count by (alertname) (ALERTS{{alertstate="firing",alertname=~"{one_of}"}})',
                "eval_time": f"{at_minute}m",
                "exp_samples": [],
            }
        )
    case = {"interval": "1m", "input_series": list(series), "promql_expr_test": checks}
    path = folder / f"replay-{at_minute}.yml"
    path.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [case]}, sort_keys=False)
    )
    outcome = commands.ended(str(tool("promtool")), "test", "rules", str(path))
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr

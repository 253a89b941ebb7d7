"""What is served on /metrics is what Prometheus itself calls well-formed and well-named."""

import subprocess
from pathlib import Path

import pytest

from sluice.telemetry.catalogue import BOTH, CATALOGUE, FLEET, Counter, Gauge, Histogram, Metric
from sluice.telemetry.metrics import Metrics

AWKWARD = 'a "quoted" \\ name,\nof two lines'


def filled(component: str) -> bytes:
    """The exposition of a process in which every metric has a series, with label values as awkward
    as PostgreSQL allows.
    """
    metrics = Metrics("shop", component=component)
    for metric in CATALOGUE:
        if component not in metric.components:
            continue
        labels = {name: values[0] if values else AWKWARD for name, values in metric.labels.items()}
        _touch(metrics, metric, labels)
    return metrics.render()


def _touch(metrics: Metrics, metric: Metric, labels: dict[str, str]) -> None:
    if isinstance(metric, Counter):
        metrics.add(metric, 1, **labels)
    elif isinstance(metric, Gauge):
        metrics.set(metric, 1.5, **labels)
    elif isinstance(metric, Histogram):
        metrics.observe(metric, 1.5, **labels)


@pytest.mark.parametrize("component", BOTH + FLEET)
def test_promtool_finds_nothing_to_object_to(promtool: Path, component: str) -> None:
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=filled(component), capture_output=True, timeout=60, check=False
    )
    assert (checked.returncode, (checked.stdout + checked.stderr).decode()) == (0, "")

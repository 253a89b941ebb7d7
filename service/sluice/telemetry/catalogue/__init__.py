"""Every metric that Sluice exports, as data: one module for each group.

Invariants: one quantity per name, base units, counters end in `_total`. Label values come from a
closed set, except schema and table, which the publication bounds and `Metrics` caps. Never an LSN,
transaction id, file name, error text or query in a label. Every series carries `pipeline`.
docs/metrics.md is generated from here, alerts and dashboards refer to it. (Prometheus: Metric and
label naming.)
"""

from sluice.telemetry.catalogue import apply, fleet, process, slot, store, stream, tables
from sluice.telemetry.catalogue.apply import *  # noqa: F403 - what a group defines is part of the catalogue
from sluice.telemetry.catalogue.fleet import *  # noqa: F403
from sluice.telemetry.catalogue.metric import *  # noqa: F403
from sluice.telemetry.catalogue.metric import Metric
from sluice.telemetry.catalogue.process import *  # noqa: F403
from sluice.telemetry.catalogue.slot import *  # noqa: F403
from sluice.telemetry.catalogue.store import *  # noqa: F403
from sluice.telemetry.catalogue.stream import *  # noqa: F403
from sluice.telemetry.catalogue.tables import *  # noqa: F403

CATALOGUE: tuple[Metric, ...] = tuple(
    value
    for group in (process, slot, stream, store, tables, apply, fleet)
    for value in vars(group).values()
    if isinstance(value, Metric)
)
"""In the order of the documentation."""


def served_by(component: str) -> tuple[Metric, ...]:
    """The metrics of one kind of process."""
    return tuple(metric for metric in CATALOGUE if component in metric.components)

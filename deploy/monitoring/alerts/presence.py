"""Which pipelines should run, as recordings: the only way to notice one that has no metrics.

Invariants: a pipeline that was seen once is expected until it is declared paused, however long
it has no metrics. No alert expects one that is paused. The chart declares its own
pipeline in both ways; elsewhere people may, in a rule file of their own (docs/how-to/monitoring.md).
"""

from deploy.monitoring.model import Recording, one
from sluice.telemetry import catalogue as known

INGEST = one(known.BUILD_INFO, component="ingest")
REMEMBERED = "14d"
"""How long the memory of a pipeline bridges a Prometheus that was off, and how long a pipeline that
was removed has to be declared paused. Below what Prometheus keeps by default (15 days).
"""

DECLARED = f"pipeline:sluice_declared{{{one.scope}}}"
"""1 for a pipeline that somebody said there is. Not recorded by the rules: the chart writes it."""
PAUSED_INGEST = f'pipeline:sluice_paused{{{one.scope},part="ingest"}}'
PAUSED_APPLIER = f'pipeline:sluice_paused{{{one.scope},part="applier"}}'
"""There while a part of the pipeline is stopped on purpose. Likewise."""

EXPECTED = f"pipeline:sluice_expected{{{one.scope}}}"

RECORDINGS = (
    Recording(
        "pipeline:sluice_expected",
        f"(group by (pipeline) ({INGEST}) or on (pipeline) group by (pipeline) ({DECLARED}) "
        f"or on (pipeline) group by (pipeline) (last_over_time({EXPECTED}[{REMEMBERED}]))) "
        f"unless on (pipeline) {PAUSED_INGEST}",
    ),
)

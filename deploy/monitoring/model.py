"""The form of alerts, recording rules and thresholds.

Invariant: an expression holds marks instead of numbers and instead of the choice of pipelines, so
that one text becomes the plain rule with the defaults and the chart's rule with its values. Must
not know how either file is written.
"""

import re
from dataclasses import dataclass
from typing import Literal

from deploy.monitoring.promql import Selector

Severity = Literal["critical", "warning"]

SCOPE = "⟦scope⟧"
"""Stands in every selector for the pipelines that a rule watches: all of them in the plain rules,
the release's own in the chart.
"""

THRESHOLD = re.compile(r"⟦([a-zA-Z0-9]+)⟧")
one = Selector(SCOPE)


@dataclass(frozen=True, slots=True)
class Threshold:
    """A number that people choose; written into an expression it is its mark. `meaning` stands in
    the chart's values.
    """

    name: str
    default: int | float
    meaning: str

    def __str__(self) -> str:
        return f"⟦{self.name}⟧"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert, named as its rule file and its runbook. `wait` is Prometheus's `for`; `held` is
    `keep_firing_for`.

    `critical` is worth a page: somebody has to act now. `warning` is not: a ticket for the next working
    day. `summary` is one line with the
    pipeline; `description` says what was seen and what follows from it; both may use Prometheus's
    templates.
    """

    name: str
    severity: Severity
    expression: str
    wait: str
    summary: str
    description: str
    held: str = ""

    @property
    def runbook(self) -> str:
        return f"docs/runbooks/{self.name}.md"


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded expression, for alerts and dashboards that look back further than is cheap."""

    name: str
    expression: str


def thresholds_of(expression: str) -> set[str]:
    """The names of the thresholds in an expression."""
    return {name for name in THRESHOLD.findall(expression) if f"⟦{name}⟧" != SCOPE}

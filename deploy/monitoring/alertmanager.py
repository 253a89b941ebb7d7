"""Inhibitions as Alertmanager's configuration: an example file that is complete but for the
receivers, and what the chart puts into an AlertmanagerConfig.

(Alertmanager: Configuration. Prometheus operator: AlertmanagerConfig, v1alpha1.)
"""

from collections.abc import Sequence

from deploy.monitoring.alerts.inhibitions import Inhibition
from deploy.monitoring.rules import HEADER


def alertmanager_file(inhibitions: Sequence[Inhibition]) -> str:
    """An Alertmanager configuration: pages by severity, one notification for each alert of a
    pipeline, and the inhibitions.
    """
    lines = [HEADER.rstrip(), _ROUTES.rstrip(), "inhibit_rules:"]
    for one in inhibitions:
        lines += [
            f"  # {one.why}",
            f"  - source_matchers: ['alertname=\"{one.source}\"']",
            f"    target_matchers: ['alertname=~\"{'|'.join(one.targets)}\"']",
            "    equal: [pipeline]",
        ]
    return "\n".join([*lines, ""])


def chart_inhibitions(inhibitions: Sequence[Inhibition]) -> str:
    """The same rules in the operator's form."""
    lines = [HEADER.rstrip()]
    for one in inhibitions:
        lines += [
            f"# {one.why}",
            "- sourceMatch:",
            f'    - {{name: alertname, matchType: "=", value: {one.source}}}',
            "  targetMatch:",
            f'    - {{name: alertname, matchType: "=~", value: "{"|".join(one.targets)}"}}',
            "  equal: [pipeline]",
        ]
    return "\n".join([*lines, ""])


_ROUTES = """\
# Fill in the receivers, or take the routes and inhibit_rules into your own configuration.
route:
  receiver: tickets
  # A second table, or another pipeline, is a notification of its own.
  group_by: [alertname, pipeline, schema, table]
  # Long enough for the alert that names the cause to arrive before those that it silences notify.
  group_wait: 1m
  group_interval: 5m
  repeat_interval: 12h
  routes:
    - matchers: ['alertname=~"Sluice.+"', 'severity="critical"']
      receiver: pager
      repeat_interval: 4h
receivers:
  - name: pager
  - name: tickets
"""

"""Alerts and recordings as rule files: plain ones with the default thresholds, and the chart's,
which Helm fills in.

Invariant: both come from the same marked text, and no mark is left in either. Nothing here decides
when an alert fires. (Prometheus: Alerting rules, Recording rules.)
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence

from deploy.monitoring.model import SCOPE, THRESHOLD, Alert, Recording

HEADER = "# Generated from deploy/monitoring by `make docs`; a test compares.\n"
_VALUES = ".Values.metrics.prometheusRule"
_NAMESPACE = "namespace: {{ $.Release.Namespace }}"
"""The operator limits an AlertmanagerConfig to the alerts of its namespace."""
_SCOPED = re.compile(re.escape(SCOPE) + ",?")
_EMPTY_SELECTOR = "{}"
_JOINT = re.compile(r" ((?:or|and|unless) on \(pipeline\) )")
"""Where a long expression is broken for reading."""
_BRACES = re.compile(r"\{\{.*?\}\}")


def plain(expression: str, defaults: Mapping[str, int | float]) -> str:
    """For all pipelines, with these numbers."""
    scoped = _SCOPED.sub("", expression).replace(_EMPTY_SELECTOR, "")
    return THRESHOLD.sub(lambda mark: str(defaults[mark[1]]), scoped)


def templated(text: str) -> str:
    """For Helm's `tpl`: the release's pipeline and the numbers of its values; Prometheus's own
    templates are kept from Helm.
    """
    kept = _BRACES.sub(lambda template: "{{`" + template[0] + "`}}", text)
    # A blank before it: Go templates would take the selector's brace for one of their own.
    scoped = kept.replace(SCOPE, ' {{ include "sluice.pipelineMatcher" $ }}')
    return THRESHOLD.sub(lambda mark: f"{{{{ ${_VALUES}.thresholds.{mark[1]} }}}}", scoped)


def plain_file(alerts: Sequence[Alert], recordings: Sequence[Recording], defaults: Mapping[str, int | float]) -> str:
    """A rule file for Prometheus: one group, because only the rules of one group are evaluated in
    their order. An alert in another group reads recordings that are an interval old.
    """
    lines = [HEADER.rstrip(), "groups:", "  - name: sluice", "    rules:"]
    for recording in recordings:
        lines += _item([f"record: {recording.name}", *_block("expr", plain(recording.expression, defaults))])
    for alert in alerts:
        lines += _item(_alert(alert, lambda text: plain(text, defaults)))
    return "\n".join([*lines, ""])


def chart_alert(alert: Alert) -> str:
    """One rule of the chart, a text for `tpl`."""
    rule = _alert(alert, templated, extra_labels=(_NAMESPACE,))
    link = (
        f'{{{{- with ${_VALUES}.runbookUrl }}}}\n  runbook_url: {{{{ . | trimSuffix "/" '
        f"}}}}/{alert.name}.md\n{{{{- end }}}}"
    )
    return "\n".join([HEADER.rstrip(), *rule, link, ""])


def chart_recordings(recordings: Sequence[Recording]) -> str:
    """The chart's recording rules, a text for `tpl`."""
    lines = [HEADER.rstrip()]
    for recording in recordings:
        lines += [
            f"- record: {recording.name}",
            *(f"  {line}" for line in _block("expr", templated(recording.expression))),
        ]
    return "\n".join([*lines, ""])


def _alert(alert: Alert, written: Callable[[str], str], *, extra_labels: Sequence[str] = ()) -> list[str]:
    held = [f"keep_firing_for: {alert.held}"] if alert.held else []
    return [
        f"alert: {alert.name}",
        *_block("expr", written(alert.expression)),
        f"for: {alert.wait}",
        *held,
        "labels:",
        f"  severity: {alert.severity}",
        *(f"  {label}" for label in extra_labels),
        "annotations:",
        f"  summary: {_quoted(written(alert.summary))}",
        f"  description: {_quoted(written(alert.description))}",
        f"  runbook: {alert.runbook}",
    ]


def _block(key: str, text: str) -> list[str]:
    return [f"{key}: |-", *(f"  {line}" for line in _JOINT.sub(r"\n\1", text).splitlines())]


def _item(lines: list[str]) -> list[str]:
    return [f"      {'- ' if number == 0 else '  '}{line}" for number, line in enumerate(lines)]


def _quoted(text: str) -> str:
    """A YAML scalar; JSON's strings are some, but Helm's back quotes and braces must stay as they
    are.
    """
    return json.dumps(text, ensure_ascii=False)


def spoken(text: str, defaults: Mapping[str, int | float]) -> str:
    """A description for people: values that Prometheus would fill in are left open."""
    return " ".join(_BRACES.sub("…", plain(text, defaults)).split())

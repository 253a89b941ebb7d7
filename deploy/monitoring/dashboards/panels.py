"""Dashboards as values, and the JSON that Grafana 10 and later read.

Invariant: every query is limited to the chosen pipelines and every data source is the chosen one;
nothing names an installation. `quiet` says why a panel may have nothing to show on a healthy
pipeline; the end-to-end test accepts an empty panel for that reason only. (Grafana: Dashboard JSON
model.)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from deploy.monitoring.promql import Selector

Json = dict[str, Any]
Kind = Literal["timeseries", "stat", "gauge", "bargauge", "heatmap", "table"]
COLUMNS = 24
ROW_HEIGHT = 1
SCHEMA_VERSION = 39
"""Grafana 10.4; later ones bring older dashboards up to their own by themselves."""
RATE = "$__rate_interval"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
UNITS = {"bytes", "Bps", "s", "short", "percentunit", "ops", "rowsps", "bool", "none", "reqps", "dateTimeFromNow"}
"""Grafana's names of the units in use."""
_TAGS = ["sluice"]

shown = Selector('pipeline=~"$pipeline"')
GREEN, YELLOW, RED = "green", "yellow", "red"


@dataclass(frozen=True, slots=True)
class Query:
    """One expression and how its series are called."""

    expression: str
    legend: str = "{{pipeline}}"
    heat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel. `steps` are thresholds: a colour from a value on, the first from the beginning.
    `words` shows a number as a word.
    """

    title: str
    description: str
    unit: str
    queries: Sequence[Query]
    kind: Kind = "timeseries"
    width: int = 8
    height: int = 8
    steps: Sequence[tuple[float | None, str]] = ((None, GREEN),)
    words: Sequence[tuple[int, str, str]] = ()
    stacked: bool = False
    least: float | None = None
    most: float | None = None
    quiet: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading, laid out from left to right."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """`uid` is its address in Grafana and its file name; it never changes."""

    uid: str
    title: str
    description: str
    rows: Sequence[Row] = field(default_factory=tuple)

    @property
    def panels(self) -> list[Panel]:
        return [panel for row in self.rows for panel in row.panels]

    def to_json(self) -> Json:
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": _TAGS,
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": False,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": "now-3h", "to": "now"},
            "timezone": "browser",
            "annotations": {"list": []},
            "links": [
                {
                    "title": "Sluice",
                    "type": "dashboards",
                    "tags": _TAGS,
                    "asDropdown": True,
                    "includeVars": True,
                    "keepTime": True,
                }
            ],
            "templating": {"list": [_datasource(), _pipeline()]},
            "panels": _laid_out(self.rows),
        }


def _datasource() -> Json:
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "hide": 0,
        "multi": False,
        "includeAll": False,
    }


def _pipeline() -> Json:
    query = "label_values(sluice_build_info, pipeline)"
    return {
        "name": "pipeline",
        "label": "Pipeline",
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": "pipeline"},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _laid_out(rows: Sequence[Row]) -> list[Json]:
    """Panels in lines of at most 24 columns; each line is as high as its highest panel."""
    placed: list[Json] = []
    y = 0
    for row in rows:
        placed.append(
            {
                "id": len(placed) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": _place(0, y, COLUMNS, ROW_HEIGHT),
                "panels": [],
            }
        )
        x, y, line = 0, y + ROW_HEIGHT, 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, line = 0, y + line, 0
            placed.append({"id": len(placed) + 1, "gridPos": _place(x, y, panel.width, panel.height), **_panel(panel)})
            x, line = x + panel.width, max(line, panel.height)
        y += line
    return placed


def _place(x: int, y: int, width: int, height: int) -> Json:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(panel: Panel) -> Json:
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "targets": [_target(query, chr(ord("A") + number), panel.kind) for number, query in enumerate(panel.queries)],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": _options(panel),
    }


def _target(query: Query, letter: str, kind: Kind) -> Json:
    instant = kind in ("stat", "gauge", "bargauge", "table")
    form = "heatmap" if query.heat else "table" if kind == "table" else "time_series"
    return {
        "refId": letter,
        "datasource": SOURCE,
        "expr": query.expression,
        "legendFormat": query.legend,
        "format": form,
        "instant": instant,
        "range": not instant,
        "editorMode": "code",
    }


def _defaults(panel: Panel) -> Json:
    defaults: Json = {
        "unit": panel.unit,
        "thresholds": {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in panel.steps]},
        "color": {"mode": "palette-classic" if panel.kind == "timeseries" else "thresholds"},
        "noValue": "none",
    }
    if panel.least is not None:
        defaults["min"] = panel.least
    if panel.most is not None:
        defaults["max"] = panel.most
    if panel.words:
        words = {
            str(value): {"text": text, "color": color, "index": index}
            for index, (value, text, color) in enumerate(panel.words)
        }
        defaults["mappings"] = [{"type": "value", "options": words}]
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 20 if panel.stacked else 5,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "line" if len(panel.steps) > 1 else "off"},
        }
    return defaults


def _options(panel: Panel) -> Json:
    if panel.kind == "timeseries":
        legend = {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]}
        return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    if panel.kind == "heatmap":
        return {
            "calculate": False,
            "yAxis": {"unit": panel.unit},
            "color": {"mode": "scheme", "scheme": "Oranges"},
            "legend": {"show": True},
        }
    if panel.kind == "table":
        return {"showHeader": True, "cellHeight": "sm"}
    reduced: Json = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "orientation": "auto"}
    if panel.kind == "stat":
        return {**reduced, "colorMode": "value", "graphMode": "none", "textMode": "auto", "justifyMode": "auto"}
    if panel.kind == "bargauge":
        return {**reduced, "displayMode": "basic", "showUnfilled": True}
    return {**reduced, "showThresholdLabels": False, "showThresholdMarkers": True}

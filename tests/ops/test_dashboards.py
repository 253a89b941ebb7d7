"""Dashboards: what a linter for Grafana looks for, and what we ask beyond."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.monitoring.dashboards import DASHBOARDS
from deploy.monitoring.dashboards.panels import COLUMNS, RATE, UNITS, Json
from sluice.telemetry import catalogue
from sluice.telemetry.catalogue import Counter

ROOT = Path(__file__).parents[2]
BOARDS = [pytest.param(board.to_json(), id=board.uid) for board in DASHBOARDS]
_RECORDED = re.compile(r"pipeline:sluice_\w+:\w+")
_SELECTED = re.compile(r"\b(sluice_[a-z_]+|ALERTS)\b(\{[^}]*\})?")
_COUNTERS = {metric.name for metric in catalogue.CATALOGUE if isinstance(metric, Counter)}


def _panels(board: Json) -> list[Json]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def _targets(board: Json) -> Iterator[tuple[str, str]]:
    for panel in _panels(board):
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.mark.parametrize("board", BOARDS)
def test_a_dashboard_belongs_to_no_installation(board: Json) -> None:
    """Neither a data source, nor a name, nor the id of a database row."""
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert list(variables) == ["datasource", "pipeline"]
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    assert variables["pipeline"]["query"]["query"] == f"label_values({catalogue.BUILD_INFO.name}, pipeline)"
    assert "id" not in board
    assert board["editable"] is False
    sources = re.findall(
        r'"datasource": (\{[^}]*\}[^}]*\})', json.dumps({"panels": board["panels"], "variable": variables["pipeline"]})
    )
    assert sources
    assert {json.loads(source)["uid"] for source in sources} == {"${datasource}"}


@pytest.mark.parametrize("board", BOARDS)
def test_every_panel_has_a_unit_that_grafana_knows(board: Json) -> None:
    assert {panel["fieldConfig"]["defaults"]["unit"] for panel in _panels(board)} <= UNITS


@pytest.mark.parametrize("board", BOARDS)
def test_every_query_is_limited_to_the_chosen_pipelines(board: Json) -> None:
    for title, expression in _targets(board):
        plain = _RECORDED.sub("sluice_recorded", expression)
        found = _SELECTED.findall(plain)
        assert found, title
        for name, selector in found:
            assert 'pipeline=~"$pipeline"' in selector, f"{title}: {name}"


@pytest.mark.parametrize("board", BOARDS)
def test_counters_are_read_as_rates_over_the_window_that_grafana_chooses(board: Json) -> None:
    for title, expression in _targets(board):
        for counter in _COUNTERS:
            for place in re.finditer(rf"\b{counter}\b", expression):
                assert re.search(r"(rate|increase)\($", expression[: place.start()]), f"{title}: {counter}"
        windows = re.findall(r"\[([^\]]+)\]", expression)
        assert set(windows) <= {RATE, "$__range", "1h", "6h"}, title
        if re.search(r"\b(rate|increase|deriv)\(", expression):
            assert set(windows) == {RATE}, title


@pytest.mark.parametrize("board", BOARDS)
def test_panels_lie_side_by_side(board: Json) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS, panel["title"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(numbers) == len(set(numbers))


def test_every_family_that_people_watch_is_on_a_dashboard() -> None:
    """What is on none is here with its reason."""
    reasons = {
        "sluice_build_info": "the choice of pipelines comes from it",
        "sluice_pipeline_info": "names for joins",
        "sluice_config_hash": "compared by hand when two processes are suspected to differ",
        "sluice_metrics_tables_dropped": "a setting's consequence, not a course of events",
        "sluice_retry_delay_seconds": "reconnects and errors show the same",
        "sluice_received_lsn_bytes": "lag in bytes is its difference",
        "sluice_applied_lsn_bytes": "lag in bytes is its difference",
        "sluice_last_flushed_commit_timestamp_seconds": "lag in seconds says it, and is right for idle sources",
        "sluice_slot_inactive_since_timestamp_seconds": "whether the slot is in use is shown",
        "sluice_transaction_bytes": "rows are shown; bytes follow",
        "sluice_backpressure_active": "its share of the time is shown",
        "sluice_spool_rows_total": "rows made durable are shown by operation",
        "sluice_spool_leftovers_deleted_total": "housekeeping",
        "sluice_spool_retries_total": "requests by outcome show it",
        "sluice_manifest_sequence": "entries a second are shown",
        "sluice_spool_pending_files": "bytes that wait are shown",
        "sluice_apply_process_running": "an alert says it",
        "sluice_apply_last_record_timestamp_seconds": "last success is shown",
        "sluice_apply_table_rows": "rows applied are shown as a rate",
        "sluice_report_timestamp_seconds": "an alert says it",
        "sluice_report_errors_total": "an alert says it",
        "sluice_apply_last_attempt_timestamp_seconds": "last success is shown",
        "sluice_apply_backlog_entries": "entries that wait are shown, as ingest sees them",
        "sluice_apply_read_sequence": "entries that wait are shown",
        "sluice_verified_table_timestamp_seconds": "an alert says when it is late, and the page shows it by table",
        "sluice_verified_table_lsn_bytes": "the page shows it by table",
        "sluice_fleet_running": "the page of a fleet shows it",
        "sluice_fleet_restarts_total": "the page of a fleet shows it",
        "sluice_table_problem": "alerts say it, and states of tables are shown",
        "sluice_apply_catalog_tables": "an alert says that one fails, and the page by table why",
        "sluice_trace_spans_total": "spans are shown where they are sent; what is dropped concerns no row",
        "sluice_lineage_events_total": "events are shown where they are sent; what is dropped concerns no row",
    }
    shown = " ".join(expression for board in DASHBOARDS for _, expression in _targets(board.to_json()))
    absent = {metric.name for metric in catalogue.CATALOGUE if not re.search(rf"\b{metric.name}(_bucket)?\b", shown)}
    assert absent == set(reasons)

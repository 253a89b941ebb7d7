"""Metrics: names follow the rules, callers cannot go wrong quietly, tables are capped, the page is fresh."""

import re
from pathlib import Path

import pytest

from service.telemetry import catalogue
from service.telemetry.catalogue import CATALOGUE, Counter, Gauge, Histogram, Metric
from service.telemetry.metrics import Metrics, identify

UNITS = ("_seconds", "_bytes", "_info", "_transactions", "_ratio")
DIMENSIONLESS_GAUGES = re.compile(r"_(state|connected|active|unbounded|status|running|tables|rows|sequence|pending|dropped|estimated_rows)$")


def exposition(metrics: Metrics) -> str:
    return metrics.render().decode()


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_names_units_and_help_follow_the_rules_of_prometheus(metric: Metric) -> None:
    assert re.fullmatch(r"sluice(_[a-z0-9]+)+", metric.name)
    assert metric.name.endswith("_total") == isinstance(metric, Counter)
    assert not re.search(r"_(ms|milliseconds|kb|mb|mib|minutes|count|sum|bucket)(_total)?$", metric.name)
    assert metric.help.endswith(".")
    assert not set(metric.labels) & {"le", "quantile", "instance", "job", "pipeline", "lsn", "xid", "error", "query"}
    if isinstance(metric, Histogram):
        assert metric.name.endswith(UNITS)
        assert "table" not in metric.labels, "a histogram per table costs too much"
        assert list(metric.buckets) == sorted(metric.buckets)
    if isinstance(metric, Gauge):
        assert metric.name.endswith(UNITS) or DIMENSIONLESS_GAUGES.search(metric.name)


def test_no_name_is_given_twice_and_only_rows_grow_with_tables() -> None:
    assert len({metric.name for metric in CATALOGUE}) == len(CATALOGUE)
    assert [metric.name for metric in CATALOGUE if "table" in metric.labels] == ["sluice_rows_total"]


def test_every_series_carries_the_pipeline_and_no_created_series_appear() -> None:
    metrics = Metrics("shop")
    identify(metrics, component="ingest")
    metrics.add(catalogue.RECEIVED_BYTES, 10)
    metrics.observe(catalogue.EVENT_LOOP_LAG, 0.2)
    samples = [line for line in exposition(metrics).splitlines() if not line.startswith("#")]
    assert samples
    assert all('pipeline="shop"' in line for line in samples)
    assert "_created" not in exposition(metrics)


def test_a_metric_nobody_has_set_shows_no_value() -> None:
    assert not [line for line in exposition(Metrics("shop")).splitlines() if not line.startswith("#")]


def test_label_values_outside_the_closed_set_are_refused() -> None:
    metrics = Metrics("shop")
    with pytest.raises(ValueError, match="no state"):
        metrics.set(catalogue.STATE, 1, state="dancing")
    with pytest.raises(ValueError, match="no state"):
        metrics.choose(catalogue.STATE, "state", "dancing")
    with pytest.raises(ValueError, match="takes the labels"):
        metrics.add(catalogue.RECEIVED_BYTES, 1, table="x")
    with pytest.raises(ValueError, match="takes the labels"):
        metrics.set(catalogue.STATE, 1)


def test_one_state_is_chosen_and_all_others_are_zero() -> None:
    metrics = Metrics("shop")
    metrics.choose(catalogue.STATE, "state", "starting")
    metrics.choose(catalogue.STATE, "state", "streaming")
    text = exposition(metrics)
    assert 'sluice_state{pipeline="shop",state="streaming"} 1.0' in text
    assert 'sluice_state{pipeline="shop",state="starting"} 0.0' in text


def test_a_total_kept_elsewhere_may_be_reset_there() -> None:
    metrics = Metrics("shop")
    for total in (5, 12, 12, 3):
        metrics.advance_to(catalogue.RECONNECTS, total)
    assert 'sluice_source_reconnects_total{pipeline="shop"} 15.0' in exposition(metrics)


def test_an_unknown_quantity_is_withdrawn_and_may_come_back() -> None:
    metrics = Metrics("shop")
    metrics.set(catalogue.SLOT_SAFE, 5)
    metrics.withdraw(catalogue.SLOT_SAFE)
    assert "sluice_slot_safe_wal_bytes{" not in exposition(metrics)
    again = Metrics("shop")
    again.set(catalogue.SLOT_SAFE, 5)
    again.withdraw(catalogue.SLOT_SAFE)
    again.set(catalogue.SLOT_SAFE, 7)
    assert 'sluice_slot_safe_wal_bytes{pipeline="shop"} 7.0' in exposition(again)


def test_tables_past_the_cap_are_counted_together_and_the_cut_is_visible() -> None:
    metrics = Metrics("shop", max_tables=2)
    for table in ("a", "b", "c", "d", "c"):
        metrics.add_rows("public", table, {"insert": 3, "delete": 0})
    text = exposition(metrics)
    assert 'op="insert",pipeline="shop",schema="public",table="a"} 3.0' in text
    assert 'op="insert",pipeline="shop",schema="_other",table="_other"} 9.0' in text
    assert 'table="c"' not in text
    assert 'op="delete"' not in text
    assert 'sluice_metrics_tables_dropped{pipeline="shop"} 2.0' in text


def test_a_table_that_left_gives_its_place_to_another() -> None:
    metrics = Metrics("shop", max_tables=1)
    metrics.add_rows("public", "a", {"insert": 1})
    metrics.forget_table("public", "a")
    metrics.add_rows("public", "b", {"insert": 1})
    assert 'table="a"' not in exposition(metrics)
    assert 'table="b"' in exposition(metrics)


def test_a_scrape_within_a_second_costs_nothing() -> None:
    now = 0.0
    metrics = Metrics("shop", monotonic=lambda: now)
    first = metrics.render()
    metrics.add(catalogue.RECEIVED_BYTES, 1)
    assert metrics.render() is first
    now = 1.5
    assert metrics.render() != first


def test_every_metric_of_the_catalogue_is_fed_somewhere() -> None:
    names = {name: value for name, value in vars(catalogue).items() if isinstance(value, Metric)}
    root = Path(catalogue.__file__).parents[1]
    text = "".join(file.read_text(encoding="utf-8") for file in root.rglob("*.py") if file.name != "catalogue.py")
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []

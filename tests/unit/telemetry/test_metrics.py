"""Metrics: callers cannot go wrong quietly, tables are capped, and each is fed."""

import re
import time
from pathlib import Path

import numpy as np
import pytest
from prometheus_client import generate_latest

from sluice.telemetry import catalogue
from sluice.telemetry.catalogue import CATALOGUE, Metric
from sluice.telemetry.distribution import Distribution
from sluice.telemetry.metrics import Metrics, identify


def exposition(metrics: Metrics) -> str:
    return metrics.render().decode()


def test_a_process_serves_its_own_metrics_and_refuses_the_others() -> None:
    apply = Metrics("shop", component="apply")
    apply.set(catalogue.APPLY_LEASE, 1)
    with pytest.raises(KeyError):
        apply.set(catalogue.SLOT_ACTIVE, 1)
    with pytest.raises(KeyError):
        apply.observe(catalogue.EVENT_LOOP_LAG, 1)
    assert all(metric.components and set(metric.components) <= {"ingest", "apply", "fleet"} for metric in CATALOGUE)


def test_every_series_carries_the_pipeline_and_what_nobody_has_set_has_none() -> None:
    metrics = Metrics("shop", monotonic=iter(range(0, 100, 10)).__next__)
    assert not [line for line in exposition(metrics).splitlines() if not line.startswith("#")]
    identify(metrics)
    metrics.add(catalogue.RECEIVED_BYTES, 10)
    metrics.observe(catalogue.EVENT_LOOP_LAG, 0.2)
    samples = [line for line in exposition(metrics).splitlines() if not line.startswith("#")]
    assert samples
    assert all('pipeline="shop"' in line for line in samples)
    assert "_created" not in exposition(metrics)


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


def test_a_total_kept_elsewhere_may_be_reset_there() -> None:
    metrics = Metrics("shop")
    for total in (5, 12, 12, 3):
        metrics.advance_to(catalogue.DECODER_BYTES, total)
    assert 'sluice_decoder_decoded_bytes_total{pipeline="shop"} 15.0' in exposition(metrics)


def test_one_series_may_go_while_the_others_of_its_gauge_stay() -> None:
    metrics = Metrics("shop")
    metrics.show(catalogue.LAG_SECONDS, 1.0, stage="flush")
    metrics.show(catalogue.LAG_SECONDS, 2.0, stage="apply")
    metrics.show(catalogue.LAG_SECONDS, None, stage="flush")
    metrics.show(catalogue.LAG_SECONDS, None, stage="receive")
    shown = [line for line in exposition(metrics).splitlines() if line.startswith("sluice_replication_lag_seconds{")]
    assert shown == ['sluice_replication_lag_seconds{pipeline="shop",stage="apply"} 2.0']


def test_what_says_everything_in_its_labels_is_said_once() -> None:
    metrics = Metrics("shop")
    for version in ("17", "18", "18"):
        metrics.inform(catalogue.PIPELINE_INFO, slot="s", publication="p", database="d", server_version=version)
    lines = [line for line in exposition(metrics).splitlines() if line.startswith("sluice_pipeline_info{")]
    assert lines == [
        'sluice_pipeline_info{database="d",pipeline="shop",publication="p",server_version="18",slot="s"} 1.0'
    ]


def test_a_histogram_counts_what_is_observed_one_by_one_and_in_batches() -> None:
    metrics = Metrics("shop")
    rows = Distribution(catalogue.TRANSACTION_ROWS.buckets)
    metrics.attach(catalogue.TRANSACTION_ROWS, rows)
    rows.add_all(np.asarray([1, 1, 2, 10, 5000], np.int64))
    rows.add_all(np.asarray([], np.int64))
    rows.add(10**12)
    text = exposition(metrics)
    for line in (
        '{le="1.0",pipeline="shop"} 2.0',
        '{le="10.0",pipeline="shop"} 4.0',
        '{le="10000.0",pipeline="shop"} 5.0',
        '{le="+Inf",pipeline="shop"} 6.0',
    ):
        assert f"sluice_transaction_rows_bucket{line}" in text
    assert 'sluice_transaction_rows_count{pipeline="shop"} 6.0' in text
    assert 'sluice_transaction_rows_sum{pipeline="shop"} 1.000000005014e+12' in text
    with pytest.raises(ValueError, match="other buckets"):
        metrics.attach(catalogue.TRANSACTION_BYTES, rows)


def test_a_gauge_by_table_is_capped_with_the_rows_and_its_place_is_free_when_its_table_leaves() -> None:
    metrics = Metrics("shop", max_tables=1, monotonic=iter(range(0, 100, 10)).__next__)
    metrics.add_rows("public", "a", {"insert": 1})
    for table in ("a", "b"):
        metrics.show_table(catalogue.TABLE_WATERMARK, 5.0, schema="public", table=table)
    text = exposition(metrics)
    assert 'sluice_apply_table_watermark_timestamp_seconds{pipeline="shop",schema="public",table="a"} 5.0' in text
    assert 'table="b"' not in text
    metrics.forget_table("public", "a")
    metrics.add_rows("public", "b", {"insert": 1})
    metrics.show_table(catalogue.TABLE_WATERMARK, 6.0, schema="public", table="b")
    assert 'table="a"' not in (text := exposition(metrics))
    assert 'table="b"} 6.0' in text


def test_a_scrape_of_500_tables_stays_cheap() -> None:
    """About 20 ms on a quiet core; the bound allows for a loaded one, and not for a histogram by table."""
    metrics = Metrics("shop", max_tables=500)
    for number in range(500):
        metrics.add_rows("public", f"table_{number}", {"insert": 1, "update": 1, "delete": 1, "truncate": 1})
        metrics.show_table(catalogue.TABLE_WATERMARK, 5.0, schema="public", table=f"table_{number}")
    took = []
    for _ in range(5):
        began = time.process_time()
        generate_latest(metrics._registry)
        took.append(time.process_time() - began)
    assert min(took) < 0.15


def test_an_unknown_quantity_is_withdrawn_and_may_come_back() -> None:
    metrics = Metrics("shop", monotonic=iter(range(0, 100, 10)).__next__)
    metrics.set(catalogue.SLOT_SAFE, 5)
    metrics.withdraw(catalogue.SLOT_SAFE)
    assert "sluice_slot_safe_wal_bytes{" not in exposition(metrics)
    metrics.set(catalogue.SLOT_SAFE, 7)
    assert 'sluice_slot_safe_wal_bytes{pipeline="shop"} 7.0' in exposition(metrics)


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
    root = Path(__file__).parents[3]
    files = [file for folder in ("service", "spark_jobs") for file in (root / folder).rglob("*.py")]
    text = "".join(file.read_text(encoding="utf-8") for file in files if file.parent.name != "catalogue")
    words = set(re.findall(r"\w+", text))
    assert [name for name in names if name not in words] == []

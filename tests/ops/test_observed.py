"""A running pipeline as Prometheus sees it: every expression of every alert and every panel is
executed, and none is empty without a reason.

One pipeline is run for all tests here: PostgreSQL with a limit on retained WAL, ingest and applier
as `sluice up` runs them, a snapshot, a large transaction that is streamed, and a workload; Prometheus
scrapes both each second and evaluates the plain rules.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from deploy.monitoring.alerts import ALERTS, DEFAULTS, RECORDINGS
from deploy.monitoring.dashboards import DASHBOARDS
from deploy.monitoring.dashboards.panels import Dashboard, Panel, Query
from deploy.monitoring.files import PLAIN_RULES
from deploy.monitoring.model import Alert
from deploy.monitoring.rules import plain
from tests.support.extent import slow
from tests.support.pipeline import QUICK_JAVA, wait_until
from tools.local.ports import free_port
from tools.local.postgres import temporary_server
from tools.local.prometheus import PrometheusServer, QueryRefused, Series, running_prometheus
from tools.local.sluice import Pipeline

pytestmark = slow

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 150.0
SHOWN_SECONDS = 30.0
VARIABLES = {"$pipeline": ".+", "$__rate_interval": "10s", "$__range": "2m"}
SETTINGS = {
    "max_slot_wal_keep_size": "4GB",
    "max_wal_size": "1GB",
    "logical_decoding_work_mem": "64kB",
    "autovacuum": "off",
}

ABSENT_WHILE_WELL = {
    "sluice_table_problem": "no table has a problem",
    "sluice_apply_conflicts_total": "nobody else writes the tables",
    "sluice_slot_seconds_until_lost": "WAL has to be watched for a minute first",
    "sluice_snapshot_start_timestamp_seconds": "no snapshot is under way when the tests look",
    "sluice_spool_oldest_pending_timestamp_seconds": "nothing waits when the tests look",
    "sluice_apply_process_restarts_total": "the applier was never started again",
    "sluice_fleet_restarts_total": "a pipeline that runs alone is in no fleet",
}
"""Metrics of alerts that a healthy pipeline need not have; their alerts are proved by promtool."""


@dataclass(frozen=True)
class Observed:
    """Prometheus, and since when it has looked."""

    prometheus: PrometheusServer
    began: float

    def values(self, query: Query, panel: Panel) -> list[Series]:
        """What a panel would show: a course of values, or for one that shows the present, the
        present.
        """
        expression = query.expression
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        if panel.kind in ("timeseries", "heatmap"):
            return self.prometheus.query_range(expression, start=self.began, end=time.time(), step=1)
        return self.prometheus.query(expression)


@pytest.fixture(scope="module")
def observed(prometheus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    directory = tmp_path_factory.mktemp("observed")
    ports = {"ingest": free_port(), "apply": free_port()}
    telemetry = {"listen": f"127.0.0.1:{ports['ingest']}", "apply_listen": f"127.0.0.1:{ports['apply']}"}
    targets = {component: [f"127.0.0.1:{port}"] for component, port in ports.items()}
    with (
        temporary_server(settings=SETTINGS) as server,
        running_prometheus(targets, rules=[ROOT / PLAIN_RULES]) as started,
    ):
        began = time.time()
        with server.superuser() as admin:
            _prepare(admin)
            settings: dict[str, dict[str, Any]] = {
                "source": {"tables": ["public.*"], "streaming": "on", "two_phase": True},
                "spool": {"max_delay": "200ms", "progress_interval": "1s"},
                "apply": {"spark_master": "local[2]", "driver_memory": "1GiB", "conf": QUICK_JAVA, "poll": "200ms"},
                "telemetry": telemetry,
            }
            pipeline = Pipeline(directory, name="shop", dsn=server.dsn(), settings=settings)
            with pipeline.start("up") as process:
                of: dict[str, Any] = {"processes": (process,), "timeout": DEADLINE_SECONDS}
                live = lambda: {table["state"] for table in pipeline.tables()} == {"live"}  # noqa: E731
                wait_until(live, what="the tables are live", **of)
                _work(admin)
                wait_until(lambda: _followed(started), what="the workload is in the lake", **of)
                _work(admin)
                wait_until(lambda: _watched_for(started, began, 25), what="there is something to see", **of)
                wait_until(lambda: _followed(started), what="the rest is in the lake", **of)
                yield Observed(started, began)
                assert process.status is None, process.log_tail()


def _prepare(admin: psycopg.Connection) -> None:
    admin.execute("CREATE TABLE orders (id int PRIMARY KEY, note text, body text)")
    admin.execute("CREATE TABLE customers (id int PRIMARY KEY, name text)")
    admin.execute("ALTER TABLE orders ALTER body SET STORAGE EXTERNAL")
    admin.execute("INSERT INTO orders SELECT i, 'note', repeat('x', 3000) FROM generate_series(1, 300) i")
    admin.execute("INSERT INTO customers SELECT i, 'name' FROM generate_series(1, 5000) i")
    admin.execute("ANALYZE")


def _work(admin: psycopg.Connection) -> None:
    """Each kind of change, a value that is not sent, a streamed transaction, a rolled-back one, a
    prepared one, a column more.
    """
    admin.execute("INSERT INTO orders SELECT coalesce(max(id), 0) + 1, 'new' FROM orders")
    admin.execute("UPDATE orders SET note = 'changed' WHERE id % 3 = 0")
    admin.execute("DELETE FROM customers WHERE id % 11 = 0")
    with admin.transaction():
        admin.execute("UPDATE customers SET name = name || 'x'")
    with admin.transaction(force_rollback=True):
        admin.execute("UPDATE customers SET name = name || 'y'")
    for statement in ("BEGIN", "INSERT INTO orders SELECT max(id) + 1 FROM orders", "PREPARE TRANSACTION 'one'"):
        admin.execute(statement)
    admin.execute("COMMIT PREPARED 'one'")
    admin.execute("ALTER TABLE customers ADD COLUMN IF NOT EXISTS added int")
    admin.execute("UPDATE customers SET added = 1 WHERE id = 1")


def _followed(prometheus: PrometheusServer) -> bool:
    """The lake has what the server had written a moment ago, by the figures that are tested here."""
    behind = prometheus.query("max(sluice_apply_entries_pending) + max(sluice_replication_lag_seconds{stage='flush'})")
    applied = prometheus.query("sum(sluice_apply_rows_total{op='update'})")
    return bool(behind and applied) and behind[0].value == 0 and applied[0].value > 0


def _watched_for(prometheus: PrometheusServer, began: float, seconds: float) -> bool:
    return time.time() - began > seconds and bool(prometheus.query("pipeline:sluice_freshness_good:avg3d"))


def test_every_rule_is_evaluated_without_an_error(observed: Observed) -> None:
    rules = observed.prometheus.rules()
    assert {rule["name"] for rule in rules} == {alert.name for alert in ALERTS} | {
        recording.name for recording in RECORDINGS
    }
    assert {rule["name"]: (rule["health"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"} == {}


def test_no_alert_fires_while_all_is_well(observed: Observed) -> None:
    assert observed.prometheus.firing() == set()


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_what_an_alert_looks_at_is_there(alert: Alert, observed: Observed) -> None:
    """An alert on a series that nobody writes would never fire."""
    expression = plain(alert.expression, DEFAULTS)
    observed.prometheus.query(expression)
    for name in set(re.findall(r"\bsluice_\w+", re.sub(r"pipeline:\S+", "", expression))) - ABSENT_WHILE_WELL.keys():
        assert observed.prometheus.query(f"count(last_over_time({name}[5m]))"), name


def test_every_recording_has_a_value_for_the_pipeline(observed: Observed) -> None:
    for recording in RECORDINGS:
        found = observed.prometheus.query(recording.name)
        assert [series.labels["pipeline"] for series in found] == ["shop"], recording.name
        assert 0 <= found[0].value <= 1


@pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: board.uid)
def test_every_panel_shows_something_or_says_why_not(board: Dashboard, observed: Observed) -> None:
    deadline = time.monotonic() + SHOWN_SECONDS
    # What a rule records may come a moment after the rules that build on it.
    while (empty := _empty(board, observed)) and time.monotonic() < deadline:
        time.sleep(1)
    assert empty == []


def _empty(board: Dashboard, observed: Observed) -> list[str]:
    return [
        f"{panel.title}: {query.expression}"
        for panel in board.panels
        for query in panel.queries
        if not panel.quiet and not any(series.samples for series in observed.values(query, panel))
    ]


def test_a_wrong_expression_would_be_noticed(observed: Observed) -> None:
    with pytest.raises(QueryRefused, match="parse error"):
        observed.prometheus.query("sum by (pipeline (sluice_state)")

"""A run of OpenLineage says everything each time, ends as the applier ends, and waits for nobody."""

import time
import uuid
from contextlib import nullcontext

import pytest

from sluice.store.memory import MemoryStore
from sluice.telemetry.metrics import Metrics
from sluice_spark.options import ApplyOptions
from sluice_spark.progress.lineage import Lineage
from sluice_spark.progress.lineage_events import Place
from sluice_spark.progress.observers import Observers
from tests.support.collector import Collector
from tests.support.openlineage import events_of
from tests.support.pipeline import wait_until
from tests.unit.applier.progress.test_boundary import Lake


def _options(url: str, **more: str) -> ApplyOptions:
    lineage = {"lineage": url, "lineage_headers": {"authorization": "Bearer x"}, "lineage_source": "db.example:5432"}
    return ApplyOptions("shop", "memory://s", "s3://bucket/lake", **lineage, **more)  # type: ignore[arg-type]


def _observers(url: str, lake: Lake, **more: str) -> tuple[Observers, Metrics]:
    metrics = Metrics("shop", component="apply")
    observers = Observers(_options(url, **more), MemoryStore(uuid.uuid4().hex, prefix="shop/"), metrics=metrics)
    observers.begin(lake.ledger)
    return observers, metrics


def test_a_run_starts_goes_on_at_its_rhythm_and_completes() -> None:
    collector, lake, metrics = Collector(), Lake(), Metrics("shop", component="apply")
    now = [0.0]
    with collector.listening():
        run = Lineage(_options(collector.url("/api/v1/lineage")), lake.ledger, metrics, clock=lambda: now[0])
        run.begin()
        for now[0] in (1.0, 299.0, 300.0, 301.0, 599.0):
            run.look()
        run.close("")
    events = events_of(collector.requests)
    assert [event["eventType"] for event in events] == ["START", "RUNNING", "COMPLETE"]
    assert len({event["run"]["runId"] for event in events}) == 1
    assert {(event["job"]["namespace"], event["job"]["name"]) for event in events} == {("sluice", "shop")}
    assert collector.requests[0].path == "/api/v1/lineage"
    assert collector.requests[0].headers["Authorization"] == "Bearer x"
    first = events[0]
    assert first["inputs"][0]["namespace"] == "postgres://db.example:5432"
    assert first["inputs"][0]["name"] == "shop.public.t0"
    assert (first["outputs"][0]["namespace"], first["outputs"][0]["name"]) == ("s3://bucket", "lake/public/t0")
    assert b'sluice_lineage_events_total{outcome="sent",pipeline="shop"} 3.0' in metrics.render()


def test_an_applier_that_fails_ends_its_run_with_the_error() -> None:
    collector = Collector()
    with collector.listening():
        observers, _ = _observers(collector.url("/"), Lake())
        observers.failed("Spark has stopped")
        observers.close()
    last = events_of(collector.requests)[-1]
    assert last["eventType"] == "FAIL"
    assert last["run"]["facets"]["errorMessage"]["message"] == "Spark has stopped"


@pytest.mark.parametrize("code", [500, 0])
def test_a_receiver_that_refuses_or_is_away_holds_nothing_up_and_is_counted(code: int) -> None:
    collector = Collector(code=code)
    began = time.monotonic()
    with collector.listening() if code else nullcontext():
        observers, metrics = _observers(collector.url("/"), Lake())
        observers.close()
    assert time.monotonic() - began < 5
    assert b'outcome="dropped",pipeline="shop"} 2.0' in metrics.render()


def test_an_observer_that_fails_does_not_end_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    collector, lake = Collector(), Lake()
    with collector.listening():
        observers, _ = _observers(collector.url("/"), lake)
        wait_until(lambda: len(collector.requests) == 1, what="START", timeout=10)
        monkeypatch.setattr(lake.ledger, "report", None)
        observers.close()
    assert [event["eventType"] for event in events_of(collector.requests)] == ["START"]


@pytest.mark.parametrize(
    ("uri", "namespace", "name"),
    [
        ("file:///var/lib/lake", "file", "/var/lib/lake/public/orders"),
        ("s3://bucket", "s3://bucket", "public/orders"),
        ("gs://bucket/a/b/", "gs://bucket", "a/b/public/orders"),
        ("abfss://c@acc.dfs.core.windows.net/l", "abfss://c@acc.dfs.core.windows.net", "l/public/orders"),
    ],
)
def test_lake_tables_are_named_as_the_specification_says(uri: str, namespace: str, name: str) -> None:
    assert Place("h:1", "d", uri).lake_table("public/orders") == {"namespace": namespace, "name": name}


def test_an_observer_that_fails_does_not_end_the_other() -> None:
    collector = Collector()
    with collector.listening():
        observers, _ = _observers(collector.url("/lineage"), Lake(), traces=collector.url("/traces"))
        observers.take_in(None, "")  # type: ignore[arg-type] # what no entry is, for the spans to fail at
        observers.look()
        observers.close()
    ours = [request for request in collector.requests if request.path == "/lineage"]
    assert [event["eventType"] for event in events_of(ours)] == ["START", "COMPLETE"]

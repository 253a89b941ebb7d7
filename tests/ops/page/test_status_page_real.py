"""The status page of a real pipeline: PostgreSQL, ingest, the real report. And the documents of the
other tests are of the same form.
"""

import json
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Response, expect

from sluice.errors import StoreUnavailable
from sluice.health.endpoint import Health, HealthServer
from sluice.health.export.observer import Observer
from sluice.health.reporter import Reporter
from sluice.store.base import ObjectStore
from sluice.store.opening import open_store
from sluice.telemetry.metrics import Metrics
from tests.ops.page import documents
from tests.ops.page.conftest import Opener
from tests.ops.page.shown import shows_all, text
from tests.support.extent import slow
from tests.support.forwarding import Forwarding
from tests.support.ingesting import IngestPipeline
from tests.support.sources import Database

CANARY = "canary-5d1c"


class Held(Forwarding):
    """What reports are read from: its listings fail while `failing` is set, and hang while
    `hanging` is.
    """

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.failing = threading.Event()
        self.hanging = threading.Event()
        self.entered = threading.Event()
        self.released = threading.Event()

    def put(self, key: str, data: bytes | memoryview) -> None:
        raise AssertionError("a report writes nothing")

    create = put

    def delete(self, key: str) -> None:
        raise AssertionError("a report writes nothing")

    def list(self, prefix: str, *, after: str = "") -> Iterator[str]:
        if self.failing.is_set() or self.hanging.is_set():
            self.entered.set()
        if self.hanging.is_set():
            self.released.wait(120)
        if self.failing.is_set():
            raise StoreUnavailable("the store does not answer")
        return super().list(prefix, after=after)


@dataclass(frozen=True)
class Watched:
    """The observer of a pipeline under way, and a second look at it from outside as the command line takes it."""

    observer: Observer
    outside: Reporter
    address: str
    held: Held

    def status(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://{self.address}/status", timeout=20) as answer:
            return dict(json.loads(answer.read()))


@pytest.fixture
def watched(database: Database, tmp_path: Path) -> Iterator[Watched]:
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        f"INSERT INTO orders SELECT n, '{CANARY}' FROM generate_series(1, 500) n",
        'CREATE TABLE "<b>bold</b>" (id int PRIMARY KEY)',
    )
    store = open_store((tmp_path / "spool").as_uri(), prefix="test/", options={})
    pipeline = IngestPipeline(database, store)

    held = Held(store)

    def reporter(store: ObjectStore) -> Reporter:
        return Reporter(
            pipeline="test",
            store=store,
            lake_uri="s3://lake",
            spool_uri="s3://key:hidden@spool/test?token=hidden",
            source=pipeline.options().source,
        )

    with pipeline.running() as running:
        running.wait_until(lambda: [table.state for table in pipeline.state().tables.values()] == ["live", "live"])
        metrics = Metrics("test")
        health = Health(metrics)
        running.call(running.ingest.refresh)
        observer = pipeline.observer(running.ingest, reporter=reporter(held), metrics=metrics, health=health)
        server = HealthServer(
            "127.0.0.1:0",
            metrics=metrics,
            health=health,
            status=observer.status,
            verdict=observer.verdict,
            history=observer.history,
        )
        try:
            yield Watched(observer, reporter(store), server.address, held)
        finally:
            server.close()
            observer.close()


def same_form(one: Any, other: Any, *, at: str = "status") -> None:
    """Both have the same names wherever both have anything."""
    if isinstance(one, dict) and isinstance(other, dict):
        assert one.keys() == other.keys(), at
        for name in one.keys() - {"left_out"}:
            same_form(one[name], other[name], at=f"{at}.{name}")
    elif isinstance(one, list) and isinstance(other, list) and one and other:
        same_form(one[0], other[0], at=f"{at}[0]")


def test_the_page_of_a_real_pipeline_shows_its_status(watched: Watched, database: Database, look: Opener) -> None:
    answers: list[Response] = []
    watched.observer.count()
    database.execute(f"INSERT INTO orders SELECT n, '{CANARY}' FROM generate_series(501, 600) n")
    page = look(watched.address, before=lambda page: page.on("response", lambda answer: answers.append(answer)))
    expect(page.locator("#rows tr")).to_have_count(2)
    page.click("#pause")
    page.wait_for_load_state("networkidle")
    document = [answer for answer in answers if answer.url.endswith("/status")][-1].json()
    expect(page.locator("#stages [data-stage=server] td").first).to_have_text(document["source"]["wal_lsn"])
    shows_all(page, document)
    assert {table["table"] for table in document["tables"]} == {"orders", "<b>bold</b>"}
    assert document["process"]["state"] == "streaming"
    assert document["spool_uri"] == "s3://spool/test"
    everything = page.content() + json.dumps(document)
    assert CANARY not in everything
    assert "hidden@" not in everything
    assert "token" not in json.dumps(document)
    assert text(page, "h1") == "test"


def test_status_of_the_command_line_has_the_same_facts_but_for_the_process(watched: Watched) -> None:
    served, outside = watched.status(), watched.outside.take().to_json()
    assert outside["process"] is None
    assert served.keys() == outside.keys()
    for name in ("pipeline", "version", "state", "opened_at", "spool_uri", "lake_uri", "snapshot"):
        assert served[name] == outside[name], name
    assert [stage["stage"] for stage in outside["wal"]["stages"]] == [
        stage["stage"] for stage in served["wal"]["stages"]
    ]
    received = {stage["stage"]: stage["lsn"] for stage in outside["wal"]["stages"]}["received"]
    assert received is None, "what was received is known to the process alone"


def test_documents_have_the_form_of_a_real_report(watched: Watched) -> None:
    watched.observer.count()
    real = watched.status()
    for make in (documents.healthy, documents.snapshots, documents.stale, documents.hostile):
        same_form(real, json.loads(json.dumps(make())))


@slow
def test_the_past_of_a_real_pipeline_is_of_its_tables_and_has_no_values(watched: Watched, database: Database) -> None:
    watched.observer.observe()
    database.execute(f"INSERT INTO orders SELECT n, '{CANARY}' FROM generate_series(601, 700) n")
    watched.observer.observe()
    url = f"http://{watched.address}/history?table=public.orders&table=public.%3Cb%3Ebold%3C%2Fb%3E&table=none"
    with urllib.request.urlopen(url, timeout=20) as answer:
        said = json.loads(answer.read())
    same_form(said, documents.history(["public.orders", "public.<b>bold</b>"]))
    assert len(said["spool_lag_seconds"]) == len(said["tables"]["public.orders"]["lag_seconds"]) >= 1
    assert said["spool_lag_seconds"][-1] is not None
    assert CANARY not in json.dumps(said)


@slow
def test_status_says_what_it_knew_and_what_the_process_knows_while_the_store_fails_or_hangs(watched: Watched) -> None:
    before = watched.status()
    watched.held.failing.set()
    while not watched.held.entered.is_set():
        watched.status()  # an answer may be a second old
    watched.observer.observe()
    after = watched.status()
    assert after["taken_at"] == before["taken_at"], "what is old says so"
    assert {("spool.away", "the spool"), ("ingest.error", "report")} <= {
        (one["code"], one["where"]) for one in after["problems"]
    }
    assert after["process"]["state"] == "streaming"
    watched.held.failing.clear()
    watched.held.entered.clear()
    watched.held.hanging.set()
    look = threading.Thread(target=watched.observer.observe)
    look.start()
    assert watched.held.entered.wait(120)
    try:
        assert watched.status()["taken_at"] == before["taken_at"]
    finally:
        watched.held.hanging.clear()
        watched.held.released.set()
        look.join(120)
    assert watched.status()["taken_at"] > before["taken_at"]

"""Real processes and a collector on the loopback: each entry has its spans, an application finds its transaction in its
own trace, and a collector that is away, slow or refuses harms nothing.
"""

import json
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.e2e.readers import FAST
from tests.support.collector import Collector
from tests.support.extent import slow
from tests.support.otlp import Seen, spans_of
from tests.support.pipeline import complete_through, new_pipeline, wait_until
from tests.support.sources import Database
from tools.local.sluice import Pipeline

pytestmark = pytest.mark.timeout(600)
SECRET_ROW, SECRET_HEADER = "canary-row-value", "canary-header-value"
STAGES = ["sluice.received", "sluice.durable", "sluice.visible"]


def _pipeline(database: Database, directory: Path, collector: Collector) -> Pipeline:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    telemetry = {"traces": collector.url("/v1/traces"), "traces_headers": {"x-token": SECRET_HEADER}}
    source = {"messages": True, "streaming": "off"}
    more: dict[str, Any] = {**FAST, "source": source, "telemetry": telemetry}
    return new_pipeline(database, directory, name="shop", **more)


def _write(database: Database, first: int, *, traced: bool) -> tuple[str, str]:
    """One transaction of an application, within a span of a trace of its own."""
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    with database.connect() as connection, connection.transaction():
        connection.execute("INSERT INTO orders VALUES (%s, %s)", (first, SECRET_ROW))
        if traced:
            connection.execute(
                "SELECT pg_logical_emit_message(true, 'traceparent', %s::text)", (f"00-{trace}-{span}-01",)
            )
    return trace, span


def _by_stage(collector: Collector) -> dict[str, list[Seen]]:
    found: dict[str, list[Seen]] = {stage: [] for stage in STAGES}
    for span in spans_of(collector.requests):
        found[span.name].append(span)
    return found


def _counters(pipeline: Pipeline) -> dict[str, float]:
    address = pipeline.config.read_text().split("listen: ")[1].split("\n")[0]
    with urlopen(f"http://{address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith("sluice_trace_spans_total")]
    return {line.split('outcome="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1]) for line in found}


@slow
def test_an_application_sees_when_its_transaction_is_readable_in_its_own_trace(
    database: Database, tmp_path: Path
) -> None:
    collector = Collector()
    pipeline = _pipeline(database, tmp_path, collector)
    with collector.listening(), pipeline.start("up") as process:
        wait_until(lambda: complete_through(pipeline) > 0, what="a boundary", processes=(process,))
        trace, span = _write(database, 1, traced=True)

        def spans() -> list[Seen]:
            return [one for one in spans_of(collector.requests) if one.trace == trace]

        wait_until(lambda: len(spans()) == 2, what="both spans", processes=(process,))
        durable, visible = sorted(spans(), key=lambda one: one.name)
        assert (durable.name, visible.name) == ("sluice.durable", "sluice.visible")
        assert (durable.component, visible.component) == ("ingest", "apply")
        assert {durable.parent, visible.parent} == {span}
        assert durable.start_ns == visible.start_ns < durable.end_ns <= visible.end_ns

        # The trace of the entry has its three stages, each behind the one before, with a link to the application's.
        (to_entry,) = durable.links
        entry = {one.name: one for one in spans_of(collector.requests) if one.trace == to_entry[0]}
        assert sorted(entry) == sorted(STAGES)
        received = entry["sluice.received"]
        assert (received.parent, entry["sluice.durable"].parent) == ("", received.id)
        assert entry["sluice.visible"].parent == entry["sluice.durable"].id
        assert all(one.links == ((trace, span),) for one in entry.values())
        assert entry["sluice.visible"].attributes["sluice.entry.rows"] == 2
        assert visible.links == ((entry["sluice.visible"].trace, entry["sluice.visible"].id),)

        # Without a context there is no link, and no other trace.
        _write(database, 2, traced=False)
        wait_until(lambda: len(_by_stage(collector)["sluice.visible"]) == 3, what="visible", processes=(process,))
        assert spans_of(collector.requests)[-1].links == ()
    everything = b"".join(request.body for request in collector.requests)
    assert SECRET_ROW.encode() not in everything
    assert all(request.headers["x-token"] == SECRET_HEADER for request in collector.requests)
    assert SECRET_HEADER not in process.log.read_text()


@slow
def test_a_collector_that_is_away_slow_or_refuses_delays_and_ends_nothing(database: Database, tmp_path: Path) -> None:
    collector = Collector()
    pipeline = _pipeline(database, tmp_path, collector)
    assert pipeline.run("setup").returncode == 0

    def entries() -> int:
        files = (pipeline.own_spool / "manifest").glob("*.json")
        return sum(json.loads(file.read_bytes())["kind"] == "changes" for file in files)

    def write(number: int) -> float:
        """How long one transaction takes to be durable."""
        before, began = entries(), time.monotonic()
        _write(database, number, traced=True)
        wait_until(lambda: entries() > before, what="durable", processes=(process,), timeout=60)
        return time.monotonic() - began

    with pipeline.start("run") as process:
        wait_until(lambda: list(pipeline.own_spool.glob("manifest/*.json")) != [], what="start", processes=(process,))
        assert write(1) < 15  # away
        wait_until(lambda: _counters(pipeline)["dropped"] >= 2, what="dropped spans", processes=(process,))
        collector.code = 503
        with collector.listening():
            assert write(2) < 15  # refusing
            wait_until(lambda: collector.asked > 0, what="a request", processes=(process,))
            collector.code = 400
            wait_until(lambda: _counters(pipeline)["dropped"] >= 5, what="dropped spans", processes=(process,))
            collector.code = 200
            collector.answers.clear()
            asked = collector.asked
            assert write(3) < 15  # slow
            wait_until(lambda: collector.asked > asked, what="a request", processes=(process,))
            assert write(4) < 15
            collector.answers.set()
            wait_until(lambda: _counters(pipeline)["sent"] >= 3, what="sent spans", processes=(process,))
            collector.answers.clear()
            write(5)
            began = time.monotonic()
            assert process.stop() == 0
            assert time.monotonic() - began < 15
    log = process.log.read_text()
    assert log.count("the receiver takes nothing") <= 2
    assert "canary-of-the-collector" not in log
    assert SECRET_ROW not in log


def test_without_traces_nothing_of_opentelemetry_is_imported() -> None:
    program = (
        "import sys, sluice.process.pipeline, sluice.cli, sluice.tracing.tracer; "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0

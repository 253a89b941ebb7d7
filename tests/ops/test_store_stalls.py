"""The object store accepts connections and answers nothing for three minutes: nobody restarts
anything, and nothing is lost.

Time is scaled: PostgreSQL's wal_sender_timeout, Sluice's own waits, the alert's threshold and
patience are all divided by the same factor as the three minutes. `make soak` plays it at full
length, with every default as it is.
"""

import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.monitoring.alerts import stream
from deploy.monitoring.rules import plain_file
from sluice.contract.entries import Changes
from sluice.manifest.reader import read_entries
from sluice.store.opening import open_store
from tests.chaos.witness import Witness
from tests.ops.local_stack import alive, local_stack
from tests.support.extent import slow
from tests.support.pipeline import wait_until
from tests.support.sources import Database, fresh_database
from tests.support.workload import Workload
from tools.local.postgres import PostgresServer
from tools.local.prometheus import PrometheusServer, running_prometheus
from tools.local.s3 import S3Server, running_s3
from tools.local.sluice import Pipeline, SluiceProcess

SOAK = os.environ.get("SLUICE_TEST_SOAK") == "1"
FACTOR = 1.0 if SOAK else 9.0
STALL_SECONDS = 180.0 / FACTOR
WAL_SENDER_TIMEOUT_MS = round(60_000 / FACTOR)
LOOK_SECONDS = 0.25
BUCKET = "sluice"
NAME = "t"
ALERT = "SluiceLagHigh"
_ON_ITS_WAY_SECONDS = 2.0
"""What was stored just before may still be acknowledged."""


@dataclasses.dataclass
class Scene:
    database: Database
    store: S3Server
    pipeline: Pipeline
    workload: Workload

    def start(self, *arguments: str) -> SluiceProcess:
        """`sluice` with its waits divided."""
        root = str(Path(__file__).parents[2])
        command = [
            sys.executable,
            "-m",
            "tests.ops.short_waits",
            str(FACTOR),
            *arguments,
            "-c",
            str(self.pipeline.config),
        ]
        ours = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
        return SluiceProcess(
            command, log=self.pipeline.directory / f"{arguments[0]}.log", environment={**ours, "PYTHONPATH": root}
        )

    def walsender(self) -> tuple[int | None, int]:
        """The process that serves the slot, and how far the slot is confirmed."""
        found = self.database.one(
            "SELECT active_pid, (confirmed_flush_lsn - '0/0')::bigint FROM pg_replication_slots WHERE slot_name = %s",
            self.database.slot,
        )
        return found[0], int(found[1])

    def published(self) -> list[int]:
        """The end of each transaction in the manifest, in its order."""
        store = open_store(f"s3://{BUCKET}/spool", prefix=f"{NAME}/", options=self.store.options())
        return [
            end
            for entry, _ in read_entries(store, after_seq=0)
            if isinstance(entry.body, Changes)
            for end in entry.body.commits.end_lsn
        ]


@pytest.fixture
def scene(postgres: PostgresServer, tmp_path: Path) -> Iterator[Scene]:
    with (
        fresh_database(postgres) as database,
        running_s3(buckets=(BUCKET,)) as store,
        Workload(database.dsn, seed=7) as workload,
    ):
        database.execute(f"ALTER DATABASE {database.name} SET wal_sender_timeout = '{WAL_SENDER_TIMEOUT_MS}ms'")
        workload.create()
        settings: dict[str, dict[str, Any]] = {
            "source": {"slot": database.slot, "publication": database.publication, "tables": ["public.*"]},
            "spool": {"options": store.options(), "max_delay": f"{2000 / FACTOR:.0f}ms"},
        }
        places = {"spool_uri": f"s3://{BUCKET}/spool", "lake_uri": f"s3://{BUCKET}/lake"}
        yield Scene(
            database, store, Pipeline(tmp_path, name=NAME, dsn=database.dsn, settings=settings, **places), workload
        )


@slow
def test_a_store_that_stalls_for_three_minutes_costs_no_connection_no_restart_and_no_row(
    scene: Scene, tmp_path: Path
) -> None:
    with scene.start("run", "--until-caught-up") as first:
        assert first.wait(120) == 0, first.log_tail(40)
    witness = Witness(scene.database)
    address = _address(scene.pipeline)
    with (
        scene.start("run") as ingest,
        running_prometheus({"ingest": [address]}, rules=[_rules(tmp_path)]) as prometheus,
    ):
        wait_until(lambda: _answers(address, "/readyz"), what="it streams", processes=(ingest,), timeout=60)
        scene.workload.transact(10)
        wait_until(lambda: bool(scene.published()), what="something is published", processes=(ingest,), timeout=60)
        walsender, _ = scene.walsender()
        assert walsender is not None
        with _stopped(scene.store):
            fired = _outlast(scene, ingest, prometheus, address=address, walsender=walsender)
        assert ALERT in fired, f"only these fired: {sorted(fired)}"
        position = scene.workload.position()
        wait_until(lambda: scene.walsender()[1] > position, what="all is acknowledged", processes=(ingest,), timeout=60)
        assert scene.walsender()[0] == walsender, "the stream was opened again"
        assert "lost contact, trying again" not in ingest.log.read_text()
        wait_until(
            lambda: ALERT not in prometheus.firing(), what="the alert has ended", processes=(ingest,), timeout=60
        )
        assert ingest.stop() == 0, ingest.log_tail(40)
    committed = list(witness.transactions())
    assert len(committed) > STALL_SECONDS / LOOK_SECONDS / 4
    assert scene.published() == committed


@pytest.mark.skipif(not SOAK, reason="three real minutes with the applier and Prometheus as well are for `make soak`")
@pytest.mark.timeout(1800)
def test_the_whole_local_stack_outlives_the_stall_and_the_lake_follows(tmp_path: Path) -> None:
    with local_stack(tmp_path / "stack") as stack:
        assert stack("up").returncode == 0
        stack.assert_the_lake_follows()
        before, fired = stack.pids(), set()
        with ThreadPoolExecutor(1) as people:
            working = people.submit(stack, "load", LOAD_SECONDS=str(STALL_SECONDS + 10), timeout=STALL_SECONDS + 60)
            os.kill(before["s3"], signal.SIGSTOP)
            try:
                with stack.connect() as connection:
                    walsender = connection.execute("SELECT active_pid FROM pg_replication_slots").fetchone()
                    end = time.monotonic() + STALL_SECONDS
                    while time.monotonic() < end:
                        for variable in ("METRICS_PORT", "APPLY_METRICS_PORT"):
                            assert _answers(f"127.0.0.1:{stack.ports[variable]}", "/livez"), variable
                        assert connection.execute("SELECT active_pid FROM pg_replication_slots").fetchone() == walsender
                        fired |= _firing(stack.url("PROMETHEUS_PORT", "/api/v1/alerts"))
                        time.sleep(1)
            finally:
                os.kill(before["s3"], signal.SIGCONT)
            assert working.result().returncode == 0
        print(f"fired: {sorted(fired)}")
        assert ALERT in fired
        stack.assert_the_lake_follows(timeout=300)
        assert stack.pids() == before
        assert all(alive(pid) for pid in before.values()), {name for name, pid in before.items() if not alive(pid)}


def _firing(url: str) -> set[str]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        alerts = json.load(answer)["data"]["alerts"]
    return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


def _outlast(
    scene: Scene, ingest: SluiceProcess, prometheus: PrometheusServer, *, address: str, walsender: int
) -> set[str]:
    """Writes and looks for as long as the store stalls. The alerts that fired meanwhile."""
    fired: set[str] = set()
    confirmed: set[int] = set()
    end = time.monotonic() + STALL_SECONDS
    while (left := end - time.monotonic()) > 0:
        scene.workload.transact()
        if left < STALL_SECONDS - _ON_ITS_WAY_SECONDS:
            confirmed.add(scene.walsender()[1])
        assert _answers(address, "/livez"), (
            f"a probe would restart it {STALL_SECONDS - left:.1f} s into the stall:\n{ingest.log_tail(20)}"
        )
        assert _answers(address, "/metrics")
        assert ingest.status is None, ingest.log_tail(40)
        assert scene.walsender()[0] == walsender, (
            f"the connection was lost {STALL_SECONDS - left:.1f} s into the stall:\n{ingest.log_tail(20)}"
        )
        fired |= prometheus.firing()
        time.sleep(min(LOOK_SECONDS, left))
    assert len(confirmed) == 1, "something was acknowledged while nothing could be stored"
    return fired


@contextlib.contextmanager
def _stopped(store: S3Server) -> Iterator[None]:
    """The kernel goes on accepting its connections; it answers none."""
    assert store.pid is not None
    os.kill(store.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(store.pid, signal.SIGCONT)


def _rules(folder: Path) -> Path:
    """The alert as it is shipped, its seconds and its patience divided."""
    (alert,) = (alert for alert in stream.ALERTS if alert.name == ALERT)
    assert alert.wait.endswith("m")
    patience = round(float(alert.wait.removesuffix("m")) * 60_000 / FACTOR)
    numbers = {
        one.name: one.default / FACTOR if one.name.endswith("Seconds") else one.default for one in stream.THRESHOLDS
    }
    path = folder / "rules.yml"
    path.write_text(plain_file([dataclasses.replace(alert, wait=f"{patience}ms")], [], numbers))
    return path


def _address(pipeline: Pipeline) -> str:
    return str(yaml.safe_load(pipeline.config.read_text())["telemetry"]["listen"])


def _answers(address: str, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=5):
            return True
    except OSError:
        return False

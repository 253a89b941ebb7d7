"""Metrics of a running pipeline: every family that ingest serves has samples, and the samples are
true.
"""

import asyncio
import itertools
import re
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sluice.cli import wiring
from sluice.contract import keys
from sluice.contract.applied import AppliedLog, Complete
from sluice.lsn import parse
from sluice.manifest.reader import load_state
from sluice.process.pipeline import Process, TelemetryOptions
from sluice.settings import Settings, load
from sluice.store.base import ObjectStore
from sluice.telemetry import catalogue
from sluice.telemetry.catalogue import Metric, served_by
from sluice.telemetry.metered_store import MeteredStore
from sluice.telemetry.metrics import Metrics, identify
from tests.support.forwarding import Forwarding
from tests.support.recorded import rows
from tests.support.sources import Database

_STALL_SECONDS = 0.3
WITHOUT_SAMPLES: dict[Metric, str] = {
    catalogue.APPLY_RUNNING: "`up` alone has an applier to watch",
    catalogue.APPLY_RESTARTS: "`up` alone has an applier to watch",
    catalogue.SLOT_SECONDS_LEFT: "needs a minute of looks (test_health_source_history)",
    catalogue.SLOT_INACTIVE_SINCE: "the slot is in use",
    catalogue.OLDEST_PENDING: "everything is applied",
    catalogue.SNAPSHOT_START: "the snapshots are finished",
    catalogue.SNAPSHOT_ETA: "the snapshots are finished",
    catalogue.TABLE_VERIFIED: "no comparison was made (test_verified)",
    catalogue.TABLE_VERIFIED_LSN: "no comparison was made (test_verified)",
    catalogue.TRACE_SPANS: "spans are not sent (test_traces)",
}


class Gate(Forwarding):
    """A store whose uploads wait while it is shut."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.open = threading.Event()
        self.open.set()

    def put(self, key: str, data: bytes | memoryview) -> None:
        self.open.wait(60)
        super().put(key, data)


def samples(metrics: Metrics) -> dict[str, float]:
    """Every sample by its series."""
    text = metrics.render().decode()
    return {
        series: float(value)
        for series, _, value in (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    }


@dataclass
class Watched:
    """A pipeline in this process, looked at when a test wants to and not by the clock."""

    database: Database
    store: Gate
    metrics: Metrics
    process: Process
    logs: int = 0

    async def look(self) -> dict[str, float]:
        """Every sample after a fresh look."""
        await asyncio.to_thread(self.process.observer.poll_source)
        await asyncio.to_thread(self.process.observer.observe)
        self.process.count()
        self.metrics.render()
        return samples(self.metrics)

    async def shows(self, holds: Callable[[dict[str, float]], bool]) -> dict[str, float]:
        """Looks until the samples are such; returns them."""
        deadline = time.monotonic() + 60
        while not holds(seen := await self.look()):
            assert time.monotonic() < deadline, "it did not show in time"
            await asyncio.sleep(0.02)
        return seen

    async def until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < deadline, "it did not come true in time"
            await asyncio.sleep(0.02)

    async def durable(self, *statements: str) -> None:
        """Runs statements, of which the last one changes rows, and waits until that is in the manifest: one before it
        may be a commit as well.
        """
        await asyncio.to_thread(self.database.execute, *statements[:-1])
        clock = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8"
        (before_us,) = await asyncio.to_thread(self.database.one, clock)
        await asyncio.to_thread(self.database.execute, statements[-1])
        await self.until(lambda: self.committed() >= before_us)

    def unflushed(self) -> int | None:
        """Commit time of the oldest transaction that is not durable, as of now."""
        self.process.count()
        return self.process.ingest.status.oldest_unflushed_us

    def committed(self) -> int:
        return self.process.ingest.status.commits.last_commit_time_us

    def states(self) -> list[str]:
        self.process.count()
        manifest = self.process.ingest.status.manifest
        return [table.state for table in manifest.tables.values()] if manifest else []

    def apply(self) -> None:
        """What an applier writes that has applied everything."""
        self.logs += 1
        state, now = load_state(self.store), datetime.now(UTC).isoformat()
        tables = rows(state, rows_applied=3, files=2)
        self.store.create(keys.apply_log(self.logs), AppliedLog(self.logs, "test", now, tables, now).encode())
        complete = Complete(self.logs, state.through_lsn, state.seq, now, {"public.a": 1, "public.idle": 1})
        self.store.create(keys.apply_complete(self.logs), complete.encode())


def settings_for(database: Database, folder: Path) -> Settings:
    file = folder / "sluice.yaml"
    file.write_text(
        f"""\
version: 1
pipeline: test
source: {{dsn: "{database.dsn}", slot: {database.slot}, publication: {database.publication}, tables: ["public.*"]}}
spool: {{uri: "file://{folder}/spool", max_delay: 50ms}}
lake: {{uri: "file://{folder}/lake", on_change: stop}}
""",
        encoding="utf-8",
    )
    return load(str(file), environ={}).settings


def watch(database: Database, folder: Path, scenario: Callable[[Watched], Awaitable[None]]) -> None:
    settings = settings_for(database, folder)
    times = itertools.count()
    metrics = Metrics("test", monotonic=lambda: 2.0 * next(times))
    identify(metrics, config_hash=1)
    store = Gate(wiring.open_spool(settings))
    process = Process(
        wiring.ingest_options(settings, instance="test"),
        store=MeteredStore(store, metrics),
        reporter=wiring.reporter(settings),
        metrics=metrics,
        applier=None,
        telemetry=TelemetryOptions(listen="", max_tables=10),
    )

    async def run() -> None:
        watched = Watched(database, store, metrics, process)
        running = asyncio.create_task(process.run(until_lsn=None, until_caught_up=False))
        try:
            await watched.until(
                lambda: (
                    running.done()
                    or (process.ingest.status.connected and watched.states() and set(watched.states()) == {"live"})
                )
            )
            await scenario(watched)
        finally:
            store.open.set()
            process.ingest.stop()
            await running

    try:
        asyncio.run(run())
    finally:
        # Else the clock of the stop would end the whole run of tests.
        process.stopping.done()


@pytest.fixture(autouse=True)
def _every_look_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.health.live_report._FRESH_SECONDS", 0.0)


@pytest.fixture
def limited(database: Database) -> Iterator[Database]:
    """The server with a limit on what slots may keep."""
    database.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1GB'", "SELECT pg_reload_conf()")
    yield database
    database.execute("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")


def test_every_family_has_samples_and_they_are_true(limited: Database, tmp_path: Path) -> None:
    limited.execute(
        "CREATE TABLE a (id int PRIMARY KEY, note text)",
        "CREATE TABLE idle (id int PRIMARY KEY)",
        "INSERT INTO a SELECT i, 'row-value-canary' FROM generate_series(1, 7) i",
    )
    seen: dict[str, float] = {}

    async def scenario(watched: Watched) -> None:
        await watched.durable("INSERT INTO a SELECT i, '' FROM generate_series(11, 30) i")
        await watched.durable("UPDATE a SET note = 'x' WHERE id < 13")
        await watched.durable("DELETE FROM a WHERE id = 11")
        await watched.durable("ALTER TABLE a ADD COLUMN more int", "INSERT INTO a VALUES (31, '', 2)")
        await watched.durable("TRUNCATE a")
        await asyncio.to_thread(limited.cut_stream)
        view = watched.process.ingest.status
        await watched.until(lambda: view.reconnects and view.connected)
        await watched.look()
        watched.apply()
        seen.update(await watched.look())

    watch(limited, tmp_path, scenario)
    families = {re.sub(r"_(bucket|sum|count)$", "", series.partition("{")[0]) for series in seen}
    assert {metric.name for metric in served_by("ingest")} - families == {metric.name for metric in WITHOUT_SAMPLES}
    assert not [series for series in seen if "row-value-canary" in series]

    def value(metric: Metric, **labels: str) -> float:
        named = ",".join(f'{name}="{text}"' for name, text in sorted({"pipeline": "test", **labels}.items()))
        return seen[f"{metric.name}{{{named}}}"]

    changes = {
        op: value(catalogue.ROWS, schema="public", table="a", op=op)
        for op in ("insert", "update", "delete", "truncate")
    }
    assert changes == {"insert": 21, "update": 9, "delete": 1, "truncate": 1}
    assert value(catalogue.TRANSACTIONS, outcome="committed") == 5
    assert seen['sluice_transaction_rows_count{pipeline="test"}'] == 4, "a TRUNCATE is no row"
    assert seen['sluice_transaction_rows_sum{pipeline="test"}'] == 31
    assert (value(catalogue.SNAPSHOT_ROWS), value(catalogue.SNAPSHOT_TABLES, state="done")) == (7, 2)
    assert value(catalogue.SCHEMA_CHANGES, kind="added_columns", outcome="followed") == 1
    assert value(catalogue.TABLE_EVENTS, state="live") == 2
    assert value(catalogue.SLOT_KEEP_LIMIT) == 1 << 30
    assert 0 < value(catalogue.SLOT_SAFE) <= 2 << 30
    assert value(catalogue.SLOT_UNBOUNDED) == 0
    assert sum(value(catalogue.RECONNECTS, reason=reason) for reason in catalogue.RECONNECT_REASONS) == 1
    assert value(catalogue.RECONNECTS, reason="other") == 0
    errors = [
        count
        for series, count in seen.items()
        if series.startswith(catalogue.ERRORS.name) and 'component="stream"' in series and count
    ]
    assert errors == [1]
    assert value(catalogue.SPOOL_FILES, kind="snapshot") == 1
    assert value(catalogue.SPOOL_FILES, kind="changes") == value(catalogue.SPOOL_ENTRIES) == 5
    assert seen['sluice_flush_duration_seconds_count{phase="total",pipeline="test"}'] == 5
    assert (value(catalogue.PENDING_FILES), value(catalogue.PENDING_BYTES)) == (0, 0)
    # Anybody's WAL may have come between the look and the count: then it is milliseconds.
    assert all(0 <= value(catalogue.LAG_SECONDS, stage=stage) < 5 for stage in catalogue.STAGES)
    assert 0 <= value(catalogue.APPLY_FRESHNESS, quantile_of_tables="max") < 5
    idle = value(catalogue.TABLE_WATERMARK, schema="public", table="idle")
    assert idle > value(catalogue.LAST_FLUSHED_COMMIT) - 1, "a table without changes is as complete as ingest is"


def test_a_store_that_stalls_is_lag_and_back_pressure_and_passes(database: Database, tmp_path: Path) -> None:
    """What waits for the store is old, even though nothing of it can be seen in the store."""
    database.execute("CREATE TABLE a (id int PRIMARY KEY, note text)", "CREATE TABLE idle (id int PRIMARY KEY)")

    flush, apply = (
        f'sluice_replication_lag_seconds{{pipeline="test",stage="{stage}"}}' for stage in ("flush", "apply")
    )
    freshness = 'sluice_apply_freshness_seconds{pipeline="test",quantile_of_tables="max"}'
    idle = 'sluice_apply_table_watermark_timestamp_seconds{pipeline="test",schema="public",table="idle"}'

    async def scenario(watched: Watched) -> None:
        await watched.durable("INSERT INTO a VALUES (1, '')")
        watched.apply()
        await watched.shows(lambda seen: seen[freshness] < _STALL_SECONDS)
        watched.store.open.clear()
        await asyncio.to_thread(database.execute, "INSERT INTO a VALUES (2, '')")
        await watched.until(watched.unflushed)
        stalled = await watched.shows(lambda seen: seen[flush] >= _STALL_SECONDS)
        assert stalled[freshness] >= _STALL_SECONDS
        assert stalled[apply] >= _STALL_SECONDS
        assert watched.process.health.live_problems() == []
        watched.store.open.set()
        behind = await watched.shows(
            lambda seen: seen[flush] < _STALL_SECONDS and seen['sluice_spool_pending_files{pipeline="test"}'] == 1
        )
        assert time.time() - behind['sluice_spool_oldest_pending_timestamp_seconds{pipeline="test"}'] >= _STALL_SECONDS
        assert behind[apply] >= _STALL_SECONDS
        watched.apply()
        done = await watched.shows(lambda seen: seen[apply] < _STALL_SECONDS)
        assert done[idle] >= behind[idle]

    watch(database, tmp_path, scenario)


def test_page_and_metrics_show_the_same_figure_for_the_same_fact(
    limited: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind, with changes that are neither durable nor applied."""
    limited.execute("CREATE TABLE a (id int PRIMARY KEY, note text)")

    async def scenario(watched: Watched) -> None:
        watched.apply()
        await watched.durable("INSERT INTO a VALUES (1, '')")
        watched.store.open.clear()
        await asyncio.to_thread(limited.execute, "INSERT INTO a VALUES (2, '')")
        await watched.until(watched.unflushed)
        # The metrics are rendered within this second: from now on nobody asks the server anew.
        await watched.look()
        monkeypatch.setattr("sluice.health.live_report._FRESH_SECONDS", 60.0)
        document = await asyncio.to_thread(watched.process.observer.status)
        watched.process.observer.count()
        watched.process.observer.export_verdict()
        watched.metrics.render()
        agree(document, samples(watched.metrics))
        watched.store.open.set()

    watch(limited, tmp_path, scenario)


def agree(document: dict[str, Any], seen: dict[str, float]) -> None:
    """Raises AssertionError unless /status and /metrics, of one moment, say the same."""
    stages = {stage["stage"]: stage for stage in document["wal"]["stages"]}
    for stage, name in (("received", "receive"), ("flushed", "flush"), ("applied", "apply")):
        shown = f'{{pipeline="test",stage="{name}"}}'
        assert stages[stage]["behind_bytes"] == seen[f"sluice_replication_lag_bytes{shown}"], stage
        assert stages[stage]["behind_seconds"] == pytest.approx(seen[f"sluice_replication_lag_seconds{shown}"], abs=2)
    headroom, of_slot = document["wal"]["headroom"], document["source"]["slot"]
    one = '{pipeline="test"}'
    assert headroom["retained_bytes"] == of_slot["retained_wal_bytes"] == seen[f"sluice_slot_retained_wal_bytes{one}"]
    assert headroom["safe_bytes"] == of_slot["safe_wal_bytes"] == seen[f"sluice_slot_safe_wal_bytes{one}"]
    assert headroom["seconds_left"] == seen.get(f"sluice_slot_seconds_until_lost{one}")
    for lsn, name in (
        (document["source"]["wal_lsn"], "sluice_source_wal_lsn_bytes"),
        (of_slot["confirmed_flush_lsn"], "sluice_confirmed_flush_lsn_bytes"),
        (stages["received"]["lsn"], "sluice_received_lsn_bytes"),
        (document["manifest"]["through_lsn"], "sluice_flushed_lsn_bytes"),
        (document["apply"]["complete_through_lsn"], "sluice_applied_lsn_bytes"),
    ):
        assert parse(lsn) == seen[f"{name}{one}"], name
    assert document["apply"]["pending_entries"] == seen[f"sluice_apply_entries_pending{one}"] == 1
    oldest = max(table["lag_seconds"] for table in document["tables"])
    taken_at = datetime.fromisoformat(document["taken_at"]).timestamp()
    assert taken_at - oldest == pytest.approx(seen[f"sluice_spool_oldest_pending_timestamp_seconds{one}"], abs=0.01)
    assert seen[f'sluice_health{{pipeline="test",state="{document["state"]}"}}'] == 1
    counts = Counter[str]()
    for problem in document["problems"]:
        counts[problem["code"]] += problem["count"]
    assert {
        series.partition('code="')[2].partition('"')[0]: value
        for series, value in seen.items()
        if series.startswith("sluice_problems{") and value
    } == counts

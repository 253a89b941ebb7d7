"""kill -9 at random moments and at every named one: nothing is lost, nothing comes twice, nothing is acknowledged too early.

One pipeline lives through all of it, under a seeded workload over tables of every identity and many types. What committed is known from a second slot that
Sluice never touches; the lake is compared with the source by a second engine. SEED=number repeats a run's workload and kills.
"""

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from deploy.local.sluice import Pipeline, SluiceProcess
from service import lsn
from service.manifest.follow import load_state
from service.store.opening import open_store
from tests.support.compare import assert_equal
from tests.support.manifests import chain_and_objects
from tests.support.pipeline import commits, witnessed
from tests.support.sources import Database
from tests.support.workload import TABLE_NAMES, Workload

RANDOM_KILLS = 12
INGEST_POINTS = (
    "copy.locked", "copy.final.before", "copy.final.after", "segment.put.before", "segment.put.after", "commit.before", "manifest.append.before@4",
    "store.create.before@6", "store.create.after@6", "manifest.append.after@4", "commit.after",
)  # fmt: skip
"""The copy's points come first: there is something to copy at the first start only."""
APPLY_POINTS = ("apply.commit.before@1", "apply.commit.after@3", "apply.commit.before@5", "apply.commit.after@2")
PATIENCE_SECONDS = 90.0


@pytest.mark.timeout(900)
def test_twenty_kills_of_ingest_and_of_apply_lose_nothing_and_double_nothing(database: Database, tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED", str(time.time_ns() % 1_000_000)))
    print(f"SEED={seed}")
    chance = random.Random(seed)
    proxy, pipeline = witnessed(database, tmp_path)
    with proxy, Workload(database.dsn, seed=seed) as load:
        load.create()
        assert pipeline.run("setup").returncode == 0
        database.execute(f"SELECT pg_copy_logical_replication_slot('{database.slot}', '{database.slot}_witness')")
        for point in INGEST_POINTS:
            _die_at(point, pipeline, load)
        for _ in range(RANDOM_KILLS):
            _die_at_random(pipeline, load, chance)
        load.transact(10)
        _succeed(pipeline.run("run", "--until-caught-up"))
        proxy.check()
        assert commits(pipeline) == Counter(_witness(database))
        chain_and_objects(open_store(pipeline.spool_uri, prefix="t/", options={}))

        for point in APPLY_POINTS:
            load.transact(5)
            _succeed(pipeline.run("run", "--until-caught-up"))
            with pipeline.start("apply", environment={"SLUICE_FAULTS": _armed(point)}) as applier:
                assert applier.wait(PATIENCE_SECONDS) == 137, applier.log_tail(30)
        load.transact(5)
        _succeed(pipeline.run("run", "--until-caught-up"))
        _succeed(pipeline.run("apply", "--once"))
        assert commits(pipeline) == Counter(_witness(database))
    assert {table["state"] for table in pipeline.tables()} == {"live"}, pipeline.tables()
    assert_equal(database, TABLE_NAMES, lake_uri=pipeline.lake_uri)


def _armed(point: str) -> str:
    name, _, hit = point.partition("@")
    return f"{name}=crash{'@' + hit if hit else ''}"


def _die_at(point: str, pipeline: Pipeline, load: Workload) -> None:
    """Runs ingest with a crash armed, and writes until it has happened."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    with pipeline.start("run", environment={"SLUICE_FAULTS": _armed(point)}) as process:
        while process.status is None:
            assert time.monotonic() < deadline, f"{point} was never reached\n{process.log_tail(20)}"
            load.transact()
        assert process.status == 137, process.log_tail(20)


def _die_at_random(pipeline: Pipeline, load: Workload, chance: random.Random) -> None:
    moment = time.monotonic() + chance.uniform(0.6, 3.0)
    with pipeline.start("run") as process:
        while time.monotonic() < moment:
            load.transact()
        assert process.status is None, process.log_tail(20)
        process.kill()


def _succeed(outcome: object) -> None:
    assert getattr(outcome, "returncode", None) == 0, getattr(outcome, "stderr", "")[-3000:]


def _witness(database: Database) -> list[int]:
    """End LSN of every transaction with rows, read from the log by the server's own function."""
    with database.connect() as connection:
        found = connection.execute(
            "SELECT substring(data from 11 for 8) FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1', 'publication_names', %s)"
            " WHERE get_byte(data, 0) = 67",
            (f"{database.slot}_witness", database.publication),
        ).fetchall()
    return [int.from_bytes(end, "big") for (end,) in found]


def test_sigterm_drains_and_acknowledges(database: Database, tmp_path: Path) -> None:
    proxy, pipeline = witnessed(database, tmp_path)
    with proxy, Workload(database.dsn, seed=1) as load:
        load.create()
        _succeed(pipeline.run("run", "--until-caught-up"))
        with pipeline.start("run") as process:
            _wait_for_line(process, "streaming", 2)
            load.transact(20)
            assert process.stop() == 0
        proxy.check()
    through = lsn.parse(_manifest_through(pipeline))
    with database.connect() as connection:
        row = connection.execute("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", (database.slot,)).fetchone()
    assert row is not None
    assert lsn.parse(row[0]) == through


def test_a_store_that_hangs_for_three_timeouts_costs_no_connection_and_no_row(database: Database, tmp_path: Path) -> None:
    """The walsender would drop a client that is silent for two seconds; ours has nothing to acknowledge for longer, and says so in time."""
    database.execute(f"ALTER DATABASE {database.name} SET wal_sender_timeout = '2s'")
    proxy, pipeline = witnessed(database, tmp_path)
    with proxy, Workload(database.dsn, seed=2) as load:
        load.create()
        _succeed(pipeline.run("run", "--until-caught-up"))
        gate = tmp_path / "gate"
        with pipeline.start("run", environment={"SLUICE_FAULTS": f"segment.put.before=hold:{gate}"}) as process:
            _wait_for_line(process, "streaming", 2)
            before = proxy.connections
            load.transact(3)
            held = time.monotonic() + 6
            while time.monotonic() < held:
                load.transact()
            assert process.status is None
            assert proxy.connections == before, "the connection was lost"
            gate.touch()
            assert process.stop() == 0
        _succeed(pipeline.run("run", "--until-caught-up"))
        proxy.check()
        assert all(count == 1 for count in commits(pipeline).values())
        assert len(commits(pipeline)) >= load.committed()


def _wait_for_line(process: SluiceProcess, text: str, count: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while process.log.read_text(errors="replace").count(f'"{text}"') + process.log.read_text(errors="replace").count(f"] {text} ") < count:
        assert process.status is None, process.log_tail()
        assert time.monotonic() < deadline, process.log_tail()
        time.sleep(0.05)


def _manifest_through(pipeline: Pipeline) -> str:
    return lsn.show(load_state(open_store(pipeline.spool_uri, prefix="t/", options={})).through_lsn)

"""Stops that are asked for, and a store that hangs: nothing is lost, and what can be acknowledged is."""

import time
from pathlib import Path

from deploy.local.sluice import Pipeline, SluiceProcess
from service import lsn
from service.manifest.follow import load_state
from service.store.opening import open_store
from tests.support.pipeline import commits, witnessed
from tests.support.sources import Database
from tests.support.workload import Workload

PATIENCE_SECONDS = 90.0


def _succeed(outcome: object) -> None:
    assert getattr(outcome, "returncode", None) == 0, getattr(outcome, "stderr", "")[-3000:]


def test_sigterm_drains_and_acknowledges(database: Database, tmp_path: Path) -> None:
    proxy, pipeline = witnessed(database, tmp_path)
    with proxy, Workload(database.dsn, seed=1) as load:
        load.create()
        _succeed(pipeline.run("run", "--until-caught-up"))
        with pipeline.start("run") as process:
            _wait_for_line(process, "streaming", 1)
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
            _wait_for_line(process, "streaming", 1)
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

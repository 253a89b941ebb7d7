"""A slot that is invalidated, dropped or advanced, while ingest is away and while it runs: exit
code 7 by name, every time, and nothing is hidden.
"""

import json
import time
from collections.abc import Iterator

import psycopg
import pytest

from tests.chaos.world import Gate, World, world
from tests.support.extent import cases, slow
from tests.support.pipeline import wait_until
from tests.support.sources import Database
from tools.local.postgres import PostgresServer, temporary_server
from tools.local.sluice import SluiceProcess

SETTINGS = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
HOW = ("invalidated", "dropped", "advanced")
LOST = 7
SAYS = {"invalidated": "INVALIDATED", "dropped": "MISSING", "advanced": "AHEAD"}
_END_SECONDS = 120.0


@pytest.fixture(scope="module")
def sparing() -> Iterator[PostgresServer]:
    """A server that keeps next to no log for a slot that lags."""
    with temporary_server(settings=SETTINGS) as server:
        yield server


@pytest.fixture
def started(sparing: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(sparing, tmp_path_factory.mktemp("slot"), seed=1) as created:
        created.catch_up()
        yield created


def lose(database: Database, how: str) -> None:
    """Whoever holds the slot loses it. A transaction is committed that it has not been sent."""
    if how == "invalidated":
        database.execute("CREATE TABLE filler (x text)")
        deadline = time.monotonic() + _END_SECONDS
        status = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s"
        while database.one(status, database.slot) != ("lost",):
            assert time.monotonic() < deadline, "the server keeps more WAL than its limit"
            database.execute(
                "SELECT pg_switch_wal()",
                "INSERT INTO filler VALUES ('x')",
                "SELECT pg_switch_wal()",
                "INSERT INTO filler VALUES ('x')",
                "CHECKPOINT",
            )
        return
    gone = (
        "SELECT pg_drop_replication_slot(%s)"
        if how == "dropped"
        else "SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())"
    )
    with database.connect() as connection:
        deadline = time.monotonic() + _END_SECONDS
        while True:
            connection.execute(
                "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots WHERE slot_name = %s",
                (database.slot,),
            )
            connection.execute("SELECT pg_catalog.pg_logical_emit_message(true, 'test', 'unseen')")
            try:
                connection.execute(gone.encode(), (database.slot,))
            except psycopg.errors.ObjectInUse:  # it was faster
                assert time.monotonic() < deadline, "the slot is never free"
            else:
                return


def assert_said(world: World, how: str, ended: SluiceProcess) -> None:
    """The process ended by name, the next one does too, `status` and `check` say so, and what is in
    the manifest is whole.
    """
    assert ended.status == LOST, ended.log_tail(40)
    assert SAYS[how] in ended.log_tail(40), ended.log_tail(40)
    world.check()
    through = world.spool.through_lsn
    again = world.pipeline.run("run", "--until-caught-up", timeout=_END_SECONDS)
    assert (again.returncode, SAYS[how] in again.stderr) == (LOST, True), again.stderr[-2000:]
    status = world.pipeline.run("status", "--json", timeout=_END_SECONDS)
    assert (status.returncode, json.loads(status.stdout)["state"]) == (LOST, "lost"), status.stdout[-2000:]
    assert world.pipeline.run("check", timeout=_END_SECONDS).returncode == LOST
    world.check()
    assert world.spool.through_lsn == through, "something was published behind a gap"


@slow
@pytest.mark.parametrize("how", HOW)
def test_a_slot_that_is_lost_while_ingest_is_away_is_never_gone_on_from(started: World, how: str) -> None:
    started.workload.transact(5)
    lose(started.database, how)
    started.workload.transact(5)
    with started.ingest() as ingest:
        wait_until(lambda: ingest.status is not None, what="it ends", timeout=_END_SECONDS)
    assert_said(started, how, ingest)


@pytest.mark.parametrize("how", cases(HOW, quick=["advanced"]))
def test_a_slot_that_is_lost_while_ingest_runs_is_never_gone_on_from(started: World, how: str) -> None:
    gate = Gate(started.pipeline.directory / "gate")
    with started.ingest(faults=gate.holding("commit.before")) as ingest:
        started.streaming(ingest)
        started.publish(ingest)
        gate.close()
        started.workload.transact(5)
        lose(started.database, how)
        started.workload.transact(5)
        gate.open()
        wait_until(lambda: ingest.status is not None, what="it ends", timeout=_END_SECONDS)
    assert_said(started, how, ingest)

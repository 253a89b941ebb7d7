"""One SIGTERM ends the process in the time that a stop may take, whatever it waits for, and nothing
is lost by it.
"""

import os
import signal
import time

import psycopg

from sluice.errors import ApplyError, Interrupted
from tests.chaos.world import Gate, World, events
from tests.support.extent import slow
from tests.support.pgproxy import Direction
from tests.support.pipeline import wait_until
from tools.local.sluice import SluiceProcess

STOP_SECONDS = 6.0
STOP = f"{STOP_SECONDS:.0f}s"
SLACK_SECONDS = 20.0
"""For a busy machine: the process is asked to stop at STOP_SECONDS and needs a moment to be gone."""
OURS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'sluice_t'"


def test_with_the_store_away_and_a_backlog(started: World) -> None:
    """Nothing that was received can be stored, the decoder waits for the commit, and the socket for the
    decoder.
    """
    gate = Gate(started.pipeline.directory / "gate")
    with started.ingest(stop=STOP, faults=gate.holding("store.put.before")) as ingest:
        started.streaming(ingest)
        gate.close()
        started.workload.transact(300)
        position = started.workload.position()
        started.proxy.wait_for_status(lambda status: status.write > position or ingest.status is not None, timeout=120)
        assert _stopped(ingest) == Interrupted.exit_code, ingest.log_tail(40)
    _nothing_is_lost(started)


@slow
def test_with_a_store_that_refuses_connections_and_a_backlog(started: World) -> None:
    """Every try fails at once, and would be tried again for ever."""
    spool = started.pipeline.own_spool
    with started.ingest(stop=STOP) as ingest:
        started.streaming(ingest)
        spool.rename(spool.with_name("away"))
        spool.touch()
        started.workload.transact(50)
        wait_until(
            lambda: "store did not answer, trying again" in events(ingest) or ingest.status is not None,
            what="it notices",
            timeout=60,
        )
        if ingest.status is None:
            _stopped(ingest)
        spool.unlink()
        spool.with_name("away").rename(spool)
    _nothing_is_lost(started)


@slow
def test_after_a_connection_was_lost_to_a_server_that_does_not_answer(started: World) -> None:
    with started.ingest(stop=STOP) as ingest:
        started.streaming(ingest)
        started.proxy.hold(Direction.TO_CLIENT)
        connections = started.proxy.connections
        started.proxy.drop()
        wait_until(
            lambda: "lost contact, trying again" in events(ingest), what="the connection is lost", processes=(ingest,)
        )
        wait_until(lambda: started.proxy.connections > connections, what="it connects again", processes=(ingest,))
        assert _stopped(ingest) == 0, ingest.log_tail(40)
        started.proxy.release(Direction.TO_CLIENT)
        started.proxy.drop()
    _nothing_is_lost(started)


@slow
def test_while_it_streams_from_a_server_that_no_longer_answers(started: World) -> None:
    with started.ingest(stop=STOP) as ingest:
        started.streaming(ingest)
        started.proxy.hold(Direction.TO_CLIENT)
        started.workload.transact(10)
        _stopped(ingest)
        started.proxy.release(Direction.TO_CLIENT)
        started.proxy.drop()
    _nothing_is_lost(started)


@slow
def test_while_a_snapshot_waits_for_a_lock(started: World) -> None:
    """The server is asked to stop as well: no session of ours is left waiting there. A snapshot that
    got no lock in time waits for its next snapshot instead.
    """
    publication = started.database.publication
    started.database.execute(
        "CREATE TABLE locked (id int PRIMARY KEY)", f"ALTER PUBLICATION {publication} ADD TABLE locked"
    )
    gate = Gate(started.pipeline.directory / "gate")
    gate.close()
    with (
        started.ingest(stop=STOP, faults=gate.holding("snapshot.lock.before")) as ingest,
        psycopg.connect(started.database.dsn) as other,
    ):
        wait_until(
            lambda: "snapshot taken" in events(ingest), what="the snapshot is taken", processes=(ingest,), timeout=90
        )
        other.execute("LOCK TABLE locked IN ACCESS EXCLUSIVE MODE")
        gate.open()
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND "
            "wait_event_type = 'Lock' AND query LIKE 'LOCK TABLE%'"
        )
        again = "the snapshot waits for older transactions to end"
        wait_until(
            lambda: started.database.one(waiting) == (1,) or again in events(ingest),
            what="the snapshot waits",
            processes=(ingest,),
        )
        assert _stopped(ingest) == 0, ingest.log_tail(40)
        wait_until(lambda: started.database.one(OURS) == (0,), what="no session is left", timeout=120)
    _nothing_is_lost(started)


@slow
def test_while_a_slot_waits_for_an_older_transaction(started: World) -> None:
    publication = started.database.publication
    started.database.execute(
        "CREATE TABLE added (id int PRIMARY KEY)", f"ALTER PUBLICATION {publication} ADD TABLE added"
    )
    with psycopg.connect(started.database.dsn) as old, started.ingest(stop=STOP) as ingest:
        old.execute("INSERT INTO added VALUES (1)")
        wait_until(
            lambda: "the snapshot waits for older transactions to end" in events(ingest),
            what="the slot waits",
            processes=(ingest,),
            timeout=90,
        )
        assert _stopped(ingest) == 0, ingest.log_tail(40)
        wait_until(lambda: started.database.one(OURS) == (0,), what="no session is left", timeout=120)


@slow
def test_of_an_applier_whose_store_hangs(started: World) -> None:
    gate = Gate(started.pipeline.directory / "gate")
    with started.applier(faults=gate.holding("store.create.before"), stop=STOP) as applier:
        wait_until(lambda: "window applied" in events(applier), what="it applies", processes=(applier,))
        gate.close()
        assert _stopped(applier) == ApplyError.exit_code, applier.log_tail(40)


def _stopped(ingest: SluiceProcess) -> int:
    """The exit status after one SIGTERM."""
    began = time.monotonic()
    os.kill(ingest.pid, signal.SIGTERM)
    status = ingest.wait(120)
    assert time.monotonic() - began < STOP_SECONDS + SLACK_SECONDS, ingest.log_tail(40)
    return status


def _nothing_is_lost(world: World) -> None:
    world.wait_for_end_of_connection()
    world.check()
    world.workload.transact()
    world.catch_up()
    world.assert_exactly_once()

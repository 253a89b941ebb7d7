"""A store that takes nothing for longer than the server's patience: nothing is acknowledged, the
connection lives, and all of it is there in the end.
"""

import itertools
import time
from pathlib import Path

import pytest

from tests.chaos.storefaults import small_disk
from tests.chaos.world import Gate, World, events, world
from tests.support.extent import slow
from tools.local.postgres import PostgresServer
from tools.local.sluice import SluiceProcess

WAL_SENDER_TIMEOUT_SECONDS = 2.0


def test_a_store_that_hangs_for_three_timeouts_costs_no_connection_and_no_row(
    postgres: PostgresServer, tmp_path: Path, seed: int
) -> None:
    with world(postgres, tmp_path, seed=seed) as started:
        started.set_up()
        _hurry(started)
        gate = Gate(tmp_path / "gate")
        with started.ingest(
            faults=f"{gate.holding('store.put.before')},{gate.holding('store.create.before')}"
        ) as ingest:
            started.streaming(ingest)
            gate.close()
            _outlast(started, ingest)
            gate.open()
            _recovers(started, ingest)


@slow
def test_a_disk_that_is_full_for_three_timeouts_costs_no_connection_and_no_row(
    postgres: PostgresServer, tmp_path: Path, seed: int
) -> None:
    spool = tmp_path / "disk" / "spool"
    with small_disk(spool.parent) as disk, world(postgres, tmp_path, seed=seed, spool=spool) as started:
        if not disk.mounted:
            pytest.skip("a file system of its own cannot be mounted here; the hanging store proves the same")
        started.set_up()
        _hurry(started)
        with started.ingest() as ingest:
            started.streaming(ingest)
            disk.fill()
            _outlast(started, ingest)
            assert any(event.startswith("store did not answer") for event in events(ingest)), ingest.log_tail(40)
            disk.heal()
            _recovers(started, ingest)


def _hurry(started: World) -> None:
    started.database.execute(
        f"ALTER DATABASE {started.database.name} SET wal_sender_timeout = '{WAL_SENDER_TIMEOUT_SECONDS:.0f}s'"
    )


def _outlast(started: World, ingest: SluiceProcess) -> None:
    """Three timeouts of writing pass: status messages flow all the while, on one connection, and
    acknowledge nothing new.
    """
    through_lsn = _published(started)
    began = time.monotonic()
    for patience in (1, 2, 3):
        started.workload.transact(10)
        started.proxy.wait_for_status(lambda status: status.at > began + patience * WAL_SENDER_TIMEOUT_SECONDS)  # noqa: B023
    assert ingest.status is None, ingest.log_tail(40)
    assert "lost contact, trying again" not in events(ingest), ingest.log_tail(40)
    heard = [status for status in started.proxy.statuses if status.at > began]
    assert len({status.connection for status in heard}) == 1, "the stream was opened again"
    assert {status.flush for status in heard} <= {0, through_lsn}  # 0: it was opened, and has no entry of its own yet
    assert _published(started) == through_lsn, "something was published"
    silence = max(later.at - earlier.at for earlier, later in itertools.pairwise(heard))
    assert silence < WAL_SENDER_TIMEOUT_SECONDS, "the server heard nothing for too long"


def _published(started: World) -> int:
    started.spool.read()
    return started.spool.through_lsn


def _recovers(started: World, ingest: SluiceProcess) -> None:
    started.publish(ingest)
    assert "lost contact, trying again" not in events(ingest), ingest.log_tail(40)
    assert ingest.stop() == 0
    started.assert_exactly_once()

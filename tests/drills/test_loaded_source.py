"""A standby that falls behind while initial rows are read: they wait for it, by its name."""

from pathlib import Path

from sluice.store.opening import open_store
from tests.drills.standbys import standby_of
from tests.integration.test_snapshot_chunks import SETUP, assert_equal
from tests.integration.test_snapshot_load import is_live, limited, waits
from tests.support.ingesting import IngestPipeline
from tests.support.pipeline import wait_until
from tests.support.sources import Database
from tools.local.postgres import temporary_server

BEHIND = "SELECT replay_lsn < pg_current_wal_lsn() FROM pg_stat_replication WHERE application_name = 'one'"


def test_a_snapshot_waits_for_a_standby_that_replays_nothing_and_goes_on_when_it_does(tmp_path: Path) -> None:
    with temporary_server() as primary, standby_of(primary, "one", keeps_slots=False) as standby:
        database = Database(primary, "postgres", slot="sluice_load", publication="sluice_load")
        pipeline = IngestPipeline(database, open_store((tmp_path / "spool").as_uri(), prefix="test/", options={}))
        database.execute(*SETUP)
        pipeline.publish("t")
        with standby.superuser() as there, primary.superuser() as here:
            there.execute("SELECT pg_wal_replay_pause()")
            database.execute("UPDATE t SET n = 1 WHERE id = 1")
            wait_until(lambda: here.execute(BEHIND).fetchone() == (True,), what="the standby stands still")
            with pipeline.running(**limited(replica_lag_s=0.0)) as running:
                running.wait_until(lambda: waits(running) is not None)
                found = waits(running)
                assert found is not None
                assert found.signals == ("replica_lag",)
                assert "standby one" in found.reason
                assert not is_live(pipeline, "t")
                there.execute("SELECT pg_wal_replay_resume()")
                running.wait_until(lambda: is_live(pipeline, "t"))
        assert_equal(pipeline, tmp_path)

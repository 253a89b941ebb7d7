"""A standby as the source: it is decoded, and what it cannot do is said by name; its promotion is followed."""

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluice import lsn
from tests.drills.standbys import SNAPSHOTS, Drill, catch_up, promote, snapshots_logged, standby_of
from tests.e2e.mirror import Mirror
from tests.support.extent import slow
from tests.support.pipeline import must, new_pipeline
from tests.support.sources import Database
from tools.local.postgres import temporary_server

pytestmark = pytest.mark.skipif(not SNAPSHOTS, reason="16 and later decode on standbys")


@slow
def test_a_standby_is_a_source_and_its_promotion_is_followed_without_a_gap(tmp_path: Path) -> None:
    with temporary_server() as primary, standby_of(primary, "one", keeps_slots=False) as standby:
        there = Database(primary, "postgres", slot="sluice_drill", publication="sluice_drill")
        drill = Drill(there, tmp_path / "spool")
        spool = {"uri": drill.folder.as_uri(), "max_delay": "50ms"}
        pipeline = new_pipeline(there, tmp_path / "pipeline", name="test", dsn=standby.dsn(), spool=spool)
        catch_up(primary, standby)
        refused = pipeline.run("check")
        assert refused.returncode == 3
        assert "a standby cannot create it" in refused.stdout
        there.execute("CREATE PUBLICATION sluice_drill FOR TABLE a")
        catch_up(primary, standby)
        with snapshots_logged(primary):
            must(pipeline, "run", "--until-caught-up")
        assert "server.standby_limits" in must(pipeline, "check")
        with pipeline.start("run"):
            drill.insert(1)
            drill.is_complete()
            catch_up(primary, standby)
            primary.stop()
            promote(standby)
            drill.move_to(standby)
            drill.insert(100)
            drill.is_complete()
        assert drill.opened() == (2, [1])
        drill.assert_equal()
    assert "the command begins again" in (pipeline.directory / "run.log").read_text()


@slow
def test_rows_of_a_standby_are_compared_with_the_lake(tmp_path: Path, spark: SparkSession) -> None:
    with temporary_server() as primary, standby_of(primary, "one", keeps_slots=False) as standby:
        there = Database(primary, "postgres", slot="sluice_drill", publication="sluice_drill")
        there.execute(
            "CREATE TABLE a (id int PRIMARY KEY, v text)",
            "INSERT INTO a SELECT i, 'v' FROM generate_series(1, 300) i",
            "CREATE PUBLICATION sluice_drill FOR TABLE a",
        )
        catch_up(primary, standby)
        mirror = Mirror(there, spark, tmp_path)
        mirror.pipeline.dsn = standby.dsn()
        with snapshots_logged(primary):
            mirror.follow()
            there.execute("UPDATE a SET v = 'w' WHERE id = 1")
            comparing = mirror.comparing(mirror.source(), wait_seconds=60.0)
            with mirror.pipeline.running():
                (verdict,) = comparing.compare([mirror.pipeline.table("public.a")])
        assert (verdict.outcome, verdict.rows) == ("equal", 300), verdict.reason


@slow
def test_a_standby_whose_primary_is_replaced_says_what_it_waits_for_and_is_gone_on_from(tmp_path: Path) -> None:
    """It follows the new primary at once, and states the old timeline until its next restart point."""
    with (
        temporary_server(settings={"full_page_writes": "on"}) as primary,
        standby_of(primary, "one", keeps_slots=False) as successor,
        standby_of(successor, "two", keeps_slots=False) as read,
    ):
        drill = Drill(
            Database(primary, "postgres", slot="sluice_drill", publication="sluice_drill"), tmp_path / "spool"
        )
        drill.database.execute("CREATE PUBLICATION sluice_drill FOR TABLE a")
        drill.pipeline = replace(drill.pipeline, dsn=read.dsn())
        with snapshots_logged(primary):
            catch_up(primary, read)
            drill.pipeline.run()
        drill.insert(1)
        catch_up(primary, read)
        primary.stop()
        promote(successor)
        drill.move_to(successor)
        drill.insert(100)
        catch_up(successor, read)
        with drill.pipeline.running() as run:
            run.wait_until(
                lambda: any(
                    "its last restart point is of timeline 1" in one.message for one in run.ingest.errors.kept()
                )
            )
            (said,) = (
                one for one in run.ingest.errors.kept() if "its last restart point is of timeline 1" in one.message
            )
            assert "CHECKPOINT" in said.hint
            with successor.superuser() as connection:
                connection.execute("CHECKPOINT")
            catch_up(successor, read)
            with read.superuser() as connection:
                connection.execute("CHECKPOINT")
            run.wait_until_connected()
            target = lsn.parse(drill.pipeline.wal_end())
            run.wait_until(lambda: drill.pipeline.state().through_lsn >= target)
        assert drill.opened() == (2, [1])
        drill.assert_equal()

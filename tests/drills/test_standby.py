"""A standby as the source: it is decoded, and what it cannot do is said by name; its promotion is followed."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

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
            comparing = mirror.comparing(mirror.source(), wait_seconds=60)
            with mirror.pipeline.running():
                (verdict,) = comparing.compare([mirror.pipeline.table("public.a")])
        assert (verdict.outcome, verdict.rows) == ("equal", 300), verdict.reason

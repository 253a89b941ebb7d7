"""Failover of the source: a promoted standby is followed when it provably has all that the manifest has,
and refused by name when it does not.
"""

import itertools
import threading
from dataclasses import replace

import pytest

from sluice.errors import SlotLost, SourceMoved
from tests.drills.standbys import SNAPSHOTS, Drill, catch_up, promote, snapshots_logged, standby_of
from tests.support.background import beside
from tests.support.extent import slow
from tests.support.pgproxy import PgProxy
from tests.support.pipeline import new_pipeline


def test_a_running_command_goes_on_by_itself_on_a_standby_that_was_promoted_under_load(drill: Drill) -> None:
    """The slot on the standby is older than the manifest when the primary is lost."""
    with standby_of(drill.primary, "one") as standby:
        drill.hand_over(standby)
        spool = {"uri": drill.folder.as_uri(), "max_delay": "50ms"}
        folder = drill.folder.parent / "command"
        command = new_pipeline(drill.database, folder, name="test", dsn=drill.either(standby), spool=spool)
        with command.start("run"):
            drill.insert(1)
            drill.is_complete()
            catch_up(drill.primary, standby)
            drill.primary.stop("immediate")
            promote(standby)
            drill.move_to(standby)
            drill.insert(100)
            drill.is_complete()
        drill.assert_equal()
        assert drill.opened() == (2, [1])
    assert "the command begins again" in (command.directory / "run.log").read_text()


def test_a_session_that_is_led_to_a_promoted_copy_while_its_primary_lives_reads_nothing_there(drill: Drill) -> None:
    """As behind a load balancer: the stream is still of the primary."""
    with standby_of(drill.primary, "one") as copy, PgProxy(drill.primary.port) as proxy:
        catch_up(drill.primary, copy)
        promote(copy)
        drill.database.execute("INSERT INTO a VALUES (1, 'here')")
        copied = replace(drill.database, server=copy)
        copied.execute("INSERT INTO a VALUES (1, 'there')", "ALTER TABLE a ADD COLUMN there int")
        through = replace(drill.pipeline, dsn=proxy.dsn(dbname=drill.database.name))

        def follow() -> None:
            with through.running(watch_interval_s=0.1) as run:
                run.wait_until(lambda: run.ingest.status.connected)
                proxy.lead_to(copy.port)
                drill.database.execute(
                    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE backend_type = "
                    "'client backend' AND pid <> pg_backend_pid()"
                )
                run.thread.join(30)

        with pytest.raises(SourceMoved, match="leads to timeline 2 now"):
            follow()
        with pytest.raises(SlotLost, match=r"DIVERGED|MISSING"):
            through.run()
        drill.assert_equal()


@slow
@pytest.mark.skipif(not SNAPSHOTS, reason="16 and later export snapshots on standbys")
def test_a_snapshot_is_not_read_from_a_standby_that_is_behind_the_stream(drill: Drill) -> None:
    """As behind a load balancer. The stream has brought the manifest further than such a snapshot is, and what lies
    between the two would count as read.
    """
    with (
        standby_of(drill.primary, "one", keeps_slots=False) as standby,
        PgProxy(drill.primary.port) as proxy,
        snapshots_logged(drill.primary),
    ):
        catch_up(drill.primary, standby)
        with standby.superuser() as connection:
            connection.execute("ALTER SYSTEM SET recovery_min_apply_delay = '4s'")
            connection.execute("SELECT pg_reload_conf()")
        through = replace(drill.pipeline, dsn=proxy.dsn(dbname=drill.database.name))

        def write(ended: threading.Event) -> None:
            for key in itertools.count(1):
                drill.insert(key, 1)
                if ended.wait(0.1):
                    return

        with through.running(watch_interval_s=0.1) as run:
            run.wait_until_connected()
            with beside(write):
                run.thread.join(5)
                proxy.lead_to(standby.port)
                through.request("resync", table="a")
                run.wait_until(
                    lambda: (
                        (table := through.table("public.a")).generation == 2
                        and (
                            table.state == "live" or any("is behind" in one.message for one in run.ingest.errors.kept())
                        )
                    )
                )
            proxy.lead_to(drill.primary.port)
            run.wait_until_live()
        drill.assert_equal()


@slow
def test_a_pipeline_follows_one_promotion_after_the_other(drill: Drill) -> None:
    with standby_of(drill.primary, "one") as second:
        drill.hand_over(second)
        drill.primary.stop("immediate")
        promote(second)
        drill.move_to(second)
        drill.insert(1)
        drill.pipeline.run()
        with standby_of(second, "two") as third:
            drill.hand_over(third)
            drill.insert(100)
            catch_up(second, third)
            second.stop("immediate")
            promote(third)
            drill.move_to(third)
            drill.insert(200)
            drill.pipeline.run()
            drill.assert_equal()
            assert drill.opened() == (3, [1, 2])


def test_a_manifest_that_is_ahead_of_the_promoted_server_is_refused(drill: Drill) -> None:
    with standby_of(drill.primary, "one") as standby:
        drill.hand_over(standby)
        standby.stop()
        drill.insert(1)
        drill.pipeline.run()
        drill.primary.stop("immediate")
        standby.start()
        promote(standby)
        before = drill.pipeline.state().seq
        drill.move_to(standby)
        drill.insert(1)  # other transactions than those that were lost
        drill.pipeline.dsn = ""
        with pytest.raises(SlotLost, match=r"^DIVERGED: the manifest holds changes through .* left their timeline 1"):
            drill.pipeline.run()
        assert drill.pipeline.state().seq == before


@slow
def test_of_two_standbys_that_were_both_promoted_only_the_one_that_was_followed_is(drill: Drill) -> None:
    """Both are on timeline 2, which each began at another position."""
    with standby_of(drill.primary, "one") as followed, standby_of(drill.primary, "two") as other:
        drill.hand_over(other)
        other.stop()
        drill.insert(1)
        drill.pipeline.run()
        drill.hand_over(followed)
        catch_up(drill.primary, followed)
        drill.primary.stop("immediate")
        promote(followed)
        drill.move_to(followed)
        drill.insert(100)
        drill.pipeline.run()
        drill.assert_equal()
        other.start()
        promote(other)
        drill.move_to(other)
        with pytest.raises(SlotLost, match=r"^TIMELINE: timeline 2 of this server does not come from timeline 2"):
            drill.pipeline.run()

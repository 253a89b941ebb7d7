"""What operations does to a pipeline over the years: garbage is collected while it lives, its lake
survives the loss of its slot.

One story: snapshot, changes, collection; then life goes on, by the applier's own notes and without
them; then the slot is lost and a new pipeline takes over.
"""

import shutil
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import SparkSession

from sluice.contract import keys
from sluice.contract.applied import AppliedLog
from sluice.contract.control import RESYNC
from sluice.errors import ApplyError, SlotLost
from sluice.manifest import pruning
from sluice.operate.spool_verify import verify
from sluice.store.base import ObjectStore
from sluice.store.opening import open_store
from sluice_spark.applier import Applier
from sluice_spark.options import ApplyOptions
from tests.e2e.mirror import Mirror
from tests.support import ingesting
from tests.support.extent import slow

TABLES = ("kept", "read_again")
LATER = datetime.now(UTC) + timedelta(days=30)


@dataclass
class Story:
    mirror: Mirror

    @property
    def store(self) -> ObjectStore:
        return self.mirror.pipeline.store

    def live_on(self, number: int) -> None:
        for table in TABLES:
            self.mirror.execute(
                f"UPDATE {table} SET v = 'changed {number}' WHERE id <= {number}",
                f"INSERT INTO {table} VALUES ({100 + number}, 'new')",
            )
        self.mirror.execute(f"SELECT pg_logical_emit_message(true, 'note', 'number {number}')")
        self.mirror.pipeline.run(messages=True)
        self.mirror.apply()

    def collect(self) -> int:
        plan = pruning.plan(self.store, keep_seconds=timedelta(days=7).total_seconds(), now=lambda: LATER)
        pruning.carry_out(self.store, plan)
        assert verify(self.store, content=True).flaws == []
        return len(plan.objects)

    def objects(self) -> list[str]:
        return [key for folder in (keys.DATA, keys.STAGE) for key in self.store.list(folder)]


@pytest.fixture(scope="module")
def story(mirror: Mirror) -> Story:
    for table in TABLES:
        mirror.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {table} SELECT i, 'old' FROM generate_series(1, 20) i",
        )
    story = Story(mirror)
    story.live_on(1)
    return story


def test_everything_that_the_lake_has_goes_and_the_pipeline_lives_on(story: Story) -> None:
    assert story.collect() > 0
    assert story.objects() == []
    story.live_on(2)
    story.mirror.assert_equal(*TABLES)
    assert len(story.mirror.rows("messages", schema="_sluice")) == 2


@slow
def test_a_table_is_read_again_after_its_first_snapshot_is_gone(story: Story) -> None:
    story.collect()
    story.mirror.pipeline.request(RESYNC, table="read_again")
    story.live_on(3)
    assert story.mirror.pipeline.table("public.read_again").generation == 2
    story.mirror.assert_equal(*TABLES)
    assert story.collect() > 0
    assert story.objects() == []


def test_an_applier_that_lost_its_notes_goes_on_from_the_lake(story: Story) -> None:
    story.collect()
    story.mirror.forget_notes()
    plan = pruning.plan(story.store, keep_seconds=0)
    assert (plan.objects, plan.holds[0].what) == ({}, "the applier"), "without its record everything stays"
    story.live_on(4)
    story.mirror.assert_equal(*TABLES)


@slow
def test_a_spool_that_was_lost_begins_anew_and_no_marker_of_the_old_one_hides_a_change(story: Story) -> None:
    """The new manifest counts from 1 again, below what the lake's markers say of the old one."""
    before = story.mirror.pipeline.state().seq
    for key in list(story.store.list("")):
        story.store.delete(key)
    story.live_on(5)
    assert story.mirror.pipeline.state().seq < before
    story.mirror.assert_equal(*TABLES)
    story.live_on(6)
    story.mirror.assert_equal(*TABLES)


def test_a_new_pipeline_over_the_lake_of_a_lost_one_makes_it_equal_again(story: Story, spark: SparkSession) -> None:
    mirror, database = story.mirror, story.mirror.database
    database.execute(f"SELECT pg_drop_replication_slot('{database.slot}')", "DELETE FROM kept WHERE id < 5")
    with pytest.raises(SlotLost, match="MISSING"):
        mirror.pipeline.run(messages=True)
    spool = mirror.lake_path().parent / "second"
    other = replace(database, slot=f"{database.slot}_2")
    store = open_store(spool.as_uri(), prefix="second/", options={})
    pipeline = ingesting.IngestPipeline(other, store)
    pipeline.run()
    options = ApplyOptions("second", spool.as_uri(), mirror.lake_uri(), once=True, poll_seconds=0.05)
    with suppress(ApplyError):
        Applier(options, store, spark, stop=threading.Event()).run()
    newest = AppliedLog.decode(store.get(max(store.list(keys.APPLY_LOG))))
    refused = [table for table in newest.tables.values() if "of another pipeline (test)" in table.reason]
    assert {table.state for table in refused} == {"stale"}
    assert {table.table_name for table in refused} == set(TABLES)
    mirror.assert_equal("read_again")
    for table in TABLES:
        pipeline.request(RESYNC, table=table)
    pipeline.run()
    Applier(replace(options, replaces=("test",)), store, spark, stop=threading.Event()).run()
    mirror.assert_equal(*TABLES)
    shutil.rmtree(spool)

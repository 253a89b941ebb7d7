"""The last release and this checkout take turns on one pipeline, both ways: docs/how-to/upgrades.md."""

from pathlib import Path

import pytest

from tests.chaos import writer
from tests.chaos.world import World
from tests.support.compare import assert_equal
from tests.support.extent import slow
from tests.support.workload import TABLE_NAMES
from tests.upgrade import story
from tests.upgrade.releases import NEW, ROOT, Release

INGEST, APPLY = ("run", "--until-caught-up"), ("apply", "--once")


def test_the_two_versions_are_the_wheel_and_this_checkout(old: Release, tmp_path: Path) -> None:
    assert [Path(old.code) in path.parents for path in old.origins(tmp_path)] == [True, True]
    assert [ROOT in path.parents for path in NEW.origins(tmp_path)] == [True, True]


@slow
def test_ingest_of_two_versions_takes_turns_and_the_spool_stays_equal(shared: World, old: Release) -> None:
    old.must(shared.pipeline, *INGEST)
    for number, (first, second) in enumerate(((old, NEW), (NEW, old))):
        story.stretch(shared, number)
        # One is killed in a snapshot, and the other continues it.
        story.dies_in_a_snapshot(shared, first)
        # What one asks for, the other carries out.
        first.must(shared.pipeline, "resync", "public.w_pair")
        second.must(shared.pipeline, *INGEST)
        story.assert_equal_spool(shared)
        assert story.generation(shared, "w_pair") == number + 2
        # What one received at PREPARE, the other publishes.
        story.prepare(shared, number)
        first.must(shared.pipeline, *INGEST)
        story.commit_prepared(shared, number)
        second.must(shared.pipeline, *INGEST)
        story.assert_equal_spool(shared)
    story.assert_same_view(shared, old)


@slow
@pytest.mark.parametrize("first", ["the last release", "this checkout"])
def test_an_applier_goes_on_from_the_other_versions_ingest_and_applier(shared: World, old: Release, first: str) -> None:
    one, other = (old, NEW) if first == "the last release" else (NEW, old)
    one.must(shared.pipeline, *INGEST)
    one.must(shared.pipeline, *APPLY)
    for number, release in enumerate((other, one)):
        # Each applies what the other one spooled, to tables that the other one committed.
        story.stretch(shared, number)
        (one if release is other else other).must(shared.pipeline, *INGEST)
        release.must(shared.pipeline, *APPLY)
        tables = (*TABLE_NAMES, writer.LARGE, *(f"joined_{past}" for past in range(number + 1)))
        assert_equal(shared.database, tables, lake_uri=shared.pipeline.lake_uri)
    story.assert_equal_spool(shared)

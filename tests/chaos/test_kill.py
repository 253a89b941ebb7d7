"""kill -9, again and again, of ingest and then of the applier, while a random workload goes on over
tables of every identity.

One story in two tests: the lake that the second one compares is made from the spool that survived
the first. Nothing is lost, nothing doubled, nothing acknowledged that was not durable.
"""

import random
from collections.abc import Iterator

import pytest

from tests.chaos import lake, nemesis
from tests.chaos.world import TABLES, World, world
from tests.chaos.writer import Writer
from tests.support.compare import assert_equal
from tests.support.extent import FULL, slow
from tests.support.pipeline import wait_complete
from tools.local.postgres import PostgresServer
from tools.local.sluice import SluiceProcess

pytestmark = pytest.mark.timeout(1800)
"""Each start of Spark takes ten seconds on a quiet machine and a minute on a busy one."""
RANDOM_INGEST_KILLS = 9 if FULL else 3
EACH = 1 if FULL else 4
"""Of so many points one: test_failing_stages fails all of them."""
SETTING_UP = ("setup.published", "setup.slot")
SNAPSHOT = (
    "snapshot.lock.before",
    "snapshot.locked",
    "snapshot.read",
    "snapshot.chunk.before",
    "snapshot.chunk.after",
    "snapshot.taken",
    "snapshot.final.before",
    "snapshot.final.after",
)
"""Reached only while there are tables to read, so they come first, and each leaves some to the
next.
"""
OPENING = "manifest.opened"
"""A process passes it once, when it opens the log."""
ASKED = "catalog.asked"
"""Passed when rows announce columns that nobody has seen."""
LEAVING, CLEANING = "segment.put.after", "leftover.delete.before"
"""A kill at the first leaves an object that nothing names, and only then does the next start pass
the second.
"""
ELSEWHERE = {
    "repair.": "chaos/test_killed_repair.py",
    "gc.": "conformance/test_pruning.py",
    "compact.": "conformance/test_compaction.py",
    "gap.": "e2e/test_gap.py",
    "slot.": "e2e/test_gap.py",
    "forget.": "integration/test_forgetting.py",
    "apply.maintenance.": "spark/test_killed_maintenance.py",
    "apply.checkpoint.": "spark/test_log_upkeep.py",
    # Passed by windows behind others, which a story of few changes may not have.
    "apply.ahead.": "spark/test_next_window.py",
    # Passed by the snapshot of a large table.
    "apply.exchange.": "spark/test_snapshot_parts.py",
    # Passed by executors, not by the applier's process.
    "apply.distributed.": "spark/test_cluster.py",
}
"""Points that are not passed here, by what their names begin with, and who stops there."""


@pytest.fixture(scope="module")
def survivor(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory, seed: int) -> Iterator[World]:
    with world(postgres, tmp_path_factory.mktemp("survivor"), seed=seed) as created:
        yield created


@slow
def test_ingest_killed_at_fault_points_and_at_random_publishes_each_transaction_once(
    survivor: World, seed: int
) -> None:
    choice = random.Random(seed)
    for point in SETTING_UP:
        nemesis.crash(survivor.ingest(faults=f"{point}=crash"), at=point)
    survivor.observe()
    points = _passed("service/sluice")
    assert {point for point in points if point.startswith("snapshot.")} == set(SNAPSHOT)
    others = [point for point in points if point not in (*SETTING_UP, *SNAPSHOT, ASKED, LEAVING, CLEANING)]
    choice.shuffle(others)
    at_random = [nemesis.ingest_moment(choice) for _ in range(RANDOM_INGEST_KILLS)]
    kills: list[str | nemesis.Moment] = [LEAVING, ASKED, *others[::EACH], *at_random]
    choice.shuffle(kills)
    with Writer(survivor.workload, survivor.database.dsn, pause_s=0.02, large_pause_s=1.0) as writer:
        for kill in [*SNAPSHOT, *kills]:
            if isinstance(kill, nemesis.Moment):
                kill.strike(survivor, survivor.ingest)
            else:
                passage = 1 if kill in (*SNAPSHOT, OPENING, ASKED) else choice.randint(1, 5)
                if kill == ASKED:
                    writer.ask(lambda workload: workload.add_column("late"))
                nemesis.crash(survivor.ingest(faults=f"{kill}=crash@{passage}"), at=kill)
            if kill == LEAVING:
                nemesis.crash(survivor.ingest(faults=f"{CLEANING}=crash"), at=CLEANING)
            survivor.check()
    survivor.catch_up()
    survivor.assert_exactly_once()
    assert set(survivor.spool.states) == set(TABLES)
    assert set(survivor.spool.states.values()) == {"live"}
    complete = {table_id for table_id, _ in survivor.spool.complete}
    assert {survivor.spool.tables[table_id].name for table_id in complete} == set(TABLES)
    assert survivor.confirmed() <= survivor.spool.through_lsn
    assert survivor.spool.epoch > RANDOM_INGEST_KILLS
    assert len({status.flush for status in survivor.proxy.statuses}) > RANDOM_INGEST_KILLS, (
        "hardly anything was acknowledged: the oracle saw nothing"
    )


@pytest.mark.skipif(
    not FULL, reason="starts Spark some twenty times: make chaos runs it; test_failing_edges fails the same points"
)
@pytest.mark.timeout(1200)
def test_applier_killed_at_fault_points_and_inside_merges_leaves_the_lake_equal(survivor: World, seed: int) -> None:
    choice = random.Random(seed + 1)
    points = _passed("spark_jobs/sluice_spark")
    points.sort(key="apply.schema.altered".__eq__)
    with survivor.ingest() as ingest:
        with Writer(survivor.workload, survivor.database.dsn, pause_s=0.1, large_pause_s=5.0) as writer:
            survivor.streaming(ingest)
            for point in points:
                if point == "apply.schema.altered":
                    writer.ask(lambda workload: workload.add_column("added", default="it's"))
                nemesis.crash(survivor.applier(faults=f"{point}=crash@{_hit(point, choice)}"), at=point)
                # The oracle follows the log before the applier archives it, which it does after a thousand entries.
                survivor.check()
            # With its children and without them.
            for alone in (False, True):
                nemesis.applier_moment(choice).strike(survivor, survivor.applier, alone=alone)
        position = survivor.workload.position()
        with survivor.applier() as applier:
            wait_complete(survivor.pipeline, position, processes=(ingest, applier))
        _assert_stopped(applier)
    _assert_stopped(ingest)
    survivor.check()
    assert_equal(survivor.database, TABLES, lake_uri=survivor.pipeline.lake_uri)
    lake.assert_markers_grow(survivor.pipeline.directory / "lake", TABLES)


def _passed(package: str) -> list[str]:
    return [point for point in nemesis.points(package) if not point.startswith(tuple(ELSEWHERE))]


def _hit(point: str, choice: random.Random) -> int:
    """At which passage: some places are passed only once by a process."""
    return 1 if point in ("apply.lease.claimed", "apply.schema.altered") else choice.randint(1, 3)


def _assert_stopped(process: SluiceProcess) -> None:
    assert process.status == 0, process.log_tail(40)

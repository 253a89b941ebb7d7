"""Two runners and a statement make one edit: windows of the same seeded history add, change and remove as many rows in
whatever way they are committed, and leave as many in the table. That they are the right rows, with sound statistics
and vectors, is what test_three_ways asks of each way.
"""

import os
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from sluice_spark.lake.commit_way import DIRECT, DISTRIBUTED, MERGE
from tests.spark import pools
from tests.spark.protocol_reader import DeltaFolder
from tests.spark.replays import Replay
from tests.spark.stories import Story
from tests.spark.story_lake import Shape
from tests.support.extent import FULL

FIRST = int(os.environ.get("WAYS_FIRST", "1"))
SEEDS = range(FIRST, FIRST + (int(os.environ.get("WAYS_SEEDS", "2")) if FULL else 1))
_ALONE = ("", "")
"""Nobody else writes to the table."""
_CHANGES = ("Inserted", "Updated", "Deleted")
SHAPES = (
    Shape(
        "an integer key", {"id": pools.BIGINT, "v": pools.INTEGER, "big": pools.STRING, "at": pools.TIMESTAMPS},
        ("id",), then=_ALONE, steps=3,
    ),
    Shape("two columns of a key", {"d": pools.DATES, "x": pools.STRING, "n": pools.MONEY}, ("d", "x"), then=_ALONE),
    Shape(
        "no removals", {"id": pools.BIGINT, "v": pools.INTEGER}, ("id",), publishes="iut", truncates=False,
        then=_ALONE,
    ),
)  # fmt: skip


class Effect(NamedTuple):
    """How many rows a commit wrote and removed, and how many there are afterwards."""

    came: int
    went: int
    there: int


def _effects(replay: Replay) -> dict[int, Effect]:
    """By the entry of the marker. A row that moves to another key is changed, or one goes and another comes where
    executors have both keys in different parts: it is the same to the table.
    """
    table = DeltaFolder(replay.pipeline.path())
    found: dict[int, Effect] = {}
    for version in table.versions():
        actions = table.commit(version)
        markers = [action["txn"] for action in actions if "txn" in action]
        seq = next((one["version"] for one in markers if one["appId"].count("/") == 4), None)
        if seq is None:
            continue
        metrics = next(action["commitInfo"]["operationMetrics"] for action in actions if "commitInfo" in action)
        inserted, updated, deleted = (int(metrics.get(f"numTargetRows{one}", 0)) for one in _CHANGES)
        came = inserted + updated if "numTargetRowsInserted" in metrics else int(metrics.get("numOutputRows", 0))
        files = table.state(version).files
        there = sum(file.stats["numRecords"] - len(file.deleted) for file in files)
        found[seq] = Effect(came, updated + deleted, there)
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "shape", [shape for shape in SHAPES if FULL or shape is SHAPES[0]], ids=lambda shape: shape.name
)
def test_each_way_does_the_same_to_the_rows_of_the_table(
    spark: SparkSession, tmp_path: Path, shape: Shape, seed: int
) -> None:
    found = {}
    for way in (DIRECT, DISTRIBUTED, MERGE):
        replay = Replay(spark, tmp_path / way, Story(shape, seed), way)
        for phase in replay.story.phases:
            replay.phase(phase)
        found[way] = _effects(replay)
    assert len(found[DIRECT]) > 2
    assert any(effect.went for effect in found[DIRECT].values())
    assert found[DIRECT] == found[DISTRIBUTED]
    assert found[DIRECT] == found[MERGE]

"""One meaning, whatever way commits it: the same seeded histories through each way leave tables that hold the same rows
for Spark, delta-rs and a reader of the protocol, and that are sound in everything that readers rely on.

`make test` tells the story QUICK. `make chaos` tells WAYS_SEEDS stories of
every shape in every way, counted up from WAYS_FIRST.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from sluice_spark.lake.commit_way import DIRECT, DISTRIBUTED, MERGE
from tests.spark import pools
from tests.spark.pools import EVERY_KIND, Kind
from tests.spark.protocol_reader import DeltaFolder
from tests.spark.replays import Replay, seq_of
from tests.spark.stories import Story
from tests.spark.story_lake import Added, Shape
from tests.support.extent import FULL, slow

WAYS = (DIRECT, DISTRIBUTED, MERGE)
FIRST = int(os.environ.get("WAYS_FIRST", "1"))
SEEDS = range(FIRST, FIRST + (int(os.environ.get("WAYS_SEEDS", "2")) if FULL else 1))
QUICK = (DIRECT, "every kind")

_PAYLOAD = {"v": pools.INTEGER, "big": pools.STRING, "at": pools.TIMESTAMPS, "n": pools.MONEY, "l": pools.INTEGERS}
_ADDED = (
    Added("added", pools.INTEGER, "7", 7),
    Added("until", pools.TIMESTAMPS, "infinity", pools.Marked("infinity")),
    Added("said", pools.STRING, "it's ${x}", "it's ${x}"),
)


def _one_key(kind: Kind) -> dict[str, Kind]:
    return {"a": pools.STRING, "k": kind, "v": pools.INTEGER, "at": pools.INSTANTS}


SHAPES = (
    Shape(
        "a bigint key", {"id": pools.BIGINT, **_PAYLOAD}, ("id",), added=_ADDED,
        then=("optimize", "vacuum", "purge", ""),
    ),
    Shape("full old rows", {**_PAYLOAD, "id": pools.INTEGER}, ("id",), identity="f", added=_ADDED[:1]),
    Shape(
        "an identity index", {"v": pools.STRING, "i": pools.TIMESTAMPS, "j": pools.SMALLINT}, ("i", "j"), identity="i"
    ),
    Shape(
        "text keys", {"t": pools.STRING, **_PAYLOAD}, ("t",), keys=60, initial=24,
        then=("optimize", "", "zorder", ""),
    ),
    Shape("every kind", {f"c{n}": kind for n, kind in enumerate(EVERY_KIND)} | {"id": pools.UUIDS}, ("id",)),
    Shape(
        "whole rows of every kind", {f"c{n}": kind for n, kind in enumerate(EVERY_KIND)}, identity="f", only_sql=True
    ),
    Shape(
        "few whole rows", {"b": pools.BOOLEAN, "f": pools.DOUBLES, "at": pools.DATES}, identity="f", initial=40,
        only_sql=True,
    ),
    Shape(
        "composite", {"n": pools.MONEY, "x": pools.STRING, "d": pools.DATES, "v": pools.BINARY}, ("d", "x", "n"),
        keys=80,
    ),
    Shape("a decimal key", _one_key(pools.WIDE_DECIMAL), ("k",)),
    Shape("a date key", _one_key(pools.DATES), ("k",)),
    Shape("a timestamp key", _one_key(pools.TIMESTAMPS), ("k",), then=("zorder", "", "")),
    Shape("an instant key", _one_key(pools.INSTANTS), ("k",)),
    Shape("a boolean key", _one_key(pools.BOOLEAN), ("k",), initial=1, keys=2),
    Shape("a bytea key", _one_key(pools.BINARY), ("k",)),
    Shape("a double key", _one_key(pools.DOUBLE), ("k",), only_sql=True),
    Shape("removals that are not sent", {"id": pools.BIGINT, **_PAYLOAD}, ("id",), publishes="iut", truncates=False),
    Shape("no identity", {f"c{n}": kind for n, kind in enumerate(EVERY_KIND)}, identity="n", only_sql=True),
    Shape("a changelog", {"id": pools.BIGINT, "d": pools.DATES, **_PAYLOAD}, ("id", "d"), mode="changelog"),
    Shape(
        "soft deletes", {"id": pools.BIGINT, **_PAYLOAD}, ("id",), mode="soft", added=_ADDED,
        then=("optimize", "vacuum", "purge", ""),
    ),
    Shape("soft deletes with full old rows", {**_PAYLOAD, "id": pools.INTEGER}, ("id",), "f", "soft", added=_ADDED[:1]),
    Shape(
        "soft deletes of composite keys",
        {"n": pools.MONEY, "x": pools.STRING, "d": pools.DATES, "v": pools.BINARY}, ("d", "x", "n"), mode="soft",
        keys=80,
    ),
    Shape(
        "soft deletes in portions", {"id": pools.BIGINT, "v": pools.INTEGER, "u": pools.UUIDS, "big": pools.STRING},
        ("id",), mode="soft", options={"max_memory_bytes": 20_000}, steps=3, changes=120, keys=600, initial=100,
    ),
    Shape(
        "a history", {"id": pools.BIGINT, **_PAYLOAD}, ("id",), mode="history", added=_ADDED,
        then=("optimize", "vacuum", "purge", ""),
    ),
    Shape("a history of full old rows", {**_PAYLOAD, "id": pools.INTEGER}, ("id",), "f", "history", added=_ADDED[:1]),
    Shape("a history of text keys", {"t": pools.STRING, **_PAYLOAD}, ("t",), mode="history", keys=60, initial=24),
    Shape(
        "a history of every kind", {f"c{n}": kind for n, kind in enumerate(EVERY_KIND)} | {"id": pools.UUIDS}, ("id",),
        mode="history",
    ),
    Shape(
        "a history of some columns", {"id": pools.BIGINT, **_PAYLOAD}, ("id",), mode="history", track=("v", "big"),
        then=("", "zorder", ""),
    ),
    Shape(
        "a history in portions", {"id": pools.BIGINT, "v": pools.INTEGER, "u": pools.UUIDS, "big": pools.STRING},
        ("id",), mode="history", options={"max_memory_bytes": 20_000}, steps=3, changes=120, keys=600, initial=100,
    ),
    Shape("no metadata columns", {"id": pools.BIGINT, "v": pools.INTEGER, "t": pools.STRING}, ("id",), metadata=False),
    Shape(
        "sixty columns", {f"c{n}": EVERY_KIND[n % len(EVERY_KIND)] for n in range(59)} | {"id": pools.BIGINT}, ("id",),
        then=("optimize", "", ""),
    ),
    Shape("an empty table", {"id": pools.BIGINT, **_PAYLOAD}, ("id",), initial=0, then=("", "optimize", "vacuum")),
    Shape(
        "many rows in row groups", {"t": pools.STRING, "v": pools.INTEGER, "id": pools.BIGINT}, ("id",),
        initial=1500, keys=3100, changes=150, then=("optimize", "zorder", "", "optimize", ""), truncates=False,
    ),
    Shape(
        "checkpoints", {"id": pools.BIGINT, "v": pools.INTEGER}, ("id",),
        steps=9, changes=4, then=("checkpoints", "optimize", "vacuum", "", "purge", "", ""),
    ),
    Shape(
        "windows in portions", {"id": pools.BIGINT, "v": pools.INTEGER, "u": pools.UUIDS, "at": pools.DATES}, ("id",),
        options={"max_memory_bytes": 20_000}, steps=3, changes=120, keys=600, initial=100,
    ),
)  # fmt: skip


STORIES = [
    pytest.param(way, shape, seed, id=f"{way}-{shape.name.replace(' ', '_')}-{seed}")
    for way in WAYS
    for shape in SHAPES
    for seed in SEEDS
    if FULL or (way, shape.name) == QUICK
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("way", "shape", "seed"), STORIES)
def test_a_history_leaves_the_lake_equal_and_sound_in_every_way(
    spark: SparkSession, tmp_path: Path, way: str, shape: Shape, seed: int
) -> None:
    replay = Replay(spark, tmp_path, Story(shape, seed), way)
    for phase in replay.story.phases:
        replay.phase(phase)
    replay.finish()
    assert replay.ways, "no window was committed"
    if shape.keeps_rows and way != MERGE:
        # A TRUNCATE changes every row, which a statement does.
        assert replay.ways[DIRECT] > replay.ways[MERGE]
    elif way == DIRECT and not shape.only_sql:
        assert set(replay.ways) == {DIRECT}
    elif way == DISTRIBUTED and not shape.only_sql:
        assert replay.said == {DISTRIBUTED}
    elif way == MERGE:
        assert MERGE in replay.ways


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
        if (seq := seq_of(actions)) is None:
            continue
        metrics = next(action["commitInfo"]["operationMetrics"] for action in actions if "commitInfo" in action)
        inserted, updated, deleted = (
            int(metrics.get(f"numTargetRows{one}", 0)) for one in ("Inserted", "Updated", "Deleted")
        )
        came = inserted + updated if "numTargetRowsInserted" in metrics else int(metrics.get("numOutputRows", 0))
        files = table.state(version).files
        there = sum(file.stats["numRecords"] - len(file.deleted) for file in files)
        found[seq] = Effect(came, updated + deleted, there)
    return found


EDITED = [
    pytest.param(replace(shape, then=("", ""), added=(), steps=3), seed, id=f"{shape.name.replace(' ', '_')}-{seed}")
    for shape in SHAPES
    if shape.name in (("a bigint key", "composite", "removals that are not sent") if FULL else ("a bigint key",))
    for seed in SEEDS
]
"""Nobody else writes to the tables."""


@slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("shape", "seed"), EDITED)
def test_each_way_does_the_same_to_the_rows_of_the_table(
    spark: SparkSession, tmp_path: Path, shape: Shape, seed: int
) -> None:
    """Two runners and a statement make one edit: as many rows come, change and go. That they are the right ones is
    what the other test asks.
    """
    found = {}
    for way in WAYS:
        replay = Replay(spark, tmp_path / way, Story(shape, seed), way)
        for phase in replay.story.phases:
            replay.phase(phase)
        found[way] = _effects(replay)
    assert len(found[DIRECT]) > 2
    assert any(effect.went for effect in found[DIRECT].values())
    assert found[DIRECT] == found[DISTRIBUTED]
    assert found[DIRECT] == found[MERGE]

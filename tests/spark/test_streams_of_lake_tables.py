"""Streams of Spark that read lake tables with Delta's own source: whatever the applier and others do with the files
between two batches, each change of a row comes once.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from sluice_spark.lake.commit_way import DIRECT, DISTRIBUTED, MERGE
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline
from tests.spark.model import SCHEMA, row
from tests.spark.windows import Windows
from tests.support.extent import cases, slow

WAYS = (DIRECT, DISTRIBUTED, MERGE)
WINDOWS = 18
"""So many that small files are joined."""


class Stream:
    """A query that is started again for each batch, with its checkpoint. `options` are those of its source."""

    def __init__(self, pipeline: Pipeline, folder: Path, **options: str) -> None:
        self._pipeline, self._folder, self._options = pipeline, folder, options
        self.rows: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        """What came since."""
        found: list[dict[str, Any]] = []
        source = self._pipeline.spark.newSession().readStream.format("delta").options(**self._options)
        frame = source.load(str(self._pipeline.path()))
        query = (
            frame.writeStream.foreachBatch(lambda batch, _: found.extend(one.asDict() for one in batch.collect()))
            .option("checkpointLocation", str(self._folder))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        self.rows += found
        return found


def _windows(pipeline: Pipeline, way: str, kind: str = "mirror") -> Windows:
    pipeline.begin(SCHEMA, *(row(number) for number in range(1, 41)))
    windows = Windows(pipeline, way=way, tables={"public.items": {"targets": [{"kind": kind}]}})
    windows.apply()
    return windows


def _disturbed(pipeline: Pipeline, number: int) -> None:
    others = {4: "OPTIMIZE {t}", 8: "OPTIMIZE {t} ZORDER BY (id)", 12: "VACUUM {t}"}
    if number in others:
        pipeline.sql(others[number])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", cases(WAYS, quick=[]))
def test_a_stream_of_a_changelog_has_each_change_once_though_its_files_are_joined(
    pipeline: Pipeline, tmp_path: Path, way: str
) -> None:
    windows = _windows(pipeline, way, "changelog")
    stream = Stream(pipeline, tmp_path / "stream")
    sent = Counter((number, 0) for number in range(1, 41))
    for number in range(1, WINDOWS + 1):
        windows.change(Change("u", row(number, number)), Change("i", row(100 + number, number)))
        sent.update([(number, number), (100 + number, number)])
        _disturbed(pipeline, number)
        if number % 3 == 0:
            stream.read()
    stream.read()
    assert Counter((one["id"], one["v"]) for one in stream.rows) == sent


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", cases(WAYS, quick=[]))
def test_a_stream_of_the_feed_of_a_mirror_leads_to_its_rows_though_its_files_are_joined(
    pipeline: Pipeline, tmp_path: Path, way: str
) -> None:
    windows = _windows(pipeline, way)
    pipeline.set(enableChangeDataFeed="true")
    stream = Stream(pipeline, tmp_path / "stream", readChangeFeed="true", startingVersion=str(pipeline.version() + 1))
    rows = dict.fromkeys(range(1, 41), 0)
    seen = dict(rows)
    for number in range(1, WINDOWS + 1):
        rows[number] = rows[100 + number] = number
        changes = [Change("u", row(number, number)), Change("i", row(100 + number, number))]
        if number == 10:
            rows.clear()
            changes = [Change("t"), Change("i", row(7, 7))]
            rows[7] = 7
        elif number < 10:
            del rows[number + 30]
            changes.append(Change("d", old={"id": number + 30}))
        else:
            changes = changes[1:]
            del rows[number]
        windows.change(*changes)
        _disturbed(pipeline, number)
        if number % 3 == 0:
            for one in sorted(stream.read(), key=lambda one: (one["_commit_version"], one["_change_type"] != "delete")):
                if one["_change_type"] == "delete":
                    assert seen.pop(one["id"]) == one["v"]
                elif one["_change_type"] == "update_preimage":
                    assert one["id"] in seen
                else:
                    assert (one["id"] in seen) == (one["_change_type"] == "update_postimage")
                    seen[one["id"]] = one["v"]
            assert seen == rows


@slow
@pytest.mark.timeout(600)
def test_a_plain_stream_of_a_mirror_ends_at_a_change_and_one_that_skips_changes_lacks_new_rows(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    windows = _windows(pipeline, DIRECT)
    plain, skipping = (
        Stream(pipeline, tmp_path / "plain"),
        Stream(pipeline, tmp_path / "skip", skipChangeCommits="true"),
    )
    assert len(plain.read()) == len(skipping.read()) == 40
    windows.change(Change("i", row(101)))
    assert [one["id"] for one in plain.read()] == [one["id"] for one in skipping.read()] == [101]
    windows.change(Change("u", row(1, 1)), Change("i", row(102)))
    with pytest.raises(StreamingQueryException, match="DELTA_SOURCE_TABLE_IGNORE_CHANGES"):
        plain.read()
    assert skipping.read() == []


@slow
@pytest.mark.timeout(600)
def test_a_stream_that_paused_for_longer_than_the_log_is_kept_ends_with_an_error(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    windows = _windows(pipeline, DIRECT, "changelog")
    stream = Stream(pipeline, tmp_path / "stream")
    stream.read()
    for number in range(1, 4):
        windows.change(Change("i", row(100 + number, number)))
    pipeline.set(checkpointInterval="1")
    for number in range(4, 7):
        windows.change(Change("i", row(100 + number, number)))
        pipeline.sql("OPTIMIZE {t}")
    for version in range(1, pipeline.version() - 1):
        (pipeline.log() / f"{version:020d}.json").unlink(missing_ok=True)
    with pytest.raises(StreamingQueryException):
        stream.read()

"""The log of a lake table stays short, and no commit leaves it before it was reported."""

import os
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluice.errors import WriterFenced
from sluice_spark.lake.layout import TABLE_PROPERTIES
from sluice_spark.lake.log_cleanup import EVERY_VERSIONS, LogHygiene
from tests.spark import lake
from tests.support.extent import slow

RETENTION = 600.0
NEWEST = EVERY_VERSIONS + 3


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Path:
    """Old commits up to a checkpoint at version 50, and three more."""
    path = tmp_path / "table"
    properties = {**TABLE_PROPERTIES, "delta.checkpointInterval": str(EVERY_VERSIONS)}
    spark.range(5).write.format("delta").options(**properties).save(str(path))
    for number in range(NEWEST):
        spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('n' = '{number}')")
    _age(path, seconds=10 * RETENTION)
    return path


def _age(path: Path, *, seconds: float) -> None:
    """Makes the files older, in the order of their versions."""
    for file in (path / "_delta_log").iterdir():
        if file.name[:20].isdigit():
            at = time.time() - seconds + int(file.name[:20])
            os.utime(file, (at, at))


def _versions(path: Path) -> list[int]:
    return sorted(int(file.stem) for file in (path / "_delta_log").glob("0*.json"))


def _hygiene() -> LogHygiene:
    return LogHygiene(retention_seconds=RETENTION, before_delete=lambda: None)


def test_what_a_reported_checkpoint_replaces_leaves_the_log_and_the_table_stays_whole(
    spark: SparkSession, table: Path
) -> None:
    assert _hygiene().clean(spark, str(table), version=NEWEST, reported=EVERY_VERSIONS)
    assert _versions(table) == list(range(EVERY_VERSIONS, NEWEST + 1))
    assert sorted(row["id"] for row in lake.rows_in(table)) == list(range(5))
    assert lake.version(table) == NEWEST


def test_nothing_leaves_the_log_while_the_checkpoint_is_newer_than_the_last_report(
    spark: SparkSession, table: Path
) -> None:
    hygiene = _hygiene()
    assert not hygiene.clean(spark, str(table), version=NEWEST, reported=EVERY_VERSIONS - 1)
    assert _versions(table) == list(range(NEWEST + 1))
    # It is tried again, not only when the next checkpoint has come.
    assert hygiene.clean(spark, str(table), version=NEWEST, reported=NEWEST)


@slow
def test_what_is_younger_than_the_retention_stays(spark: SparkSession, table: Path) -> None:
    _age(table, seconds=RETENTION / 2)
    assert _hygiene().clean(spark, str(table), version=NEWEST, reported=NEWEST)
    assert _versions(table) == list(range(NEWEST + 1))


def test_a_process_that_may_not_commit_deletes_nothing(spark: SparkSession, table: Path) -> None:
    def fenced() -> None:
        raise WriterFenced("another applier has taken this pipeline over")

    with pytest.raises(WriterFenced):
        LogHygiene(retention_seconds=RETENTION, before_delete=fenced).clean(
            spark, str(table), version=NEWEST, reported=NEWEST
        )
    assert _versions(table) == list(range(NEWEST + 1))

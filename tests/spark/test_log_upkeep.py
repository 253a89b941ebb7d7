"""Checkpoints of lake tables are written beside their windows, their logs stay short, and no commit leaves a log before
it was reported. Other readers find the same table, whoever is killed or fails on the way.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from sluice import faults
from sluice.contract.applied import CHECKPOINT
from sluice.errors import ApplyError, WriterFenced
from sluice.store.opening import open_store
from sluice_spark.lake import layout
from sluice_spark.lake.layout import TABLE_PROPERTIES
from sluice_spark.lake.log_upkeep import LAST, LogUpkeep
from sluice_spark.maintenance import checkpoints
from tests.spark import lake
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline, Running, armed, held, running
from tests.spark.model import ID, SCHEMA, row
from tests.spark.processes import SMALL_JVM, run_applier
from tests.spark.protocol_reader import DeltaFolder
from tests.spark.table_audit import check_checkpoints, said
from tests.support.extent import slow

RETENTION = 600.0
REPORTED = 5
NEWEST = REPORTED + 3
BEFORE, WRITTEN, NAMED = (f"apply.checkpoint.{point}" for point in ("before", "written", "named"))


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> Path:
    """Old commits without a checkpoint."""
    path = tmp_path / "table"
    properties = {**TABLE_PROPERTIES, "delta.checkpointInterval": "1000"}
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


def _checkpoints(path: Path) -> list[int]:
    return sorted(int(file.name[:20]) for file in (path / "_delta_log").glob("0*.checkpoint*.parquet"))


def _named(path: Path) -> int | None:
    """The version of the checkpoint that `_last_checkpoint` names."""
    last = path / "_delta_log" / LAST
    return int(json.loads(last.read_text())["version"]) if last.exists() else None


def _upkeep(spark: SparkSession, path: Path, require_owner: Callable[[], None] = lambda: None) -> LogUpkeep:
    store = open_store(path.parent.as_uri(), options={})
    return LogUpkeep(spark.newSession(), str(path), store=store, folder=f"{path.name}/", require_owner=require_owner)


@pytest.fixture
def upkeep(spark: SparkSession, table: Path) -> LogUpkeep:
    return _upkeep(spark, table)


def test_what_a_reported_checkpoint_replaces_leaves_the_log_and_the_table_stays_whole(
    upkeep: LogUpkeep, table: Path
) -> None:
    assert upkeep.look(NEWEST).checkpoint == 0
    upkeep.name(upkeep.write(REPORTED))
    assert (upkeep.look(NEWEST).checkpoint, upkeep.look(NEWEST).interval) == (REPORTED, 1000)
    assert upkeep.clean(retention_seconds=RETENTION, reported=REPORTED)
    assert _versions(table) == list(range(REPORTED, NEWEST + 1))
    assert sorted(row["id"] for row in lake.rows_in(table)) == list(range(5))
    assert lake.version(table) == NEWEST


def test_nothing_leaves_the_log_while_the_checkpoint_is_newer_than_the_last_report(
    upkeep: LogUpkeep, table: Path
) -> None:
    assert not upkeep.clean(retention_seconds=RETENTION, reported=NEWEST), "there is no checkpoint"
    upkeep.name(upkeep.write(REPORTED))
    assert not upkeep.clean(retention_seconds=RETENTION, reported=REPORTED - 1)
    assert _versions(table) == list(range(NEWEST + 1))
    assert upkeep.clean(retention_seconds=RETENTION, reported=NEWEST)


@slow
def test_what_is_younger_than_the_retention_stays(upkeep: LogUpkeep, table: Path) -> None:
    _age(table, seconds=RETENTION / 2)
    upkeep.name(upkeep.write(REPORTED))
    assert upkeep.clean(retention_seconds=RETENTION, reported=NEWEST)
    assert _versions(table) == list(range(NEWEST + 1))


def test_a_version_that_the_commit_of_a_checkpoint_has_just_replaced_stays(
    spark: SparkSession, upkeep: LogUpkeep, table: Path
) -> None:
    """It was the newest one for the whole retention: boundaries name it that are offered still."""
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('n' = 'new')")
    upkeep.name(upkeep.write(NEWEST + 1))
    assert upkeep.clean(retention_seconds=RETENTION, reported=NEWEST + 1)
    assert sorted(row["id"] for row in lake.rows_in(table, version=NEWEST)) == list(range(5))
    _age(table, seconds=10 * RETENTION)
    assert upkeep.clean(retention_seconds=RETENTION, reported=NEWEST + 1)
    assert _versions(table) == [NEWEST + 1]


@pytest.mark.parametrize(
    "asked",
    [
        ("delta.logRetentionDuration", "interval 40 days"),
        pytest.param(("delta.enableExpiredLogCleanup", "false"), marks=slow),
    ],
)
def test_what_the_table_itself_asks_to_keep_stays(
    spark: SparkSession, upkeep: LogUpkeep, table: Path, asked: tuple[str, str]
) -> None:
    name, value = asked
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('{name}' = '{value}')")
    upkeep.name(upkeep.write(REPORTED))
    assert upkeep.clean(retention_seconds=RETENTION, reported=NEWEST)
    assert _versions(table) == list(range(NEWEST + 2))


def test_a_process_that_may_not_commit_deletes_nothing_and_names_no_checkpoint(
    spark: SparkSession, upkeep: LogUpkeep, table: Path
) -> None:
    def fenced() -> None:
        raise WriterFenced("another applier has taken this pipeline over")

    replaced = _upkeep(spark, table, fenced)
    with pytest.raises(WriterFenced):
        replaced.write(REPORTED)
    written = upkeep.write(REPORTED)
    with pytest.raises(WriterFenced):
        replaced.name(written)
    assert _named(table) is None
    upkeep.name(written)
    with pytest.raises(WriterFenced):
        replaced.clean(retention_seconds=RETENTION, reported=NEWEST)
    assert _versions(table) == list(range(NEWEST + 1))


@slow
@pytest.mark.parametrize("last", [b"", b"{", b'{"version": "x"}', b"[]"])
def test_a_damaged_hint_is_taken_for_none_and_written_anew(upkeep: LogUpkeep, table: Path, last: bytes) -> None:
    upkeep.name(upkeep.write(REPORTED - 1))
    (table / "_delta_log" / LAST).write_bytes(last)
    (table / "_delta_log" / f".{LAST}.crc").unlink(missing_ok=True)
    assert upkeep.look(NEWEST).checkpoint == 0
    upkeep.name(upkeep.write(REPORTED))
    assert _named(table) == REPORTED
    assert lake.version(table) == NEWEST


@pytest.mark.parametrize("named", [NEWEST, NEWEST + 1000])
def test_a_checkpoint_that_is_named_and_gone_is_written_anew_for_readers_that_need_it(
    upkeep: LogUpkeep, table: Path, named: int
) -> None:
    DeltaTable(table).create_checkpoint()
    assert upkeep.look(NEWEST).checkpoint == NEWEST
    for file in (table / "_delta_log").glob("0*.checkpoint*"):
        file.unlink()
    (table / "_delta_log" / LAST).write_text(json.dumps({"version": named, "size": 3}))
    with pytest.raises(Exception, match="_last_checkpoint"):
        lake.rows_in(table)
    state = upkeep.look(NEWEST)
    assert NEWEST - state.checkpoint >= state.interval
    upkeep.name(upkeep.write(NEWEST))
    assert len(lake.rows_in(table)) == 5
    assert upkeep.look(NEWEST).checkpoint == NEWEST


def test_a_checkpoint_does_not_come_into_a_folder_whose_table_was_removed_meanwhile(
    upkeep: LogUpkeep, table: Path
) -> None:
    written = upkeep.write(REPORTED)
    assert (_checkpoints(table), _named(table)) == ([REPORTED], None)
    for file in (table / "_delta_log").glob("*.json"):
        file.unlink()
    with pytest.raises(ApplyError, match="the lake table's log is gone"):
        upkeep.name(written)
    assert (_checkpoints(table), _named(table)) == ([], None)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that are made now need a checkpoint after three to five versions, and failures are tried again at once."""
    monkeypatch.setattr(layout, "CHECKPOINT_VERSIONS", 3)
    monkeypatch.setattr(checkpoints, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(checkpoints, "WAITS_SECONDS", (0.05,))


class Table:
    """A table with windows, one for each change of a row."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.expected = dict.fromkeys(range(100), 0)
        pipeline.begin(SCHEMA, *map(row, self.expected))

    def window(self, work: Running) -> None:
        """One more, until it is in the lake and reported."""
        key = len(self.expected)
        self.expected |= {key: key, key % 100: -key}
        work.takes(self.pipeline.change(Change("i", row(key, key)), Change("u", row(key % 100, -key))))

    def failing(self) -> str:
        """Why checkpoints fail, as reported."""
        return self.pipeline.reported()[ID].maintenance.failing.get(CHECKPOINT, "")

    def rows(self) -> dict[object, object]:
        return {one["id"]: one["v"] for one in self.pipeline.rows()}


@slow
@pytest.mark.usefixtures("often")
def test_windows_go_on_while_a_checkpoint_of_their_table_is_written(pipeline: Pipeline) -> None:
    table, path = Table(pipeline), pipeline.path()
    with held(pipeline.folder / "go", BEFORE) as let_go, running(pipeline, workers=1) as work:
        while not faults.passages(BEFORE):
            table.window(work)
        begun = pipeline.version()
        # Whatever of Delta's it may hold on to is held on to here.
        log = _upkeep(pipeline.spark, path)._newest()
        log.snapshotLock().lock()
        try:
            for _ in range(8):
                table.window(work)
            assert pipeline.version() >= begun + 8
            assert (_checkpoints(path), faults.passages(BEFORE)) == ([], 1), "no commit wrote one"
        finally:
            log.snapshotLock().unlock()
        let_go()
        work.until(lambda: _named(path) is not None, what="the checkpoint is named")
        work.until(lambda: (_named(path) or 0) > begun, what="the next one is named")
    assert table.rows() == table.expected
    check_checkpoints(DeltaFolder(path))


@pytest.mark.usefixtures("often")
def test_other_readers_read_the_checkpoints_without_the_commits_before_them(pipeline: Pipeline) -> None:
    table, path = Table(pipeline), pipeline.path()
    with running(pipeline) as work:
        while len(_checkpoints(path)) < 2:
            table.window(work)
    wanted = table.expected
    newest = _checkpoints(path)[-1]
    assert _named(path) == newest
    whole = DeltaFolder(path).state(newest, checkpoints=False)
    assert any(add.get("deletionVector") for add in whole.adds.values())
    for version in _versions(path):
        if version < newest:
            (path / "_delta_log" / f"{version:020d}.json").unlink()
    assert said(DeltaFolder(path).state(newest)) == said(whole)
    checkpoint = f"read_parquet('{path}/_delta_log/{newest:020d}.checkpoint.parquet')"
    asked = f"SELECT add.path, add.stats, add.deletionVector.cardinality FROM {checkpoint} WHERE add IS NOT NULL"
    read = duckdb.connect().execute(asked).fetchall()
    assert sorted((name, json.loads(stats)["numRecords"], removed) for name, stats, removed in read) == sorted(
        (add["path"], json.loads(add["stats"])["numRecords"], (add.get("deletionVector") or {}).get("cardinality"))
        for add in whole.adds.values()
    )
    assert table.rows() == wanted
    assert DeltaTable(path).transaction_version(next(iter(whole.markers))) is not None
    # The next process finds the table where it stands.
    pipeline.applied()


@slow
@pytest.mark.usefixtures("often")
def test_a_checkpoint_that_fails_is_named_and_tried_again_and_windows_go_on(pipeline: Pipeline) -> None:
    table, path = Table(pipeline), pipeline.path()
    with running(pipeline) as work:
        with armed(f"{BEFORE}=raise:OSError"):
            while not faults.passages(BEFORE):
                table.window(work)
            work.until(lambda: table.failing() != "", what="it is named")
            assert table.failing() == "an unexpected error (OSError)"
            for _ in range(3):
                table.window(work)
            assert _checkpoints(path) == []
        work.until(lambda: _named(path) is not None, what="it is written")
        work.until(lambda: table.failing() == "", what="nothing fails any more")
    assert table.rows() == table.expected


@slow
@pytest.mark.usefixtures("often")
def test_a_checkpoint_that_is_long_overdue_is_a_problem(pipeline: Pipeline) -> None:
    table = Table(pipeline)
    with held(pipeline.folder / "go", BEFORE):
        with running(pipeline) as work:
            while not faults.passages(BEFORE):
                table.window(work)
        assert table.failing() == ""
    with running(pipeline) as work:
        with armed(f"{BEFORE}=raise:StoreUnavailable"):
            for _ in range(5 * checkpoints.OVERDUE):
                table.window(work)
            work.until(lambda: "versions old" in table.failing(), what="it is named")
        work.until(lambda: table.failing() == "", what="it is written")


@slow
@pytest.mark.usefixtures("often")
def test_an_applier_that_ends_with_the_backlog_writes_the_checkpoints_that_are_due(pipeline: Pipeline) -> None:
    table = Table(pipeline)
    for number in range(8):
        pipeline.change(Change("u", row(number, 1)))
        pipeline.apply()
    assert len(_checkpoints(pipeline.path())) >= 1
    assert table.rows() == table.expected | dict.fromkeys(range(8), 1)


@slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("point", [BEFORE, WRITTEN, NAMED])
def test_a_kill_around_a_checkpoint_leaves_the_table_to_every_reader(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    table, path = Table(pipeline), pipeline.path()
    pipeline.apply()
    for name, value in [*(("n", number) for number in range(4)), ("delta.checkpointInterval", 3)]:
        pipeline.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ('{name}' = '{value}')")
    assert (_checkpoints(path), _named(path)) == ([], None)
    monkeypatch.setenv("SLUICE_FAULTS", f"{point}=crash")
    run = run_applier(pipeline.options(once=False, **SMALL_JVM))
    assert run.code == faults.CRASHED, run.output
    assert (_checkpoints(path) != [], _named(path) is not None) == (point != BEFORE, point == NAMED)
    folder = DeltaFolder(path)
    assert said(folder.state()) == said(folder.state(checkpoints=False))
    monkeypatch.delenv("SLUICE_FAULTS")
    newest = folder.versions()[-1]
    pipeline.move()
    with running(pipeline) as work:
        while (_named(pipeline.path()) or 0) <= newest:
            table.window(work)
    assert table.rows() == table.expected
    folder = DeltaFolder(pipeline.path())
    assert said(folder.state()) == said(folder.state(checkpoints=False))

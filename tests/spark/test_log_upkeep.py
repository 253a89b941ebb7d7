"""Checkpoints of lake tables are written beside their windows, their logs stay short, and no commit leaves a log before
it was reported. Other readers find the same table, whoever is killed or fails on the way.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
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
from tests.spark.conftest import Pipeline, running
from tests.spark.model import SCHEMA
from tests.spark.processes import SMALL_JVM, run_applier
from tests.spark.protocol_reader import DeltaFolder, State
from tests.support.extent import slow
from tests.support.pipeline import wait_until

RETENTION = 600.0
REPORTED = 20
NEWEST = REPORTED + 3
BEFORE, WRITTEN, NAMED = (f"apply.checkpoint.{point}" for point in ("before", "written", "named"))


def _row(key: int, v: int = 0) -> dict[str, object]:
    return {"id": key, "v": v, "big": "B", "at": None}


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


def _said(state: State) -> object:
    """All that a log says of a table, as a checkpoint keeps it: it leaves out what nobody needs of removed files."""
    adds = {
        name: {**_without(add, "stats_parsed"), "stats": json.loads(add["stats"])} for name, add in state.adds.items()
    }
    removes = {name: _without(one, "stats", "tags") for name, one in state.removes.items()}
    features = {name: sorted(said) if isinstance(said, list) else said for name, said in state.protocol.items()}
    return adds, removes, state.markers, state.metadata, features


def _without(action: dict[str, object], *names: str) -> dict[str, object]:
    # Whether rows changed is said of the commit alone.
    return {name: value for name, value in action.items() if name not in {*names, "dataChange"}}


def test_what_a_reported_checkpoint_replaces_leaves_the_log_and_the_table_stays_whole(
    spark: SparkSession, table: Path
) -> None:
    upkeep = _upkeep(spark, table)
    assert upkeep.look(NEWEST).checkpoint == 0
    upkeep.name(upkeep.write(REPORTED))
    assert (upkeep.look(NEWEST).checkpoint, upkeep.look(NEWEST).interval) == (REPORTED, 1000)
    assert upkeep.clean(retention_seconds=RETENTION, reported=REPORTED)
    assert _versions(table) == list(range(REPORTED, NEWEST + 1))
    assert sorted(row["id"] for row in lake.rows_in(table)) == list(range(5))
    assert lake.version(table) == NEWEST


def test_nothing_leaves_the_log_while_the_checkpoint_is_newer_than_the_last_report(
    spark: SparkSession, table: Path
) -> None:
    upkeep = _upkeep(spark, table)
    assert not upkeep.clean(retention_seconds=RETENTION, reported=NEWEST), "there is no checkpoint"
    upkeep.name(upkeep.write(REPORTED))
    assert not upkeep.clean(retention_seconds=RETENTION, reported=REPORTED - 1)
    assert _versions(table) == list(range(NEWEST + 1))
    assert upkeep.clean(retention_seconds=RETENTION, reported=NEWEST)


@slow
def test_what_is_younger_than_the_retention_stays(spark: SparkSession, table: Path) -> None:
    _age(table, seconds=RETENTION / 2)
    upkeep = _upkeep(spark, table)
    upkeep.name(upkeep.write(REPORTED))
    assert upkeep.clean(retention_seconds=RETENTION, reported=NEWEST)
    assert _versions(table) == list(range(NEWEST + 1))


def test_a_process_that_may_not_commit_deletes_nothing_and_names_no_checkpoint(
    spark: SparkSession, table: Path
) -> None:
    def fenced() -> None:
        raise WriterFenced("another applier has taken this pipeline over")

    upkeep = _upkeep(spark, table)
    with pytest.raises(WriterFenced):
        _upkeep(spark, table, fenced).write(REPORTED)
    written = upkeep.write(REPORTED)
    with pytest.raises(WriterFenced):
        _upkeep(spark, table, fenced).name(written)
    assert _named(table) is None
    upkeep.name(written)
    with pytest.raises(WriterFenced):
        _upkeep(spark, table, fenced).clean(retention_seconds=RETENTION, reported=NEWEST)
    assert _versions(table) == list(range(NEWEST + 1))


@slow
@pytest.mark.parametrize("last", [b"", b"{", b'{"version": "x"}', b"[]"])
def test_a_damaged_hint_is_taken_for_none_and_written_anew(spark: SparkSession, table: Path, last: bytes) -> None:
    upkeep = _upkeep(spark, table)
    upkeep.name(upkeep.write(REPORTED - 1))
    (table / "_delta_log" / LAST).write_bytes(last)
    (table / "_delta_log" / f".{LAST}.crc").unlink(missing_ok=True)
    assert upkeep.look(NEWEST).checkpoint == 0
    upkeep.name(upkeep.write(REPORTED))
    assert _named(table) == REPORTED
    assert lake.version(table) == NEWEST


def test_a_checkpoint_does_not_come_into_a_folder_whose_table_was_removed_meanwhile(
    spark: SparkSession, table: Path
) -> None:
    upkeep = _upkeep(spark, table)
    written = upkeep.write(REPORTED)
    assert (_checkpoints(table), _named(table)) == ([REPORTED], None)
    for file in (table / "_delta_log").glob("*.json"):
        file.unlink()
    with pytest.raises(ApplyError, match="the lake table's log is gone"):
        upkeep.name(written)
    assert (_checkpoints(table), _named(table)) == ([], None)


@pytest.fixture
def armed() -> Iterator[Callable[[str], None]]:
    yield faults.arm
    faults.arm("")


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
        pipeline.begin(SCHEMA, *map(_row, self.expected))

    def window(self) -> None:
        """One more, until it is in the lake and reported."""
        key = len(self.expected)
        self.expected |= {key: key, key % 100: -key}
        changes = [Change("i", _row(key, key)), Change("u", _row(key % 100, -key))]
        seq = self.pipeline.manifest.transaction(changes, SCHEMA)
        wait_until(lambda: self.reached(seq), what=f"the window of entry {seq}")

    def reached(self, seq: int) -> bool:
        row = self.pipeline.reported().get(SCHEMA.table_id)
        return row is not None and row.through_seq >= seq

    def failing(self) -> str:
        """Why checkpoints fail, as reported."""
        return self.pipeline.reported()[SCHEMA.table_id].maintenance.failing.get(CHECKPOINT, "")

    def rows(self) -> dict[object, object]:
        return {row["id"]: row["v"] for row in self.pipeline.rows()}


@pytest.mark.usefixtures("often")
def test_windows_go_on_while_a_checkpoint_of_their_table_is_written(
    pipeline: Pipeline, armed: Callable[[str], None]
) -> None:
    table, path, let_go = Table(pipeline), pipeline.path(), pipeline.folder / "go"
    armed(f"{BEFORE}=hold:{let_go}")
    with running(pipeline, workers=1) as work:
        while not faults.passages(BEFORE):
            table.window()
        held = lake.version(path)
        # Whatever of Delta's it may hold on to is held on to here.
        log = _upkeep(pipeline.spark, path)._newest()
        log.snapshotLock().lock()
        try:
            for _ in range(8):
                table.window()
            assert lake.version(path) >= held + 8
            assert (_checkpoints(path), faults.passages(BEFORE)) == ([], 1), "no commit wrote one"
        finally:
            log.snapshotLock().unlock()
        let_go.touch()
        wait_until(lambda: _named(path) is not None, what="the checkpoint is named")
        wait_until(lambda: (_named(path) or 0) > held, what="the next one is named")
        assert not work.ended
    assert table.rows() == table.expected
    folder = DeltaFolder(path)
    for version in folder.checkpoints():
        assert _said(folder.state(version)) == _said(folder.state(version, checkpoints=False))


@pytest.mark.usefixtures("often")
def test_other_readers_read_the_checkpoints_without_the_commits_before_them(pipeline: Pipeline) -> None:
    table, path = Table(pipeline), pipeline.path()
    with running(pipeline):
        while len(_checkpoints(path)) < 2:
            table.window()
    wanted = table.expected
    newest = _checkpoints(path)[-1]
    assert _named(path) == newest
    whole = DeltaFolder(path).state(newest, checkpoints=False)
    assert any(add.get("deletionVector") for add in whole.adds.values())
    for version in _versions(path):
        if version < newest:
            (path / "_delta_log" / f"{version:020d}.json").unlink()
    assert _said(DeltaFolder(path).state(newest)) == _said(whole)
    read = (
        duckdb.connect()
        .execute(
            f"SELECT add.path, add.stats, add.deletionVector.cardinality "
            f"FROM read_parquet('{path}/_delta_log/{newest:020d}.checkpoint.parquet') WHERE add IS NOT NULL"
        )
        .fetchall()
    )
    assert sorted((name, json.loads(stats)["numRecords"], removed) for name, stats, removed in read) == sorted(
        (add["path"], json.loads(add["stats"])["numRecords"], (add.get("deletionVector") or {}).get("cardinality"))
        for add in whole.adds.values()
    )
    assert table.rows() == wanted
    assert DeltaTable(path).transaction_version(next(iter(whole.markers))) is not None
    # The next process finds the table where it stands.
    assert pipeline.apply().tables[SCHEMA.table_id].state == "live"


@slow
@pytest.mark.usefixtures("often")
def test_a_checkpoint_that_fails_is_named_and_tried_again_and_windows_go_on(
    pipeline: Pipeline, armed: Callable[[str], None]
) -> None:
    table, path = Table(pipeline), pipeline.path()
    armed(f"{BEFORE}=raise:OSError")
    with running(pipeline) as work:
        while not faults.passages(BEFORE):
            table.window()
        wait_until(lambda: table.failing() != "", what="it is named")
        assert table.failing() == "an unexpected error (OSError)"
        for _ in range(3):
            table.window()
        assert _checkpoints(path) == []
        armed("")
        wait_until(lambda: _named(path) is not None, what="it is written")
        wait_until(lambda: table.failing() == "", what="nothing fails any more")
        assert not work.ended
    assert table.rows() == table.expected


@slow
@pytest.mark.usefixtures("often")
def test_a_checkpoint_that_is_long_overdue_is_a_problem(pipeline: Pipeline, armed: Callable[[str], None]) -> None:
    table, let_go = Table(pipeline), pipeline.folder / "go"
    armed(f"{BEFORE}=hold:{let_go}")
    with running(pipeline):
        while not faults.passages(BEFORE):
            table.window()
    assert table.failing() == ""
    let_go.touch()
    armed(f"{BEFORE}=raise:StoreUnavailable")
    with running(pipeline):
        for _ in range(5 * checkpoints.OVERDUE):
            table.window()
        wait_until(lambda: "versions old" in table.failing(), what="it is named")
        armed("")
        wait_until(lambda: table.failing() == "", what="it is written")


@pytest.mark.usefixtures("often")
def test_an_applier_that_ends_with_the_backlog_writes_the_checkpoints_that_are_due(pipeline: Pipeline) -> None:
    table = Table(pipeline)
    for number in range(8):
        pipeline.manifest.transaction([Change("u", _row(number, 1))], SCHEMA)
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
        pipeline.spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{name}' = '{value}')")
    assert (_checkpoints(path), _named(path)) == ([], None)
    monkeypatch.setenv("SLUICE_FAULTS", f"{point}=crash")
    run = run_applier(pipeline.options(once=False, **SMALL_JVM))
    assert run.code == faults.CRASHED, run.output
    assert (_checkpoints(path) != [], _named(path) is not None) == (point != BEFORE, point == NAMED)
    folder = DeltaFolder(path)
    assert _said(folder.state()) == _said(folder.state(checkpoints=False))
    monkeypatch.delenv("SLUICE_FAULTS")
    newest = folder.versions()[-1]
    pipeline.move()
    with running(pipeline):
        while (_named(pipeline.path()) or 0) <= newest:
            table.window()
    assert table.rows() == table.expected
    folder = DeltaFolder(pipeline.path())
    assert _said(folder.state()) == _said(folder.state(checkpoints=False))

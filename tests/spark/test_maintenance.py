"""Lake tables are kept small between windows, by Delta's own statements, and hold the same rows after it."""

import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from sluice import faults
from sluice.contract import keys
from sluice.contract.applied import Complete, Maintenance
from sluice.errors import ApplyError, UnsupportedChange, WriterFenced
from sluice.manifest.newest_record import newest_log
from sluice_spark.lake.commit_way import MERGE
from sluice_spark.lake.examined_version import ExaminedVersion
from sluice_spark.lake.layout import TABLE_PROPERTIES
from sluice_spark.lake.table import LakeTable
from sluice_spark.maintenance import planner, scheduler
from sluice_spark.maintenance.planner import Turn
from sluice_spark.maintenance.tasks import SETTINGS, Call, Interrupted, Outcome, TableTurn
from sluice_spark.session import private
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline, armed, running
from tests.spark.lake import rows_in, version
from tests.spark.model import ID, SCHEMA, row
from tests.support.extent import slow

HOUR = 3600.0
DAY = 24 * HOUR
AFTER = "apply.maintenance.after"
_RUN = ("retention_seconds", "held_since")


def _orphan(folder: Path, name: str, *, age: float) -> Path:
    """A file that a killed commit left so long ago."""
    file = folder / name
    file.write_bytes(b"left")
    os.utime(file, (time.time() - age,) * 2)
    return file


class Lake:
    """A table of 300 rows in many files, a third of them removed, outside of any pipeline."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.folder = pipeline.folder / "table"
        self.session = private(pipeline.spark)
        for name, value in SETTINGS.items():
            self.session.conf.set(name, value)
        frame = pipeline.spark.range(300).repartition(planner.FILES_OF_A_TIER + 4)
        frame.write.format("delta").options(**TABLE_PROPERTIES).save(str(self.folder))
        pipeline.spark.sql(f"DELETE FROM delta.`{self.folder}` WHERE id % 3 = 0")
        self.table = LakeTable(self.session, str(self.folder), app_id="none", before_commit=lambda: None)
        self.table.place = ExaminedVersion(self.table.recorded().version)

    def turn(self, turn: Turn, *, others: tuple[str, ...] = (), **given: Any) -> Outcome:
        call = given.pop("call", None) or Call(self.session)
        work = TableTurn(self.table, call, before_commit=given.get("before_commit", lambda: None), others=others)
        return work.run(turn, **{"retention_seconds": HOUR, **{name: given[name] for name in given if name in _RUN}})

    def rows(self) -> set[int]:
        return {row["id"] for row in rows_in(self.folder)}


def test_files_are_joined_rows_purged_and_orphans_removed_and_the_rows_stay(pipeline: Pipeline) -> None:
    lake = Lake(pipeline)
    before = lake.rows()
    old = [_orphan(lake.folder, name, age=2 * HOUR) for name in ("part-1.parquet", "deletion_vector_1.bin")]
    young = _orphan(lake.folder, "part-2.parquet", age=HOUR / 2)
    done = lake.turn(Turn.TIDY)
    assert done.runs["purge"].files_removed == planner.FILES_OF_A_TIER + 4
    assert len(DeltaTable(lake.folder).file_uris()) == 1
    assert done.place.version == version(lake.folder)
    assert lake.turn(Turn.TIDY).runs == {}
    for other in (f"{lake.folder}/spool/", f"{lake.folder}/"):
        with pytest.raises(ApplyError, match="VACUUM would remove it"):
            lake.turn(Turn.VACUUM, others=(other,))
    (lake.folder / "mine").mkdir()
    with pytest.raises(ApplyError, match="VACUUM would empty it"):
        lake.turn(Turn.VACUUM)
    (lake.folder / "mine").rmdir()
    keep = "SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 3 hours')"
    pipeline.spark.sql(f"ALTER TABLE delta.`{lake.folder}` {keep}")
    assert lake.turn(Turn.VACUUM).runs["vacuum"].files_removed == 0
    assert old[0].exists()
    pipeline.spark.sql(f"ALTER TABLE delta.`{lake.folder}` UNSET TBLPROPERTIES ('delta.deletedFileRetentionDuration')")
    vacuumed = lake.turn(Turn.VACUUM).runs["vacuum"]
    assert (vacuumed.files_removed, vacuumed.bytes_removed) == (2, 8)
    assert not any(file.exists() for file in old)
    assert young.exists()
    assert lake.rows() == before
    # A reader of the version before maintenance still finds its files.
    assert {row["id"] for row in rows_in(lake.folder, version=1)} == before


def test_a_lake_table_of_another_pipeline_in_a_folder_of_two_letters_is_not_vacuumed(pipeline: Pipeline) -> None:
    """Delta gives such names to folders of its own data files."""
    lake = Lake(pipeline)
    own = lake.folder / "x7"
    own.mkdir()
    orphan = _orphan(own, "part-1.parquet", age=2 * HOUR)
    other = lake.folder / "eu"
    pipeline.spark.range(3).write.format("delta").save(str(other))
    files = list(other.glob("*.parquet"))
    for file in files:
        os.utime(file, (time.time() - 2 * HOUR,) * 2)
    with pytest.raises(ApplyError, match="VACUUM would empty it"):
        lake.turn(Turn.VACUUM)
    assert all(file.exists() for file in files)
    other.rename(lake.folder.with_name("eu"))
    lake.turn(Turn.VACUUM)
    assert not orphan.exists()


def _age_removals(lake: Lake, *, seconds: float) -> None:
    """As if all files had been removed so long ago, and made long before that."""
    for file in lake.folder.rglob("*"):
        if file.suffix == ".json":
            text = file.read_text()
            file.write_text(re.sub(r'("deletionTimestamp":)(\d+)', lambda found: _earlier(found, seconds), text))
            (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
        elif file.suffix in (".parquet", ".bin"):
            os.utime(file, (time.time() - 10 * seconds,) * 2)
    lake.session._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr, unused-ignore]


def _earlier(found: re.Match[str], seconds: float) -> str:
    return f"{found[1]}{int(found[2]) - int(seconds * 1000)}"


def test_what_was_removed_stays_as_long_as_is_asked_for_though_delta_would_forget_it_earlier(
    pipeline: Pipeline,
) -> None:
    """It would take it for a file that the table never had."""
    lake = Lake(pipeline)
    before = lake.rows()
    assert lake.turn(Turn.TIDY).runs["purge"].files_removed > 0
    _age_removals(lake, seconds=9 * DAY)
    with pytest.raises(ApplyError, match=r"for 168 h .* they must stay for longer"):
        lake.turn(Turn.VACUUM, retention_seconds=40 * DAY)
    lake.turn(Turn.VACUUM, held_since=lambda: time.time() - 10 * DAY)
    assert {row["id"] for row in rows_in(lake.folder, version=1)} == before
    assert lake.turn(Turn.VACUUM, retention_seconds=7 * DAY).runs["vacuum"].files_removed > 0, "nobody asks any more"
    own = "SET TBLPROPERTIES ('delta.deletedFileRetentionDuration' = 'interval 24 hours')"
    pipeline.spark.sql(f"ALTER TABLE delta.`{lake.folder}` {own}")
    with pytest.raises(ApplyError, match=r"for 24 h .* they must stay for longer"):
        lake.turn(Turn.VACUUM, held_since=lambda: time.time() - 2 * DAY)
    assert lake.rows() == before


@slow
def test_a_turn_that_is_called_off_or_may_not_commit_leaves_the_table_as_it_was(pipeline: Pipeline) -> None:
    lake = Lake(pipeline)
    before = version(lake.folder)

    def fenced() -> None:
        raise WriterFenced("another applier has taken this pipeline over")

    for turn in Turn:
        with pytest.raises(WriterFenced):
            lake.turn(turn, before_commit=fenced)
    call = Call(lake.session)

    def call_off() -> None:
        threading.Thread(target=call.call_off).start()
        call.called_off.wait(60)

    # The statement begins when its jobs are called off already.
    with pytest.raises(Interrupted):
        lake.turn(Turn.TIDY, call=call, before_commit=call_off)
    assert version(lake.folder) == before
    assert lake.turn(Turn.TIDY).runs
    call = Call(lake.session)

    def change_rows() -> None:
        pipeline.spark.sql(f"DELETE FROM delta.`{lake.folder}` WHERE id = 1")
        call.called_off.set()

    with pytest.raises(UnsupportedChange, match="DELETE"):
        lake.turn(Turn.VACUUM, call=call, before_commit=change_rows)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables need maintenance after moments, and get it at once."""
    monkeypatch.setattr(planner, "VERSIONS", 3)
    monkeypatch.setattr(planner, "FILES_OF_A_TIER", 4)
    monkeypatch.setattr(planner, "FIRST_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(scheduler, "CHECK_SECONDS", 0.1)


@pytest.mark.usefixtures("eager")
@slow
def test_merged_tables_are_maintained_between_windows_and_stay_equal_to_their_source(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a failure, somebody else's OPTIMIZE and a restart in between."""
    rows = dict.fromkeys(range(20), 0)
    pipeline.begin(SCHEMA, *map(row, rows))
    options: dict[str, Any] = {"way": MERGE, "maintenance_share": 1.0}

    def maintenance() -> Maintenance:
        return pipeline.reported()[ID].maintenance

    with running(pipeline, **options) as work:

        def window() -> None:
            key = 100 + len(rows)
            rows.update({key % 20: key, key: 0})
            work.takes(pipeline.change(Change("u", row(key % 20, key)), Change("i", row(key))))

        with armed(f"{AFTER}=raise:ApplyError@1"):
            while not faults.passages(AFTER):
                window()
            work.until(lambda: "tidy" in maintenance().failing, what="it is named")
            # It may meet our own, which the two of them settle.
            with suppress(Exception):
                pipeline.sql("OPTIMIZE {t}")
            while not maintenance().runs:
                window()
            assert not maintenance().failing
        orphan = _orphan(pipeline.path(), "part-1.parquet", age=2 * HOUR)
        monkeypatch.setattr(planner, "DAY", 0.1)
        work.until(lambda: "vacuum" in maintenance().runs, what="VACUUM")
        monkeypatch.setattr(planner, "DAY", 86_400.0)
    assert orphan.exists(), "it is younger than lake.vacuum_after"
    said, table = pipeline.reported()[ID], DeltaTable(pipeline.path())
    assert (said.state, said.failing, said.delta_version) == ("live", False, table.version())
    assert {one["id"]: one["v"] for one in pipeline.rows()} == rows
    assert len(table.file_uris()) < 2 * planner.FILES_OF_A_TIER
    for key in pipeline.store.list(keys.APPLY_COMPLETE):
        complete = Complete.decode(pipeline.store.get(key))
        assert len(rows_in(pipeline.path(), version=complete.versions["public.items"])) >= 20
    with running(pipeline, **options) as work:
        number = newest_log(pipeline.store).number()
        work.until(lambda: newest_log(pipeline.store).number() > number, what="the next process reports")
    assert maintenance() == said.maintenance

"""A lake that somebody restored from a backup, with and without the reports of the same moment."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from sluice.contract import keys
from sluice.manifest import horizon, pruning
from tests.conformance.test_compaction import compacted, shrink
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline
from tests.spark.model import ID, SCHEMA, named, row
from tests.support.extent import slow

IDLE = named("t7", "20007")
REPORTS = (keys.APPLY_LOG, keys.APPLY_COMPLETE)


class LakeCopy:
    """Of the lake and the reports as they are now, to be restored later."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        shutil.copytree(pipeline.folder / "lake", self._kept / "lake")
        for folder in REPORTS:
            shutil.copytree(pipeline.folder / "spool" / "shop" / folder, self._kept / folder)

    @property
    def _kept(self) -> Path:
        """It moves with the pipeline."""
        return self._pipeline.folder / "copy"

    def restore(self, *, reports: bool) -> None:
        shutil.rmtree(self._pipeline.folder / "lake")
        shutil.copytree(self._kept / "lake", self._pipeline.folder / "lake")
        for folder in REPORTS if reports else ():
            shutil.rmtree(self._pipeline.folder / "spool" / "shop" / folder)
            shutil.copytree(self._kept / folder, self._pipeline.folder / "spool" / "shop" / folder)
        self._pipeline.move()


def _changed(pipeline: Pipeline, first: int) -> None:
    for key in range(first, first + 3):
        pipeline.change(Change("i", row(key)), schema=SCHEMA)
    pipeline.change(Change("u", row(1, first)), schema=SCHEMA)
    pipeline.change(Change("d", old={"id": first}), schema=SCHEMA)


@pytest.mark.parametrize(
    "target",
    [{"kind": "mirror"}, {"kind": "changelog"}, {"kind": "history"}],
    ids=["mirror", "changelog", "history"],
)
def test_a_lake_restored_with_its_reports_catches_up_from_the_spool(pipeline: Pipeline, target: dict[str, Any]) -> None:
    pipeline.begin(SCHEMA, row(1))
    _changed(pipeline, 10)
    pipeline.applied(target=target)
    kept = LakeCopy(pipeline)
    _changed(pipeline, 20)
    pipeline.applied(target=target)
    wanted = pipeline.rows(metadata=True)
    kept.restore(reports=False)
    assert "somebody else restored" in pipeline.applied(target=target, state="stale").reason
    kept.restore(reports=True)
    pipeline.applied(target=target)
    assert pipeline.rows(metadata=True) == wanted


@slow
def test_a_table_whose_entries_were_pruned_since_the_copy_is_stale_by_name_and_the_others_catch_up(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrink(monkeypatch.setattr)
    for schema in (SCHEMA, IDLE):
        pipeline.begin(schema, row(1))
    _changed(pipeline, 10)
    pipeline.apply()
    kept = LakeCopy(pipeline)
    for first in range(20, 60, 3):
        pipeline.change(Change("i", row(first)), schema=IDLE)
    pipeline.apply()
    compacted(pipeline.store, pipeline.manifest.seq)
    pruning.carry_out(pipeline.store, pruning.plan(pipeline.store, keep_seconds=0.0))
    assert horizon.floor_seq(pipeline.store) > 15
    kept.restore(reports=True)
    tables = pipeline.apply().tables
    assert tables[IDLE.table_id].state == "stale"
    assert "were pruned" in tables[IDLE.table_id].reason


@slow
def test_without_reports_a_table_that_did_not_change_since_entries_were_pruned_is_stale(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marker of an idle table is as old as its last change."""
    shrink(monkeypatch.setattr)
    for schema in (SCHEMA, IDLE):
        pipeline.begin(schema, row(1))
    for first in range(10, 40, 3):
        _changed(pipeline, first)
    pipeline.apply()
    compacted(pipeline.store, pipeline.manifest.seq)
    pruning.carry_out(pipeline.store, pruning.plan(pipeline.store, keep_seconds=0.0))
    assert horizon.floor_seq(pipeline.store) > 8
    for folder in REPORTS:
        shutil.rmtree(pipeline.folder / "spool" / "shop" / folder)
    pipeline.move()
    tables = pipeline.apply().tables
    assert (tables[ID].state, tables[IDLE.table_id].state) == ("live", "stale")

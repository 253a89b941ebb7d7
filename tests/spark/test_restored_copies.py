"""An older copy of the spool was restored, or one whose parts are of several moments: nothing that the lake or the
reports have of lost entries is taken for what comes again under their numbers.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.contract.applied import AppliedTable
from sluice.contract.chunks import ENDLESS
from sluice.contract.schema import ColumnSchema, TableSchema
from sluice.errors import ApplyError, ManifestCorrupt
from sluice.manifest import horizon, pruning
from sluice.manifest.newest_record import newest_log
from sluice.manifest.reader import identity
from sluice.store.opening import open_store
from sluice_lake import Lake, WaitTimedOut
from sluice_spark.lake.table import LakeTable
from tests.conformance.test_compaction import compacted, shrink
from tests.spark.changes import INT4, TEXT, Change, Manifest, column
from tests.spark.conftest import Pipeline, Running, running
from tests.spark.model import ID, SCHEMA, named, row
from tests.support.extent import cases, slow

JOINS, IDLE = named("t1", "20001"), named("t7", "20007")
WHOLE, WITHOUT_REPORTS, OLDER = "all of it", "without its reports", "older than its reports"


class SpoolCopy:
    """Of the spool as it is now, to be restored later."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline, self._kept = pipeline, pipeline.folder / "copy"
        shutil.copytree(pipeline.folder / "spool", self._kept)
        self._manifest: Manifest = copy(pipeline.manifest)

    def restore(self, what: str = WHOLE) -> None:
        spool: Path = self._pipeline.folder / "spool"
        if what != WHOLE:
            (reports,) = self._kept.rglob("apply/log")
            shutil.rmtree(reports)
            reports.mkdir()
            if what == OLDER:
                (spool / reports.relative_to(self._kept)).replace(reports)
        shutil.rmtree(spool)
        self._kept.rename(spool)
        self._pipeline.store = open_store(f"file://{spool}", prefix="shop/", options={})
        self._pipeline.manifest = self._manifest
        self._manifest.store = self._pipeline.store


def copied(pipeline: Pipeline, *schemas: TableSchema) -> SpoolCopy:
    """A copy behind the snapshots of these tables, which have row 1."""
    for schema in schemas:
        pipeline.begin(schema, row(1))
    pipeline.apply()
    return SpoolCopy(pipeline)


def insert(pipeline: Pipeline, *keys: int, schema: TableSchema = SCHEMA) -> int:
    """An entry for each; the last one."""
    return [pipeline.change(Change("i", row(key)), schema=schema) for key in keys][-1]


@contextmanager
def _started(pipeline: Pipeline) -> Iterator[Running]:
    """An applier that has examined every table."""
    before = newest_log(pipeline.store).number()
    with running(pipeline) as work:
        work.until(lambda: newest_log(pipeline.store).number() > before, what="the applier has reported")
        yield work


def _equal_or_stale(pipeline: Pipeline, wanted: list[int], schema: TableSchema = SCHEMA) -> None:
    reported, found = pipeline.reported()[schema.table_id], pipeline.keys(schema.table_name)
    assert reported.state == "stale" or found == wanted, (reported.state, reported.reason, found, wanted)


def test_a_table_that_joins_again_under_a_running_applier_after_an_older_spool_was_restored_misses_nothing(
    pipeline: Pipeline,
) -> None:
    """It was new in the entries that are lost: the lake has it, the manifest does not yet when the applier starts."""
    kept = copied(pipeline, SCHEMA)
    pipeline.begin(JOINS, row(1))
    insert(pipeline, *range(2, 12), schema=JOINS)
    pipeline.apply()
    kept.restore()
    with _started(pipeline) as work:
        # Its snapshot as of now has other rows, and changes follow.
        pipeline.begin(JOINS, row(1), row(50))
        work.takes(insert(pipeline, 51, schema=JOINS), table_id=JOINS.table_id)
    _equal_or_stale(pipeline, [1, 50, 51], JOINS)


@slow
def test_a_resync_under_a_running_applier_after_an_older_spool_was_restored_brings_the_rows(pipeline: Pipeline) -> None:
    """The lost entries had a resync as well: the number of the generation comes again."""
    kept = copied(pipeline, SCHEMA)
    pipeline.begin(SCHEMA, row(1), generation=2)
    insert(pipeline, *range(2, 12))
    pipeline.apply()
    kept.restore()
    with _started(pipeline) as work:
        # The lake table has versions that the restored reports do not know: it is stale already.
        work.says(lambda table: table.state == "stale", "the table is stale")
        pipeline.begin(SCHEMA, row(1), row(50), generation=2)
        last = insert(pipeline, 51)
        work.says(
            lambda table: table.generation == 2 and (table.state == "stale" or table.through_seq >= last),
            "the resync has ended",
        )
    _equal_or_stale(pipeline, [1, 50, 51])


def _next(*columns: ColumnSchema) -> TableSchema:
    return replace(SCHEMA, version=2, columns=(*SCHEMA.columns, *columns))


A = column("a", 6, TEXT, missing="old")


@pytest.mark.parametrize(
    "again",
    [
        pytest.param(_next(A, column("b", 7, INT4, missing="7")), id="one more column", marks=slow),
        pytest.param(_next(column("c", 6, TEXT, missing="new")), id="another name"),
    ],
)
def test_a_shape_of_lost_entries_that_no_row_followed_is_not_taken_for_the_one_that_comes_again(
    pipeline: Pipeline, again: TableSchema
) -> None:
    """Columns came in lost entries: their commit names no entry."""
    kept = copied(pipeline, SCHEMA)
    pipeline.evolve(_next(A))
    pipeline.apply()
    kept.restore()
    pipeline.evolve(again)
    values: dict[str, Any] = {one.name: 9 if one.name == "b" else one.missing for one in again.columns[4:]}
    pipeline.change(Change("i", row(2, **values)))
    reported = pipeline.apply().tables[ID]
    found = sorted((r["id"], *((n, r.get(n)) for n in values)) for r in pipeline.rows())
    defaults = {one.name: one.missing if one.name != "b" else 7 for one in again.columns[4:]}
    wanted = [(1, *defaults.items()), (2, *values.items())]
    assert reported.state == "stale" or reported.failing or found == wanted, (reported.state, found, wanted)


@slow
def test_parts_of_a_snapshot_from_lost_entries_are_not_taken_for_those_that_come_again(pipeline: Pipeline) -> None:
    """They are as of another moment."""
    pipeline.manifest.table(SCHEMA)
    pipeline.manifest.chunk([row(1)], SCHEMA, (0, 8))
    pipeline.apply()
    kept = SpoolCopy(pipeline)
    pipeline.manifest.chunk([row(2)], SCHEMA, (8, 16))
    pipeline.manifest.chunk([row(3)], SCHEMA, (16, 24))
    pipeline.apply()
    kept.restore()
    manifest = pipeline.manifest
    pipeline.change(Change("u", row(2, v=5)), Change("i", row(9)))
    manifest.chunk([row(2, v=5), row(9)], SCHEMA, (8, 16))
    manifest.chunk([row(3)], SCHEMA, (16, ENDLESS))
    manifest.finish(SCHEMA)
    manifest.table(SCHEMA, state="live", new=False)
    reported = pipeline.apply().tables[ID]
    found = sorted((one["id"], one["v"]) for one in pipeline.rows())
    wanted = [(1, 0), (2, 5), (3, 0), (9, 0)]
    assert reported.state == "stale" or found == wanted, (reported.state, reported.reason, found, wanted)


@slow
def test_a_lake_table_that_cannot_be_read_at_the_start_skips_nothing_when_it_can_be_read_again(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is beyond the end of the spool, which nobody looks for then."""
    kept = copied(pipeline, SCHEMA)
    insert(pipeline, *range(2, 12))
    pipeline.apply()
    kept.restore()
    with monkeypatch.context() as patch:

        def away(*_: object) -> None:
            patch.undo()
            raise ApplyError("the store of the lake does not answer")

        patch.setattr(LakeTable, "find", away)
        with _started(pipeline) as work:
            work.takes(insert(pipeline, 50, 51, 52))
    _equal_or_stale(pipeline, [1, 50, 51, 52])


def went_on(pipeline: Pipeline, *keys: int) -> None:
    """Rows of `items`, each applied at once."""
    for key in keys:
        insert(pipeline, key)
        pipeline.apply()


def restored(pipeline: Pipeline) -> AppliedTable:
    """What is said of `items`, which has what an older copy of the spool does not have."""
    reported = pipeline.applied(state="stale")
    assert "an older copy of the spool was restored" in reported.reason
    return reported


@slow
def test_a_lake_table_beyond_the_end_of_a_restored_spool_is_stale_and_skips_nothing(pipeline: Pipeline) -> None:
    """The numbers that were lost come again, for other changes."""
    kept = copied(pipeline, SCHEMA)
    went_on(pipeline, 2, 3)
    kept.restore()
    restored(pipeline)
    insert(pipeline, 7, 8, 9)
    restored(pipeline)


@pytest.mark.parametrize("what", cases([WHOLE, WITHOUT_REPORTS, OLDER], quick=[WHOLE]))
def test_a_lake_table_with_entries_of_a_log_that_went_on_elsewhere_is_stale(pipeline: Pipeline, what: str) -> None:
    """The applier starts once the manifest has passed the numbers that the lake has: they are of other changes."""
    kept = copied(pipeline, SCHEMA, IDLE)
    went_on(pipeline, 2, 3)
    kept.restore(what)
    insert(pipeline, 2, schema=IDLE)
    insert(pipeline, 8, 9, 10)
    restored(pipeline)
    # What was only reported of the lost entries is not believed: the one that came in its place is applied.
    assert pipeline.reported()[IDLE.table_id].state == "live"
    assert pipeline.keys("t7") == [1, 2]


@slow
def test_pruning_by_a_report_of_another_manifest_deletes_nothing_that_is_not_applied(pipeline: Pipeline) -> None:
    """The store was restored object by object: the reports are newer than the entries."""
    kept = copied(pipeline, SCHEMA, IDLE)
    went_on(pipeline, 2, 3)
    kept.restore(OLDER)
    insert(pipeline, 2, schema=IDLE)
    insert(pipeline, 8, 9, 10)
    # `sluice spool gc --retention until_applied --yes`, before the applier is started.
    with suppress(ManifestCorrupt):
        pruning.carry_out(pipeline.store, pruning.plan(pipeline.store, keep_seconds=0.0))
    with suppress(ApplyError):
        pipeline.apply()
    reported = pipeline.reported()[IDLE.table_id]
    assert reported.state == "live", reported.reason
    assert pipeline.keys("t7") == [1, 2]


@slow
def test_a_wait_for_a_position_that_comes_again_does_not_take_a_boundary_of_lost_entries(pipeline: Pipeline) -> None:
    """The new primary lacks the end of the log, and the copy was taken before it."""
    kept = copied(pipeline, SCHEMA, JOINS)
    insert(pipeline, *range(2, 8))
    lost = pipeline.manifest.lsn
    pipeline.apply()
    kept.restore()
    insert(pipeline, 50, schema=JOINS)
    pipeline.apply()
    lake = Lake(f"file://{pipeline.folder}/lake", pipeline="shop")
    with pytest.raises(WaitTimedOut):
        lake.wait_for(lost, 0.5, manifest=lambda: identity(pipeline.store))
    reached = lake.wait_for(pipeline.manifest.lsn, 0.5, manifest=lambda: identity(pipeline.store))
    assert (reached.lsn, dict(reached.left_out)) == (pipeline.manifest.lsn, {"public.items": "stale"})


@slow
@pytest.mark.parametrize("what", [WHOLE, OLDER])
def test_an_idle_table_whose_entries_were_pruned_before_the_copy_stays_live_behind_it(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    shrink(monkeypatch.setattr)
    for schema in (SCHEMA, IDLE):
        pipeline.begin(schema, row(1))
    insert(pipeline, *range(2, 30))
    pipeline.apply()
    compacted(pipeline.store, pipeline.manifest.seq)
    pruning.carry_out(pipeline.store, pruning.plan(pipeline.store, keep_seconds=0.0))
    assert horizon.floor_seq(pipeline.store) > 8
    kept = SpoolCopy(pipeline)
    went_on(pipeline, 50, 51)
    kept.restore(what)
    insert(pipeline, 60, 61, 62)
    tables = pipeline.apply().tables
    assert tables[ID].state == "stale"
    assert tables[IDLE.table_id].state == "live", tables[IDLE.table_id].reason

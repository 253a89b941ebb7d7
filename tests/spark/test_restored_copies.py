"""An older copy of the spool was restored, or one whose parts are of several moments: nothing that the lake or the
reports have of lost entries is taken for what comes again under their numbers.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.contract.chunks import ENDLESS, BlockRange
from sluice.contract.entries import Snapshot
from sluice.contract.schema import TableSchema
from sluice.errors import ApplyError, ManifestCorrupt
from sluice.manifest import horizon, pruning
from sluice.manifest.newest_record import newest_log
from sluice.manifest.reader import identity
from sluice.store.opening import open_store
from sluice_lake import Lake, WaitTimedOut
from sluice_spark.lake.table import LakeTable
from tests.conformance.test_compaction import compacted, shrink
from tests.spark.changes import INT4, TEXT, Change, Manifest, column
from tests.spark.conftest import Pipeline, running
from tests.spark.model import SCHEMA
from tests.support.pipeline import wait_until


def _row(key: int, **more: object) -> dict[str, object]:
    return {"id": key, "v": 0, "big": "B", "at": None, **more}


def _named(number: int) -> TableSchema:
    return replace(SCHEMA, table_id=str(20_000 + number), table_name=f"t{number}")


class SpoolCopy:
    """Of the spool as it is now, to be restored later."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline, self._kept = pipeline, pipeline.folder / "copy"
        shutil.copytree(pipeline.folder / "spool", self._kept)
        self._manifest: Manifest = copy(pipeline.manifest)

    def restore(self) -> None:
        spool: Path = self._pipeline.folder / "spool"
        shutil.rmtree(spool)
        self._kept.rename(spool)
        self._pipeline.store = open_store(f"file://{spool}", prefix="shop/", options={})
        self._pipeline.manifest = self._manifest
        self._manifest.store = self._pipeline.store


def _ids(pipeline: Pipeline, table: str) -> list[int]:
    return sorted(int(str(row["id"])) for row in pipeline.rows(table))


def _until(pipeline: Pipeline, key: str, seq: int) -> None:
    def there() -> bool:
        row = pipeline.reported().get(key)
        return row is not None and (row.state == "stale" or row.through_seq >= seq)

    wait_until(there, what=f"{key} is applied through {seq}")


@contextmanager
def _started(pipeline: Pipeline) -> Iterator[None]:
    """An applier that has examined every table."""
    before = newest_log(pipeline.store).number()
    with running(pipeline):
        wait_until(lambda: newest_log(pipeline.store).number() > before, what="the applier has reported")
        yield


def _equal_or_stale(pipeline: Pipeline, schema: TableSchema, wanted: list[int]) -> None:
    row = pipeline.reported()[schema.table_id]
    found = _ids(pipeline, schema.table_name)
    assert row.state == "stale" or found == wanted, (row.state, row.reason, found, wanted)


def test_a_table_that_joins_again_under_a_running_applier_after_an_older_spool_was_restored_misses_nothing(
    pipeline: Pipeline,
) -> None:
    """It was new in the entries that are lost: the lake has it, the manifest does not yet when the applier starts."""
    joins = _named(1)
    pipeline.begin(SCHEMA, _row(1))
    pipeline.apply()
    kept = SpoolCopy(pipeline)
    pipeline.begin(joins, _row(1))
    for key in range(2, 12):
        pipeline.manifest.transaction([Change("i", _row(key))], joins)
    pipeline.apply()
    kept.restore()
    with _started(pipeline):
        # Its snapshot as of now has other rows, and changes follow.
        pipeline.begin(joins, _row(1), _row(50))
        seq = pipeline.manifest.transaction([Change("i", _row(51))], joins)
        _until(pipeline, joins.table_id, seq)
    _equal_or_stale(pipeline, joins, [1, 50, 51])


def test_a_resync_under_a_running_applier_after_an_older_spool_was_restored_brings_the_rows(pipeline: Pipeline) -> None:
    """The lost entries had a resync as well: the number of the generation comes again."""
    pipeline.begin(SCHEMA, _row(1))
    pipeline.apply()
    kept = SpoolCopy(pipeline)
    pipeline.begin(SCHEMA, _row(1), generation=2)
    for key in range(2, 12):
        pipeline.manifest.transaction([Change("i", _row(key))], SCHEMA)
    pipeline.apply()
    kept.restore()
    with _started(pipeline):
        pipeline.begin(SCHEMA, _row(1), _row(50), generation=2)
        seq = pipeline.manifest.transaction([Change("i", _row(51))], SCHEMA)
        _until(pipeline, SCHEMA.table_id, seq)
    _equal_or_stale(pipeline, SCHEMA, [1, 50, 51])


def _next(*columns: object) -> TableSchema:
    return replace(SCHEMA, version=2, columns=(*SCHEMA.columns, *columns))  # type: ignore[arg-type]


@pytest.mark.parametrize("comes", ["one more column", "another name"])
def test_a_shape_of_lost_entries_that_no_row_followed_is_not_taken_for_the_one_that_comes_again(
    pipeline: Pipeline, comes: str
) -> None:
    """Columns came in lost entries: their commit names no entry."""
    lost = _next(column("a", 6, TEXT, missing="old"))
    again = {
        "one more column": _next(column("a", 6, TEXT, missing="old"), column("b", 7, INT4, missing="7")),
        "another name": _next(column("c", 6, TEXT, missing="new")),
    }[comes]
    pipeline.begin(SCHEMA, _row(1))
    pipeline.apply()
    kept = SpoolCopy(pipeline)
    pipeline.manifest.table(lost, state="live")
    pipeline.apply()
    kept.restore()
    pipeline.manifest.table(again, state="live")
    values = {one.name: one.missing for one in again.columns[4:]} | ({"b": 9} if comes == "one more column" else {})
    pipeline.manifest.transaction([Change("i", _row(2, **values))], again)
    row = pipeline.apply().tables[SCHEMA.table_id]
    found = sorted((r["id"], *((n, r.get(n)) for n in values)) for r in pipeline.rows())
    defaults = {one.name: one.missing if one.name != "b" else 7 for one in again.columns[4:]}
    wanted = [(1, *defaults.items()), (2, *values.items())]
    assert row.state == "stale" or row.failing or found == wanted, (row.state, row.reason, found, wanted)


def _chunk(pipeline: Pipeline, rows: list[dict[str, object]], blocks: tuple[int, int]) -> None:
    manifest = pipeline.manifest
    changes = [Change("i", row, lsn=manifest.lsn, ordinal=place) for place, row in enumerate(rows)]
    manifest.append(
        Snapshot(
            "16385",
            1,
            1,
            manifest.lsn,
            (manifest.segment(changes, SCHEMA),),
            final=False,
            relfilenode=1,
            fingerprint='{"publishes": "iudt"}',
            relations=("1",) if blocks[0] == 0 else (),
            ranges=(BlockRange("1", *blocks),),
        )
    )


def test_parts_of_a_snapshot_from_lost_entries_are_not_taken_for_those_that_come_again(pipeline: Pipeline) -> None:
    """They are as of another moment."""
    pipeline.manifest.table(SCHEMA)
    _chunk(pipeline, [_row(1)], (0, 8))
    pipeline.apply()
    kept = SpoolCopy(pipeline)
    _chunk(pipeline, [_row(2)], (8, 16))
    _chunk(pipeline, [_row(3)], (16, 24))
    pipeline.apply()
    kept.restore()
    manifest = pipeline.manifest
    manifest.transaction([Change("u", _row(2, v=5)), Change("i", _row(9))], SCHEMA)
    _chunk(pipeline, [_row(2, v=5), _row(9)], (8, 16))
    _chunk(pipeline, [_row(3)], (16, ENDLESS))
    moment = manifest.lsn
    manifest.append(Snapshot("16385", 1, 1, moment, (), final=True, relfilenode=1, fingerprint='{"publishes": "iudt"}'))
    manifest.table(SCHEMA, state="live", new=False)
    row = pipeline.apply().tables[SCHEMA.table_id]
    found = sorted((int(str(r["id"])), r["v"]) for r in pipeline.rows())
    wanted = [(1, 0), (2, 5), (3, 0), (9, 0)]
    assert row.state == "stale" or found == wanted, (row.state, row.reason, found, wanted)


def test_a_lake_table_that_cannot_be_read_at_the_start_skips_nothing_when_it_can_be_read_again(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is beyond the end of the spool, which nobody looks for then."""
    pipeline.begin(SCHEMA, _row(1))
    pipeline.apply()
    kept = SpoolCopy(pipeline)
    for key in range(2, 12):
        pipeline.manifest.transaction([Change("i", _row(key))], SCHEMA)
    pipeline.apply()
    kept.restore()
    with monkeypatch.context() as patch:

        def away(*_: object) -> None:
            patch.undo()
            raise ApplyError("the store of the lake does not answer")

        patch.setattr(LakeTable, "find", away)
        with _started(pipeline):
            for key in (50, 51, 52):
                seq = pipeline.manifest.transaction([Change("i", _row(key))], SCHEMA)
            _until(pipeline, SCHEMA.table_id, seq)
    _equal_or_stale(pipeline, SCHEMA, [1, 50, 51, 52])


def test_pruning_by_a_report_of_another_manifest_deletes_nothing_that_is_not_applied(pipeline: Pipeline) -> None:
    """The store was restored object by object: the reports are newer than the entries, as in test_start."""
    spool, copied, idle = pipeline.folder / "spool", pipeline.folder / "copy", _named(7)
    pipeline.begin(SCHEMA, _row(1))
    pipeline.begin(idle, _row(1))
    pipeline.apply()
    kept = SpoolCopy(pipeline)
    for key in (2, 3):
        pipeline.manifest.transaction([Change("i", _row(key))], SCHEMA)
        pipeline.apply()
    (reports,) = copied.rglob("apply/log")
    shutil.rmtree(reports)
    (spool / reports.relative_to(copied)).replace(reports)
    kept.restore()
    for key, schema in ((2, idle), (8, SCHEMA), (9, SCHEMA), (10, SCHEMA)):
        pipeline.manifest.transaction([Change("i", _row(key))], schema)
    # `sluice spool gc --retention until_applied --yes`, before the applier is started.
    with suppress(ManifestCorrupt):
        pruning.carry_out(pipeline.store, pruning.plan(pipeline.store, keep_seconds=0.0))
    with suppress(ApplyError):
        pipeline.apply()
    row = pipeline.reported()[idle.table_id]
    assert row.state == "live", (row.state, row.reason)
    assert _ids(pipeline, "t7") == [1, 2]


def test_a_wait_for_a_position_that_comes_again_does_not_take_a_boundary_of_lost_entries(pipeline: Pipeline) -> None:
    """The new primary lacks the end of the log, and the copy was taken before it."""
    pipeline.begin(SCHEMA, _row(1))
    pipeline.begin(_named(1), _row(1))
    pipeline.apply()
    kept = SpoolCopy(pipeline)
    for key in range(2, 8):
        pipeline.manifest.transaction([Change("i", _row(key))], SCHEMA)
    lost = pipeline.manifest.lsn
    pipeline.apply()
    kept.restore()
    pipeline.manifest.transaction([Change("i", _row(50))], _named(1))
    pipeline.apply()
    lake = Lake(f"file://{pipeline.folder}/lake", pipeline="shop")
    with pytest.raises(WaitTimedOut):
        lake.wait_for(lost, 0.5, manifest=lambda: identity(pipeline.store))
    reached = lake.wait_for(pipeline.manifest.lsn, 0.5, manifest=lambda: identity(pipeline.store))
    assert (reached.lsn, dict(reached.left_out)) == (pipeline.manifest.lsn, {"public.items": "stale"})


@pytest.mark.parametrize("restored", ["all of it", "older than its reports"])
def test_an_idle_table_whose_entries_were_pruned_before_the_copy_stays_live_behind_it(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, restored: str
) -> None:
    shrink(monkeypatch.setattr)
    idle = _named(7)
    pipeline.begin(SCHEMA, _row(1))
    pipeline.begin(idle, _row(1))
    for key in range(2, 30):
        pipeline.manifest.transaction([Change("i", _row(key))], SCHEMA)
    pipeline.apply()
    compacted(pipeline.store, pipeline.manifest.seq)
    pruning.carry_out(pipeline.store, pruning.plan(pipeline.store, keep_seconds=0.0))
    assert horizon.floor_seq(pipeline.store) > 8
    kept, spool, copied = SpoolCopy(pipeline), pipeline.folder / "spool", pipeline.folder / "copy"
    for key in (50, 51):
        pipeline.manifest.transaction([Change("i", _row(key))], SCHEMA)
        pipeline.apply()
    if restored == "older than its reports":
        (reports,) = copied.rglob("apply/log")
        shutil.rmtree(reports)
        (spool / reports.relative_to(copied)).replace(reports)
    kept.restore()
    for key in (60, 61, 62):
        pipeline.manifest.transaction([Change("i", _row(key))], SCHEMA)
    tables = pipeline.apply().tables
    assert tables[SCHEMA.table_id].state == "stale"
    assert tables[idle.table_id].state == "live", tables[idle.table_id].reason

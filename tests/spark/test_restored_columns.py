"""An older copy of the spool was restored, and lost entries had changed the columns of a lake table without a row
behind it: what comes again under the number of that shape is not taken for it.
"""

import shutil
from dataclasses import replace
from typing import Any

import pytest

from sluice.contract.schema import TableSchema
from sluice.manifest import pruning
from tests.conformance.test_compaction import compacted, shrink
from tests.spark import lake
from tests.spark.changes import INT4, TEXT, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.spark.model import ID, named, row
from tests.spark.test_kept_columns import FIRST, _exchanged, _values
from tests.spark.test_kept_rows import HISTORY, SOFT
from tests.spark.test_restored_copies import SpoolCopy
from tests.support.extent import slow

MIRROR: dict[str, Any] = {"kind": "mirror"}
CHANGELOG: dict[str, Any] = {"kind": "changelog"}


def _added(attnum: int, missing: str) -> TableSchema:
    return table_schema(*FIRST.columns, column("c", attnum, TEXT, missing=missing), version=2)


def _whole() -> TableSchema:
    return table_schema(*FIRST.columns, identity="f", version=2)


def _again() -> TableSchema:
    identity, a, _ = FIRST.columns
    return table_schema(identity, a, column("b", 4, INT4), version=2)


SHAPES = {
    "a default": (_added(4, "lost"), _added(4, "new")),
    "a column": (_added(4, "lost"), _added(5, "new")),
    "names": (_exchanged(2), _whole()),
    "a column that came again": (_again(), _whole()),
    "nothing": (_exchanged(2), None),
}


QUICK = {("a default", "mirror"), ("a column that came again", "history"), ("names", "history")}


@pytest.mark.parametrize(
    ("shapes", "target"),
    [
        pytest.param(shapes, target, id=f"{shapes}-{name}", marks=() if (shapes, name) in QUICK else slow)
        for shapes in SHAPES
        for name, target in (("mirror", MIRROR), ("history", HISTORY))
    ],
)
def test_a_shape_of_lost_entries_is_not_taken_for_another_one_with_the_same_names(
    pipeline: Pipeline, shapes: str, target: dict[str, Any]
) -> None:
    lost, comes = SHAPES[shapes]
    pipeline.begin(FIRST, {"id": 1, "a": 1, "b": 2})
    pipeline.applied(target=target)
    kept = SpoolCopy(pipeline)
    pipeline.manifest.table(lost, state="live")
    pipeline.applied(target=target)
    kept.restore()
    if comes is not None:
        pipeline.manifest.table(comes, state="live")
    more = {"c": "mine"} if comes is not None and comes.column("c") else {}
    pipeline.manifest.transaction([Change("i", {"id": 2, "a": 1, "b": 2, **more})], comes or FIRST)
    said = pipeline.apply(tables={"public.items": {"targets": [target]}}).tables[ID]
    found = sorted((r["id"], r["a"], r["b"], r.get("c")) for r in lake.rows_in(pipeline.path()))
    wanted = [(1, 1, 2, "new" if more else None), (2, 1, 2, "mine" if more else None)]
    assert said.state == "stale" or said.failing or found == wanted, (said.state, said.reason, found)


def _renamed() -> TableSchema:
    identity, a, b = FIRST.columns
    return table_schema(identity, replace(a, name="x"), b, version=2)


@pytest.mark.parametrize(
    ("target", "lost"),
    [
        pytest.param(HISTORY, _exchanged(2), id="history-exchanged", marks=slow),
        pytest.param(HISTORY, _renamed(), id="history-renamed"),
        pytest.param(SOFT, _exchanged(2), id="soft-exchanged"),
        pytest.param(SOFT, _renamed(), id="soft-renamed", marks=slow),
    ],
)
def test_a_resync_behind_a_restored_copy_takes_no_names_of_lost_entries_for_those_that_it_knows(
    pipeline: Pipeline, target: dict[str, Any], lost: TableSchema
) -> None:
    """No version of the manifest has the columns that the lake table has, though one may have their names. Row 2 is
    kept as it was: the source has it no more.
    """
    pipeline.begin(FIRST, {"id": 1, "a": 1, "b": 2}, {"id": 2, "a": 1, "b": 2})
    pipeline.applied(target=target)
    kept = SpoolCopy(pipeline)
    pipeline.manifest.table(lost, state="live")
    pipeline.applied(target=target)
    kept.restore()
    pipeline.begin_again(FIRST, {"id": 1, "a": 1, "b": 2})
    said = pipeline.apply(tables={"public.items": {"targets": [target]}}).tables[ID]
    assert said.state == "stale" or (2, 1, 2) in _values(pipeline), (said.state, _values(pipeline))


@slow
def test_a_shape_that_is_the_same_again_is_followed(pipeline: Pipeline) -> None:
    pipeline.begin(FIRST, {"id": 1, "a": 1, "b": 2})
    pipeline.applied(target=MIRROR)
    kept = SpoolCopy(pipeline)
    pipeline.manifest.table(_added(4, "same"), state="live")
    pipeline.applied(target=MIRROR)
    kept.restore()
    again = replace(_added(4, "same"), replica_identity="d")
    pipeline.manifest.table(again, state="live")
    pipeline.manifest.transaction([Change("i", {"id": 2, "a": 1, "b": 2, "c": "mine"})], again)
    pipeline.applied(target=MIRROR)
    found = sorted((r["id"], r["c"]) for r in lake.rows_in(pipeline.path()))
    assert found == [(1, "same"), (2, "mine")]


@slow
def test_a_shape_of_lost_entries_is_found_where_the_reports_are_newer_than_the_entries(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table had nothing for so long that its entries are pruned, and then its columns changed."""
    shrink(monkeypatch.setattr)
    pipeline.begin(FIRST, {"id": 1, "a": 1, "b": 2})
    busy = named("t7", "20007")
    pipeline.begin(busy, row(1))
    for key in range(2, 30):
        pipeline.manifest.transaction([Change("i", row(key))], busy)
    pipeline.apply()
    compacted(pipeline.store, pipeline.manifest.seq)
    pruning.carry_out(pipeline.store, pruning.plan(pipeline.store, keep_seconds=0.0))
    kept, spool, copied = SpoolCopy(pipeline), pipeline.folder / "spool", pipeline.folder / "copy"
    pipeline.manifest.table(_added(4, "lost"), state="live")
    pipeline.apply()
    (reports,) = copied.rglob("apply/log")
    shutil.rmtree(reports)
    (spool / reports.relative_to(copied)).replace(reports)
    kept.restore()
    pipeline.manifest.table(_added(4, "new"), state="live")
    pipeline.manifest.transaction([Change("i", {"id": 2, "a": 1, "b": 2, "c": "mine"})], _added(4, "new"))
    said = pipeline.apply().tables[ID]
    found = sorted((r["id"], r.get("c")) for r in lake.rows_in(pipeline.path()))
    assert said.state == "stale" or found == [(1, "new"), (2, "mine")], (said.state, said.reason, found)

"""Which columns a lake table that keeps its rows has when it is read again: the newest word of its log is not always
about the rows that stay.
"""

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice.contract.entries import Progress
from sluice.contract.schema import TableSchema
from sluice_spark.lake.commits import Write
from sluice_spark.lake.table import LakeTable
from sluice_spark.session import private
from tests.spark import lake
from tests.spark.changes import INT4, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.spark.test_kept_rows import HISTORY, SOFT, _apply
from tests.spark.test_restored_copies import SpoolCopy

FIRST = table_schema(column("id", 1, INT4, key=True), column("a", 2, INT4), column("b", 3, INT4))


def _exchanged(version: int) -> TableSchema:
    identity, a, b = FIRST.columns
    return table_schema(identity, replace(a, name="b"), replace(b, name="a"), version=version)


@pytest.mark.parametrize("target", [HISTORY, SOFT], ids=["history", "soft"])
def test_columns_that_exchanged_their_names_while_somebody_else_changed_the_table_keep_their_values(
    pipeline: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, target: dict[str, Any]
) -> None:
    """The table is written anew for the exchange, on top of a foreign commit that nobody had looked at: what is kept
    is from before both.
    """
    target = {**target, "layout": {"properties": (("delta.columnMapping.mode", "none"),)}}
    pipeline.begin(FIRST, {"id": 1, "a": 1, "b": 2}, {"id": 2, "a": 1, "b": 2})
    _apply(pipeline, target)
    commit, foreign, done = LakeTable.commit, private(spark), list[object]()

    def late(self: LakeTable, change: Any) -> None:
        if not done and isinstance(change, Write):
            done.append(foreign.sql(f"UPDATE delta.`{pipeline.path()}` SET a = a WHERE id = 1"))
        commit(self, change)

    monkeypatch.setattr(LakeTable, "commit", late)
    after = _exchanged(2)
    pipeline.manifest.table(after, state="live")
    pipeline.manifest.transaction([Change("u", {"id": 1, "a": 2, "b": 5})], after)
    _apply(pipeline, target, state="stale")
    assert done
    _resync(pipeline, after, {"id": 1, "a": 2, "b": 5})
    state, found = _read(pipeline, target)
    # Row 2 was always: 1 in attribute 2 ("b" now), 2 in attribute 3 ("a" now).
    assert state == "stale" or (2, 2, 1) in found, found


@pytest.mark.parametrize("target", [HISTORY, SOFT], ids=["history", "soft"])
def test_columns_of_lost_entries_are_not_taken_for_those_of_versions_that_have_their_numbers_now(
    pipeline: Pipeline, target: dict[str, Any]
) -> None:
    """An older copy of the spool is restored. The lost entries had seen a name in between, those that come do not."""
    identity, a, b = FIRST.columns
    pipeline.begin(FIRST, {"id": 1, "a": 1, "b": 2}, {"id": 2, "a": 1, "b": 2})
    _apply(pipeline, target)
    kept = SpoolCopy(pipeline)
    between = table_schema(identity, replace(a, name="x"), b, version=2)
    pipeline.manifest.table(between, state="live")
    pipeline.manifest.table(_exchanged(3), state="live")
    pipeline.manifest.transaction([Change("u", {"id": 1, "a": 2, "b": 5})], _exchanged(3))
    _apply(pipeline, target)
    assert (2, 2, 1) in _rows(pipeline)
    kept.restore()
    pipeline.manifest.table(_exchanged(2), state="live")
    pipeline.manifest.table(replace(FIRST, version=3), state="live")
    _apply(pipeline, target, state="stale")
    _resync(pipeline, replace(FIRST, version=3), {"id": 1, "a": 5, "b": 2})
    state, found = _read(pipeline, target)
    # 1 in attribute 2, which is "a" again.
    assert state == "stale" or (2, 1, 2) in found, found


def _resync(pipeline: Pipeline, schema: TableSchema, *rows: dict[str, Any], generation: int = 2) -> None:
    manifest = pipeline.manifest
    manifest.append(Progress(), through_lsn=manifest.lsn + 40)
    manifest.table(schema, generation=generation, new=False)
    manifest.snapshot(list(rows), schema, generation=generation)
    manifest.table(schema, state="live", generation=generation, new=False)


def _rows(pipeline: Pipeline) -> list[tuple[Any, ...]]:
    return sorted((one["id"], one["a"], one["b"]) for one in lake.rows_in(pipeline.path(), metadata=True))


def _read(pipeline: Pipeline, target: dict[str, Any]) -> tuple[str, list[tuple[Any, ...]]]:
    """The state of the lake table when everything was applied, and its rows."""
    row = pipeline.apply(tables={"public.items": {"targets": [target]}}).tables["16385"]
    return str(row.state), _rows(pipeline)


@pytest.mark.parametrize("target", [HISTORY, SOFT], ids=["history", "soft"])
def test_a_table_in_which_a_column_came_again_is_read_again_as_often_as_is_asked_for(
    pipeline: Pipeline, target: dict[str, Any]
) -> None:
    """The second time the generation before has the columns of its snapshot, and no step of its own led to them."""
    identity, a, _ = FIRST.columns
    pipeline.begin(FIRST, {"id": 1, "a": 1, "b": 2}, {"id": 2, "a": 1, "b": 2})
    _apply(pipeline, target)
    again = table_schema(identity, a, column("b", 4, INT4), version=2)
    pipeline.manifest.table(again, state="live")
    pipeline.manifest.transaction([Change("u", {"id": 1, "a": 1, "b": 7})], again)
    _apply(pipeline, target)
    for generation in (2, 3):
        _resync(pipeline, again, {"id": 1, "a": 1, "b": 7}, generation=generation)
        _apply(pipeline, target)

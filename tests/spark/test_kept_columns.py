"""Which columns a lake table that keeps its rows has when it is read again: the newest word of its log is not always
about the rows that stay.
"""

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice.contract.schema import TableSchema
from sluice_spark.lake.changes_to_commit import Write
from sluice_spark.lake.table import LakeTable
from sluice_spark.session import private
from tests.spark.changes import INT4, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.spark.model import ID
from tests.spark.test_kept_rows import keeping
from tests.spark.test_restored_copies import SpoolCopy
from tests.support.extent import slow

pytestmark = slow

FIRST = table_schema(column("id", 1, INT4, key=True), column("a", 2, INT4), column("b", 3, INT4))
CHANGED = Change("u", {"id": 1, "a": 2, "b": 5})


def _exchanged(version: int) -> TableSchema:
    identity, a, b = FIRST.columns
    return table_schema(identity, replace(a, name="b"), replace(b, name="a"), version=version)


def _values(pipeline: Pipeline) -> list[tuple[Any, ...]]:
    return sorted((one["id"], one["a"], one["b"]) for one in pipeline.rows(metadata=True))


def _begin(pipeline: Pipeline, target: dict[str, Any]) -> None:
    pipeline.begin(FIRST, {"id": 1, "a": 1, "b": 2}, {"id": 2, "a": 1, "b": 2})
    pipeline.applied(target=target)


def _has_or_is_stale(pipeline: Pipeline, target: dict[str, Any], row: tuple[int, int, int]) -> None:
    """When everything was applied."""
    state = pipeline.apply(tables={"public.items": {"targets": [target]}}).tables[ID].state
    found = _values(pipeline)
    assert state == "stale" or row in found, found


@keeping
def test_columns_that_exchanged_their_names_while_somebody_else_changed_the_table_keep_their_values(
    pipeline: Pipeline, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, target: dict[str, Any]
) -> None:
    """The table is written anew for the exchange, on top of a foreign commit that nobody had looked at: what is kept
    is from before both.
    """
    target = {**target, "layout": {"properties": (("delta.columnMapping.mode", "none"),)}}
    _begin(pipeline, target)
    commit, foreign, done = LakeTable.commit, private(spark), list[object]()

    def late(self: LakeTable, change: Any) -> None:
        if not done and isinstance(change, Write):
            done.append(foreign.sql(f"UPDATE delta.`{pipeline.path()}` SET a = a WHERE id = 1"))
        commit(self, change)

    monkeypatch.setattr(LakeTable, "commit", late)
    pipeline.evolve(_exchanged(2))
    pipeline.change(replace(CHANGED))
    pipeline.applied(target=target, state="stale")
    assert done
    pipeline.begin_again(_exchanged(2), CHANGED.values)
    # Row 2 was always: 1 in attribute 2 ("b" now), 2 in attribute 3 ("a" now).
    _has_or_is_stale(pipeline, target, (2, 2, 1))


@keeping
def test_columns_of_lost_entries_are_not_taken_for_those_of_versions_that_have_their_numbers_now(
    pipeline: Pipeline, target: dict[str, Any]
) -> None:
    """An older copy of the spool is restored. The lost entries had seen a name in between, those that come do not."""
    identity, a, b = FIRST.columns
    _begin(pipeline, target)
    kept = SpoolCopy(pipeline)
    pipeline.evolve(table_schema(identity, replace(a, name="x"), b, version=2))
    pipeline.evolve(_exchanged(3))
    pipeline.change(replace(CHANGED))
    pipeline.applied(target=target)
    assert (2, 2, 1) in _values(pipeline)
    kept.restore()
    pipeline.evolve(_exchanged(2))
    pipeline.evolve(replace(FIRST, version=3))
    pipeline.applied(target=target, state="stale")
    pipeline.begin_again(replace(FIRST, version=3), {"id": 1, "a": 5, "b": 2})
    # 1 in attribute 2, which is "a" again.
    _has_or_is_stale(pipeline, target, (2, 1, 2))


@keeping
def test_a_table_in_which_a_column_came_again_is_read_again_as_often_as_is_asked_for(
    pipeline: Pipeline, target: dict[str, Any]
) -> None:
    """The second time the generation before has the columns of its snapshot, and no step of its own led to them."""
    identity, a, _ = FIRST.columns
    _begin(pipeline, target)
    again = table_schema(identity, a, column("b", 4, INT4), version=2)
    pipeline.evolve(again)
    pipeline.change(Change("u", {"id": 1, "a": 1, "b": 7}))
    pipeline.applied(target=target)
    for generation in (2, 3):
        pipeline.begin_again(again, {"id": 1, "a": 1, "b": 7}, generation=generation)
        pipeline.applied(target=target)

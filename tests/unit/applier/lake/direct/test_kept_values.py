"""A value that the source did not send is the lake's own. Marked texts and other types: tests/spark/test_three_ways."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from sluice.contract import envelope
from sluice.errors import UnsupportedChange
from sluice_spark.fold.fold import KEEP
from sluice_spark.lake.direct.kept_values import Old, with_kept_values
from sluice_spark.lake.layout import read_layout
from sluice_spark.lake.plan import MergePlan
from tests.spark.changes import INT8, MAP, TEXT, column, table_schema
from tests.unit.applier.lake.test_layout import MAP as DELTA_MAP
from tests.unit.applier.lake.test_layout import delta_field, delta_schema

SCHEMA = table_schema(column("id", 1, INT8, key=True), column("big", 2, TEXT))
KINDS = {"id": "long", "big": "string", envelope.SPECIAL: DELTA_MAP}
LAYOUT = read_layout(
    delta_schema(*(delta_field(*kind, physical=f"col-{kind[0]}", number=at) for at, kind in enumerate(KINDS.items()))),
    properties={"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"},
    partitions=[],
    features=[],
)


def _columns(texts: Sequence[str | None], *, prefix: str = "") -> dict[str, pa.Array]:
    return {f"{prefix}big": pa.array(texts, pa.string()), f"{prefix}{envelope.SPECIAL}": pa.nulls(len(texts), MAP)}


def _window(*texts: str | None) -> pa.Table:
    """Rows 1, 2, ... with these texts, of which None was not sent."""
    count, unsent = len(texts), [text is None for text in texts]
    flags = {f"{KEEP}1": pa.array([False] * count), f"{KEEP}2": pa.array(unsent)}
    return pa.table({"id": pa.array(range(1, count + 1), pa.int64()), **_columns(texts), **flags})


def _old(*texts: str | None, at: Sequence[int] = (0,), by: Sequence[int] = (0,), without: str = "") -> Old:
    """A data file of which the rows `at` these positions are replaced `by` these rows of the window."""
    stored = pa.table(_columns(texts, prefix="col-"))

    def read(names: list[str]) -> pa.Table:
        return stored.select([name for name in names if name != without])

    return read, np.array(at, dtype=np.int64), np.array(by, dtype=np.int64)


def _merged(window: pa.Table, *old: Old) -> list[str | None]:
    plan = MergePlan(SCHEMA, SCHEMA.columns[1:], (envelope.SPECIAL,), deletes=False, upserts=True, unmatched=False)
    found: list[str | None] = with_kept_values(window, list(old), plan, LAYOUT)["big"].to_pylist()
    return found


def test_unsent_values_come_from_the_rows_that_are_replaced_in_any_file_and_order() -> None:
    first = _old("not this", "three", at=[1], by=[2])
    second = _old("two", "one", "four", at=[1, 0, 2], by=[0, 1, 3])
    assert _merged(_window("new", None, None, None), first, second) == ["new", "two", "three", "four"]


@pytest.mark.parametrize(
    ("file", "kept"),
    [(_old("x"), "x"), (_old(None), None), (_old("x", without="col-big"), None)],
    ids=["a value", "a null", "a file older than its column"],
)
def test_what_the_replaced_row_has_is_kept(file: Old, kept: str | None) -> None:
    assert _merged(_window(None), file) == [kept]


def test_a_value_without_a_row_to_keep_it_from_stops_the_table() -> None:
    for old in ([], [_old("other", by=[1])]):
        with pytest.raises(UnsupportedChange, match="no row to keep it from"):
            _merged(_window(None, "sent"), *old)

"""A value that the source did not send is the lake's own, its marked text included."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sluice.contract import envelope
from sluice.errors import UnsupportedChange
from sluice_spark.fold.fold import KEEP
from sluice_spark.fold.row_identity import special_rows
from sluice_spark.lake.direct.kept_values import Old, with_kept_values
from sluice_spark.lake.layout import read_layout
from sluice_spark.lake.plan import MergePlan
from tests.spark.changes import INT4_ARRAY, INT8, MAP, TEXT, TIMESTAMP, column, table_schema
from tests.unit.applier.lake.test_layout import MAP as DELTA_MAP
from tests.unit.applier.lake.test_layout import delta_array, delta_field, delta_schema

SCHEMA = table_schema(
    column("id", 1, INT8, key=True),
    column("big", 2, TEXT),
    column("list", 3, INT4_ARRAY),
    column("at", 4, TIMESTAMP),
)
KINDS: dict[str, Any] = {"id": "long", "big": "string", "list": delta_array("integer"), "at": "timestamp_ntz"}
KINDS[envelope.SPECIAL] = DELTA_MAP
LAYOUT = read_layout(
    delta_schema(*(delta_field(*kind, physical=f"col-{kind[0]}", number=at) for at, kind in enumerate(KINDS.items()))),
    properties={"delta.enableDeletionVectors": "true", "delta.columnMapping.mode": "name"},
    partitions=[],
    features=[],
)
AT = datetime.fromisoformat("2026-07-01T12:00:00")


TYPES = {"big": pa.string(), "list": pa.list_(pa.int32()), "at": pa.timestamp("us")}


def _columns(rows: Sequence[dict[str, Any]], *, prefix: str = "") -> dict[str, pa.Array]:
    arrays = {f"{prefix}{name}": pa.array([row.get(name) for row in rows], kind) for name, kind in TYPES.items()}
    marks = pa.array([list(row.get("special", {}).items()) or None for row in rows], MAP)
    return arrays | {f"{prefix}{envelope.SPECIAL}": marks}


def _window(*rows: dict[str, Any]) -> pa.Table:
    """`keep` names the columns that were not sent."""
    arrays = {"id": pa.array([row["id"] for row in rows], pa.int64()), **_columns(rows)}
    for item in SCHEMA.columns:
        arrays[f"{KEEP}{item.attnum}"] = pa.array([item.name in row.get("keep", ()) for row in rows], pa.bool_())
    return pa.table(arrays)


def _old(rows: list[dict[str, Any]], positions: list[int], ordinals: list[int], *, without: str = "") -> Old:
    """A data file: rows `positions` of it are replaced by the window's rows `ordinals`."""
    stored = pa.table(_columns(rows, prefix="col-"))

    def read(names: list[str]) -> pa.Table:
        return stored.select([name for name in names if name != without])

    return read, np.array(positions, dtype=np.int64), np.array(ordinals, dtype=np.int64)


def _merged(window: pa.Table, old: list[Old], *kept: str) -> pa.Table:
    columns = tuple(item for item in SCHEMA.columns if item.name in kept)
    plan = MergePlan(SCHEMA, columns, (envelope.SPECIAL,), deletes=False, upserts=True, unmatched=False)
    return with_kept_values(window, old, plan, LAYOUT)


def test_unsent_values_come_from_the_rows_that_are_replaced_in_any_file_and_order() -> None:
    window = _window(
        {"id": 1, "big": "new", "list": [7]},
        {"id": 2, "keep": ("big",), "list": [8]},
        {"id": 3, "keep": ("big", "list")},
        {"id": 4, "big": None, "list": None},
    )
    first = _old([{"big": "not this"}, {"big": "three", "list": [1, None]}], [1], [2])
    second = _old([{"big": "two", "list": [2]}, {"big": "one"}], [1, 0], [0, 1])
    found = _merged(window, [first, second], "big", "list")
    assert found["big"].to_pylist() == ["new", "two", "three", None]
    assert found["list"].to_pylist() == [[7], [8], [1, None], None]
    assert found["id"].to_pylist() == [1, 2, 3, 4]


@pytest.mark.parametrize("file", [_old([{}], [0], [0]), _old([{"big": "x"}], [0], [0], without="col-big")])
def test_a_null_and_what_a_file_older_than_its_column_holds_is_kept_as_null(file: Old) -> None:
    assert _merged(_window({"id": 1, "keep": ("big",)}), [file], "big")["big"].to_pylist() == [None]


def test_a_value_without_a_row_to_keep_it_from_stops_the_table() -> None:
    window = _window({"id": 1, "keep": ("big",)}, {"id": 2, "big": "sent"})
    for old in ([], [_old([{"big": "other"}], [0], [1])]):
        with pytest.raises(UnsupportedChange, match="no row to keep it from"):
            _merged(window, old, "big")


def test_a_marked_text_is_kept_with_its_column_and_only_with_it() -> None:
    window = _window(
        {"id": 1, "keep": ("at",), "special": {"big": "marked now"}},
        {"id": 2, "keep": ("at",)},
        {"id": 3, "at": AT},
        {"id": 4, "special": {"at": "-infinity"}},
    )
    file = _old(
        [
            {"special": {"at": "infinity", "big": "of the old row"}},
            {"at": AT, "special": {"big": "of the old row"}},
            {"special": {"at": "infinity"}},
            {"at": AT},
        ],
        [0, 1, 2, 3],
        [0, 1, 2, 3],
    )
    found = _merged(window, [file], "at")
    assert found["at"].to_pylist() == [None, AT, AT, None]
    assert special_rows(found[envelope.SPECIAL]) == {
        0: {"big": "marked now", "at": "infinity"},
        3: {"at": "-infinity"},
    }

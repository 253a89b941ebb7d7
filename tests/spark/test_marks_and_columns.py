"""Columns change their names and places, and marked values stay with theirs in every version of the lake table that a
reader can open, not in the newest one only.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from sluice_spark.lake.commit_way import DIRECT, MERGE
from tests.spark.changes import INT4, TEXT, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.spark.lake import rows_in
from tests.support.extent import cases

DATE = 1082
ID = column("id", 1, INT4, key=True)
Row = Mapping[str, Any]


def _shown(rows: list[dict[str, Any]]) -> list[Row]:
    return sorted(({name: str(value) for name, value in row.items()} for row in rows), key=lambda row: int(row["id"]))


@pytest.mark.parametrize("way", cases([DIRECT, MERGE], quick=[DIRECT]))
def test_every_version_has_the_marks_of_its_own_columns(pipeline: Pipeline, way: str) -> None:
    first = table_schema(ID, column("a", 2, DATE), column("b", 3, DATE), column("v", 4, INT4))
    exchanged = replace(first, version=2, columns=(ID, column("b", 2, DATE), column("a", 3, DATE), first.columns[3]))
    # What was `a` first is gone, and the other one has its name; a third one has marks in older rows from the start.
    moved = table_schema(
        ID, column("b", 3, DATE), first.columns[3], column("a", 5, DATE, missing="-infinity"),
        column("t", 6, TEXT, missing="text"), version=3,
    )  # fmt: skip
    pipeline.begin(first)
    rows = [
        Change("i", {"id": 1, "v": 1}, special={"a": "infinity", "b": "4713-01-01 BC"}),
        Change("i", {"id": 2, "v": 1}, special={"a": "infinity"}),
        Change("i", {"id": 3, "v": 1}, special={"b": "-infinity"}),
    ]
    states = [[{"id": n, "a": a, "b": b, "v": 1} for n, a, b in _ROWS]]
    pipeline.change(*rows)
    pipeline.applied(way=way)
    filled = pipeline.version()

    pipeline.evolve(exchanged)
    pipeline.change(Change("u", {"id": 3, "v": 2}, special={"a": "-infinity"}))
    states.append([{"id": n, "b": a, "a": b, "v": 1} for n, a, b in _ROWS])
    states.append([{"id": n, "b": a, "a": b, "v": 2 if n == 3 else 1} for n, a, b in _ROWS])
    assert pipeline.applied(way=way).reason == ""

    pipeline.evolve(moved)
    pipeline.change(Change("d", old={"id": 2}))
    now = [{"id": n, "b": b, "v": 2 if n == 3 else 1, "a": "-infinity", "t": "text"} for n, _, b in _ROWS]
    states += [now, [row for row in now if row["id"] != 2]]
    assert pipeline.applied(way=way).reason == ""

    expected = [_shown(state) for state in states]
    place = 0
    for number in range(filled, pipeline.version() + 1):
        found = _shown(rows_in(pipeline.path(), version=number))
        assert found in expected[place:], f"version {number} is no state of the source: {found}"
        place = expected.index(found, place)
    assert place == len(expected) - 1


_ROWS = [(1, "infinity", "4713-01-01 BC"), (2, "infinity", None), (3, None, "-infinity")]


@pytest.mark.parametrize("way", cases([DIRECT, MERGE], quick=[]))
def test_every_version_of_a_changelog_has_the_marks_of_its_own_columns(pipeline: Pipeline, way: str) -> None:
    first = table_schema(ID, column("a", 2, DATE), column("b", 3, DATE), identity="f")
    second = table_schema(ID, column("b", 2, DATE), column("a", 3, DATE), identity="f", version=2)
    options: dict[str, Any] = {"way": way, "mode": "changelog"}
    pipeline.begin(first)
    old = Change(
        "u", {"id": 1}, old={"id": 1}, special={"a": "infinity", "b": "4713-01-01 BC"}, old_special={"a": "-infinity"}
    )
    pipeline.change(old)
    pipeline.applied(**options)
    filled = pipeline.version()
    pipeline.evolve(second)
    pipeline.change(Change("i", {"id": 2}))
    assert pipeline.applied(**options).reason == ""
    for number in range(filled, pipeline.version() + 1):
        row = next(row for row in rows_in(pipeline.path(), metadata=True, version=number) if row["id"] == 1)
        names = ("b", "a") if list(row).index("b") < list(row).index("a") else ("a", "b")
        assert dict(row["_sluice_special"]) == {names[0]: "infinity", names[1]: "4713-01-01 BC"}, number
        assert dict(row["_sluice_old_special"]) == {names[0]: "-infinity"}, number
        assert set(row["_sluice_old"]) == {"id", "a", "b"}

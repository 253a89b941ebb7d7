"""Kinds of lake tables are objects: one that the product has never heard of works in every way, by its file and its
line.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from sluice.contract import lake_kinds
from sluice.contract.lake_kinds import KINDS
from sluice.errors import UsageError
from sluice_spark.kinds.registry import registered
from sluice_spark.lake.commit_way import DIRECT, DISTRIBUTED, MERGE
from sluice_spark.options import ApplyOptions
from tests.spark import arrivals_kind, traced_kind
from tests.spark.changes import Change
from tests.spark.conftest import Pipeline
from tests.spark.heap import RANGES
from tests.spark.model import SCHEMA
from tests.spark.test_snapshot_parts import heap_of
from tests.support.extent import FULL, cases, slow

WAYS = (DIRECT, DISTRIBUTED, MERGE)


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (traced_kind.LINE, arrivals_kind.LINE):
        monkeypatch.setitem(KINDS, kind.name, kind)


def test_each_kind_is_what_its_line_says() -> None:
    assert lake_kinds.DEFAULT == "mirror"
    kinds = {name: registered(name) for name in KINDS}
    assert {name: kind.name for name, kind in kinds.items()} == {name: name for name in KINDS}
    assert {name: kind.keeps_changes for name, kind in kinds.items()} == {
        name: line.keeps_changes for name, line in KINDS.items()
    }
    signs = [kind.sign for kind in kinds.values()]
    assert len(signs) == len(set(signs)), "two kinds are recognised by the same column"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "snapshots"}, r"lake\.mode"),
        ({"tables": {"public.t": {"targets": [{"kind": "snapshots"}]}}}, "snapshots"),
    ],
)
def test_a_kind_that_nobody_registered_is_refused_with_those_there_are(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        ApplyOptions("p", "file:///s", "file:///l", **options)
    assert refused.value.hint == "choose one of: mirror, changelog, history, traced, arrivals"


def _traced(pipeline: Pipeline) -> dict[object, tuple[object, ...]]:
    return {row["id"]: (row["v"], row["big"], row["_sluice_xid"]) for row in pipeline.rows(metadata=True)}


def _windows(pipeline: Pipeline) -> Iterator[None]:
    """A snapshot, then windows with every operation, one for each entry."""
    pipeline.begin(SCHEMA, *({"id": number, "v": number, "big": f"b{number}"} for number in range(1, 6)))
    yield
    pipeline.change(
        Change("u", {"id": 1, "v": 10}, unchanged=("big",), xid=20),
        Change("d", old={"id": 2}, xid=20),
        Change("u", {"id": 30, "v": 3, "big": "moved"}, old={"id": 3}, xid=21),
        Change("i", {"id": 6, "v": 6, "big": "b6"}, special={"at": "infinity"}, xid=22),
        Change("i", {"id": 7, "v": 7}, xid=22),
        Change("d", old={"id": 7}, xid=23),
    )
    yield
    pipeline.change(Change("i", {"id": 2, "v": 22}, xid=24))
    yield
    pipeline.change(Change("i", {"id": 8}, xid=25), Change("t", xid=26), Change("i", {"id": 9}, xid=27))
    yield
    pipeline.change(Change("d", old={"id": 9}, xid=28), Change("i", {"id": 1, "v": 1}, xid=29))
    yield


def _apply(pipeline: Pipeline, way: str, mode: str, **options: Any) -> None:
    row = pipeline.applied(way=way, mode=mode, **options)
    assert (row.reason, row.mode) == ("", mode)
    assert row.way in ("", way)


@pytest.mark.parametrize(
    ("way", "metadata"),
    cases([(DIRECT, True), (DISTRIBUTED, True), (MERGE, True), (MERGE, False)], quick=[]),
)
def test_a_mirror_with_a_column_more_holds_the_source_in_every_way(
    pipeline: Pipeline, way: str, metadata: bool
) -> None:
    found = []
    for _ in _windows(pipeline):
        _apply(pipeline, way, "traced", metadata_columns=metadata)
        found.append(_traced(pipeline))
    first = {number: (number, f"b{number}", 7) for number in range(1, 6)}
    second = {key: row for key, row in first.items() if key not in (1, 2, 3)}
    second |= {1: (10, "b1", 20), 30: (3, "moved", 21), 6: (6, "b6", 22)}
    assert found == [first, second, second | {2: (22, None, 24)}, {9: (None, None, 27)}, {1: (1, None, 29)}]
    assert ("_sluice_lsn" in pipeline.rows(metadata=True)[0]) == metadata


@pytest.mark.parametrize("way", WAYS)
def test_a_kind_that_keeps_what_arrived_is_appended_to_in_every_way(pipeline: Pipeline, way: str) -> None:
    found = []
    for _ in _windows(pipeline):
        _apply(pipeline, way, "arrivals")
        rows = pipeline.rows(metadata=True)
        found.append(sorted((row["id"], row["_sluice_arrived"] is not None) for row in rows))
    first = [(number, False) for number in range(1, 6)]
    second = sorted([*first, (6, True), (7, True)])
    third = sorted([*second, (2, True)])
    fourth = sorted([*third, (8, True), (9, True)])
    assert found == [first, second, third, fourth, sorted([*fourth, (1, True)])]


@slow
@pytest.mark.parametrize("way", [DIRECT, DISTRIBUTED] if FULL else [DISTRIBUTED])
def test_a_window_in_portions_and_a_snapshot_in_parts_are_of_the_kind_too(pipeline: Pipeline, way: str) -> None:
    heap = heap_of(pipeline, rows=24)
    for place in range(RANGES):
        heap.read(place)
        heap.rows[0]["v"] = place
        heap.manifest.transaction([Change("u", dict(heap.rows[0]), xid=50 + place)], SCHEMA)
        pipeline.apply(way=way, mode="traced")
    heap.finish()
    _apply(pipeline, way, "traced")
    changes = [Change("u", {**heap.rows[key], "v": 9}, xid=60) for key in range(8, 24)]
    heap.manifest.transaction([*changes, Change("d", old={"id": 3}, xid=61)], SCHEMA)
    _apply(pipeline, way, "traced", max_memory_bytes=2000)
    expected = dict.fromkeys(range(8, 24), (9, 60)) | dict.fromkeys((1, 2, 4, 5, 6, 7), (0, 7)) | {0: (3, 53)}
    assert {key: (row[0], row[2]) for key, row in _traced(pipeline).items()} == expected
    assert {row[1] for row in _traced(pipeline).values()} == {f"b{key}" for key in expected}


def test_another_kind_is_recognised_by_its_column(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, {"id": 1})
    pipeline.apply(mode="traced")
    for mode, said in (("mirror", "holds a traced, but the configured kind is mirror"), ("arrivals", "arrivals")):
        assert said in pipeline.applied(mode=mode, state="stale").reason
    pipeline.applied(mode="traced")

"""Parts of a snapshot where keys are marked or alike, where a segment reaches across a moment, and what is done to the
lake table afterwards.
"""

import random
from decimal import Decimal
from typing import Any

import pytest

from sluice.contract.chunks import ENDLESS
from sluice.contract.entries import Changes, Commits
from tests.spark.changes import INT4, NUMERIC, TEXT, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.spark.model import SCHEMA, row
from tests.spark.replays import by_delta_rs
from tests.spark.test_snapshot_parts import assert_equal, heap_of, read_all
from tests.support.extent import slow

TEN_AND_TWO = (10 << 16 | 2) + 4
"""What the catalog says of numeric(10, 2)."""
KEYED = table_schema(
    column("n", 1, NUMERIC, typmod=TEN_AND_TWO, key=True), column("t", 2, TEXT, key=True), column("v", 3, INT4)
)
Key = tuple[str, str]


def _values(key: Key) -> tuple[dict[str, Any], dict[str, str] | None]:
    """Numbers that a decimal cannot hold are marked."""
    marked = key[0].isalpha()
    return {"n": None if marked else Decimal(key[0]), "t": key[1]}, {"n": key[0]} if marked else None


def _keyed(kind: str, key: Key, v: int = 0, *, old: Key | None = None) -> Change:
    values, special = _values(key)
    before, old_special = _values(old) if old else (None, None)
    return Change(kind, {**values, "v": v}, old=before, special=special, old_special=old_special)


@slow
def test_keys_that_are_marked_or_have_one_hash_stay_apart(pipeline: Pipeline) -> None:
    manifest = pipeline.manifest
    manifest.table(KEYED)
    first = [_keyed("i", ("NaN", "a"), 1), _keyed("i", ("1", "plumless"), 1), _keyed("i", ("Infinity", "a"), 1)]
    manifest.chunk(first, KEYED, (0, 8))
    moved = _keyed("u", ("5", "buckeroo"), 9, old=("1", "plumless"))
    pipeline.change(_keyed("u", ("NaN", "a"), 2), moved, schema=KEYED)
    pipeline.change(_keyed("u", ("Infinity", "b"), 3, old=("Infinity", "a")), schema=KEYED)
    pipeline.apply()
    second = [_keyed("i", ("NaN", "a"), 2), _keyed("i", ("5", "buckeroo"), 9), _keyed("i", ("Infinity", "b"), 3)]
    # These two did not change: the first one has the hash of a key that did.
    untouched = [_keyed("i", ("5", "plumless"), 7), _keyed("i", ("NaN", "b"), 4)]
    manifest.chunk([*second, *untouched], KEYED, (8, ENDLESS))
    manifest.finish(KEYED)
    pipeline.apply()
    found = {(str(one["n"]), one["t"]): one["v"] for one in pipeline.rows()}
    expected = {
        ("NaN", "a"): 2,
        ("5.00", "buckeroo"): 9,
        ("Infinity", "b"): 3,
        ("5.00", "plumless"): 7,
        ("NaN", "b"): 4,
    }
    assert (found, len(pipeline.rows())) == (expected, len(expected))


@slow
def test_a_segment_that_reaches_across_a_moment_is_applied_on_both_sides_of_it(pipeline: Pipeline) -> None:
    manifest = pipeline.manifest
    manifest.table(SCHEMA)
    manifest.chunk([row(1, 1), row(2, 1)], SCHEMA, (0, 8))
    changes = [
        Change("u", row(1, 2), lsn=110),
        Change("u", row(2, 3), lsn=130),
        Change("u", row(3, 5), lsn=130, ordinal=1),
        Change("d", {}, old={"id": 4}, lsn=130, ordinal=2),
    ]
    manifest.append(Changes((manifest.segment(changes, SCHEMA),), Commits([110, 130], [1, 1], [7, 8])), through_lsn=130)
    manifest.chunk([row(key, 1) for key in (3, 4, 5)], SCHEMA, (8, ENDLESS), lsn=120)
    pipeline.apply()
    manifest.finish(SCHEMA)
    pipeline.apply()
    before = {one["id"]: one["v"] for one in by_delta_rs(pipeline.path(), 0)}
    assert before == {1: 2, 2: 1, 3: 1, 4: 1, 5: 1}, "the snapshot is not the table as of its moment"
    assert_equal(pipeline.path(), {1: row(1, 2), 2: row(2, 3), 3: row(3, 5), 5: row(5, 1)})


@slow
@pytest.mark.timeout(300)
def test_every_way_and_every_maintenance_goes_on_from_files_that_came_in_parts(pipeline: Pipeline) -> None:
    heap = heap_of(pipeline, rows=24)
    read_all(pipeline, heap, random.Random(8))
    heap.finish()
    pipeline.apply()
    acts = {
        "direct": "OPTIMIZE {t}",
        "distributed": "REORG TABLE {t} APPLY (PURGE)",
        "merge": "VACUUM {t} RETAIN 0 HOURS",
    }
    for number, (way, statement) in enumerate(acts.items()):
        changes = []
        for key in (8, 9, 10, 11 + number):
            heap.rows[key] = {**heap.rows[key], "v": 50 + number}
            changes.append(Change("u", {"id": key, "v": 50 + number}, unchanged=("big", "at")))
        pipeline.change(*changes)
        pipeline.apply(way=way)
        assert_equal(pipeline.path(), heap.rows)
        pipeline.sql(statement)
        assert_equal(pipeline.path(), heap.rows)

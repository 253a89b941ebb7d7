"""Windows that are folded at once, in portions because they are larger than memory may hold, or by Spark's executors:
one commit, the same table, nothing left behind, and memory that does not grow with the entry.
"""

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sluice.contract import envelope
from sluice.contract.entries import BodyCommit, Changes, Commits
from sluice.contract.xids import XidIntervals
from sluice_spark.lake.commit_way import DIRECT, DISTRIBUTED, MERGE
from tests.spark import lake
from tests.spark.changes import FLOAT8, INT4, INT8, MAP, TEXT, TS, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.spark.model import SCHEMA, by_key, named, row
from tests.spark.windows import Windows
from tests.support.extent import slow

SMALL = 8_000
"""Bytes of decoded changes for both tasks of executors at once: a part of some rows goes over local disk."""
MEBI = 1 << 20
SIZES: dict[str, dict[str, Any]] = {
    "at once": {"way": DIRECT},
    "in portions": {"way": DIRECT, "max_memory_bytes": 2_000},
    "by executors": {"way": DISTRIBUTED, "max_memory_bytes": SMALL},
}


def in_every_size(*, quick: Collection[str] = tuple(SIZES)) -> pytest.MarkDecorator:
    """For a test with `options`."""
    every = [pytest.param(one, id=name, marks=() if name in quick else slow) for name, one in SIZES.items()]
    return pytest.mark.parametrize("options", every)


def nothing_is_left(pipeline: Pipeline) -> None:
    """No scratch, and no file in the lake that its log does not name."""
    assert list(pipeline.store.list("apply/scratch/")) == []
    table = pipeline.path()
    named_files = b"".join(path.read_bytes() for path in pipeline.log().glob("*.json"))
    # Spark's own files lie in folders of the table.
    for path in table.glob("*.parquet"):
        assert path.name.encode() in named_files, f"{path.name} is an orphan"
    vectors = sum(line.count(b'"storageType":"u"') for line in named_files.splitlines())
    assert len(list(table.glob("*.bin"))) <= vectors


@in_every_size(quick=["at once", "by executors"])
def test_moves_unsent_values_and_deletes_are_exact_in_one_commit(pipeline: Pipeline, options: dict[str, Any]) -> None:
    before = [row(key, big=f"b{key}") for key in range(60)]
    pipeline.begin(SCHEMA, *before)
    windows = Windows(pipeline, **options)
    windows.apply()
    version = pipeline.version()
    moved = [Change("u", {"id": key + 100, "v": 1}, old={"id": key}, unchanged=("big", "at")) for key in range(20)]
    sent = [Change("u", row(key + 100, 2, "sent"), old={"id": key}) for key in range(20, 40)]
    reused = [Change("i", row(key, 3, "new")) for key in range(30)]
    gone = [Change("d", old={"id": key}) for key in range(40, 50)]
    marked = [Change("u", {"id": 50, "v": 4}, unchanged=("big",), special={"at": "infinity"})]
    kept = [Change("u", {"id": 51, "v": 4}, unchanged=("big", "at"))]
    found = windows.change(*moved, *sent, *reused, *gone, *marked, *kept)
    expected = {one["id"]: one for one in before[50:]}
    expected.update((key + 100, row(key + 100, 1, f"b{key}")) for key in range(20))
    expected.update((key + 100, row(key + 100, 2, "sent")) for key in range(20, 40))
    expected.update((key, row(key, 3, "new")) for key in range(30))
    expected |= {50: row(50, 4, "b50", at="infinity"), 51: row(51, 4, "b51")}
    assert by_key(pipeline.rows()) == expected
    assert found.ops == {"update": 42, "insert": 30, "delete": 10}
    assert found.way.name == options["way"], found.way
    assert lake.marker(pipeline.path(), pipeline.store) == pipeline.manifest.seq
    # Files of portions may be joined behind it.
    (metrics,) = (
        one["operationMetrics"]
        for one in DeltaTable(pipeline.path()).history()
        if one["version"] > version and one["operation"] != "OPTIMIZE"
    )
    assert int(metrics["numTargetRowsInserted"]) - int(metrics["numTargetRowsDeleted"]) == 30 - 10
    nothing_is_left(pipeline)


@in_every_size()
def test_a_truncate_and_a_rolled_back_part_of_a_streamed_entry_replace_the_table(
    pipeline: Pipeline, options: dict[str, Any]
) -> None:
    """Rows, a TRUNCATE, another that was rolled back with the rows of odd keys, and rows again."""
    pipeline.begin(SCHEMA, row(1), row(2))
    changes = [Change("i", row(key), lsn=None, ordinal=at, xid=7 + key % 2) for at, key in enumerate(range(10, 60))]
    changes += [Change("t", lsn=None, ordinal=60), Change("t", lsn=None, ordinal=61, xid=8)]
    changes += [
        Change("u" if key % 3 else "i", row(key, 5), lsn=None, ordinal=100 + key, xid=7 + key % 2) for key in range(100)
    ]
    body = BodyCommit(end_lsn=500, commit_time_us=500, xid=7, aborted_xids=XidIntervals.of([8]))
    segment = pipeline.manifest.segment(changes, SCHEMA, body=body)
    windows = Windows(pipeline, **options)
    windows.apply()
    pipeline.manifest.append(Changes((segment,), Commits([500], [500], [7])), through_lsn=500)
    windows.apply()
    assert pipeline.keys() == list(range(0, 100, 2))
    assert {(one["v"], one["_sluice_lsn"]) for one in pipeline.rows(metadata=True)} == {(5, 500)}
    nothing_is_left(pipeline)
    windows.change(Change("t"))
    assert pipeline.rows() == []


@in_every_size(quick=["at once"])
def test_new_rows_and_every_change_of_a_changelog_are_appended_in_the_newest_form(
    pipeline: Pipeline, options: dict[str, Any]
) -> None:
    log = named("log")
    wider = table_schema(*SCHEMA.columns, column("extra", 9, INT4, missing="7"), version=2)
    for schema in (SCHEMA, log):
        pipeline.begin(schema, row(1))
    pipeline.evolve(wider)
    older = [Change("i", row(key)) for key in range(2, 100)]
    newer = [Change("i", row(key, extra=1)) for key in range(100, 200)]
    pipeline.manifest.entry(
        [(older, SCHEMA), (newer, wider), ([Change("u", row(key, 2)) for key in range(1, 90)], log)]
    )
    pipeline.apply(**options, tables={"public.log": {"targets": [{"kind": "changelog"}]}})
    assert by_key(pipeline.rows()) == {key: row(key, extra=7 if key < 100 else 1) for key in range(1, 200)}
    logged = pipeline.rows("log", metadata=True)
    assert sorted((one["_sluice_op"], one["id"], one["_sluice_ordinal"]) for one in logged) == [
        ("i", 1, 0),
        *(("u", key, 197 + key) for key in range(1, 90)),
    ]
    for name in ("items", "log"):
        operations = [one["operation"] for one in DeltaTable(pipeline.path(name)).history()]
        assert next(one for one in operations if one != "UPDATE SCHEMA") == "WRITE"


@slow
@pytest.mark.parametrize("memory", [1 << 28, 2_000], ids=["at once", "in portions"])
def test_G05_G06_equal_rows_without_a_key_keep_their_number(pipeline: Pipeline, memory: int) -> None:
    schema = table_schema(column("a", 1, INT4), column("f", 2, FLOAT8), identity="f")
    pipeline.begin(schema, *({"a": key % 20, "f": -0.0} for key in range(100)))
    removed = [Change("d", old={"a": key, "f": -0.0}) for key in range(10)]
    changed = [Change("u", {"a": key, "f": 0.0}, old={"a": key, "f": -0.0}) for key in range(5, 15)]
    pipeline.change(*removed, *changed, *(Change("i", {"a": 99, "f": None}) for _ in range(3)))
    options: dict[str, Any] = {"way": MERGE, "max_memory_bytes": memory}
    pipeline.applied(**options)
    found = [(one["a"], str(one["f"])) for one in pipeline.rows()]
    expected = [(key, "-0.0") for key in range(20) for _ in range(5 - (key < 10) - (5 <= key < 15))]
    assert sorted(found) == sorted([*expected, *((key, "0.0") for key in range(5, 15)), *[(99, "None")] * 3])
    pipeline.change(*(Change("d", old={"a": 99, "f": None}) for _ in range(4)))
    assert "does not have" in pipeline.applied(**options, state="stale").reason


@pytest.fixture
def arrow_memory() -> Iterator[pa.MemoryPool]:
    """All of Arrow's memory from here on, as a pool that knows its peak."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    yield pool
    pa.set_memory_pool(before)


@slow
@pytest.mark.parametrize(
    ("way", "ceiling", "most"),
    [(DIRECT, 32 * MEBI, 6 * 32 * MEBI), (DISTRIBUTED, 64 * MEBI, MEBI)],
    ids=["in portions", "by executors, without memory of the driver"],
)
def test_L8_one_transaction_of_hundreds_of_megabytes_is_applied_within_the_ceiling(
    pipeline: Pipeline, arrow_memory: pa.MemoryPool, way: str, ceiling: int, most: int
) -> None:
    schema = table_schema(column("id", 1, INT8, key=True), column("v", 2, INT4), column("s", 3, TEXT))
    pipeline.begin(schema)
    windows = Windows(pipeline, way=way, max_memory_bytes=ceiling)
    windows.apply()
    at_once, count = 40_000, 10
    decoded, end = 0, 1000
    segments = []
    for number in range(count):
        rows = _wide_rows(number, at_once)
        decoded += rows.nbytes
        segments.append(pipeline.manifest.stored(rows, schema, first_lsn=end, last_lsn=end))
        del rows
    pipeline.manifest.append(Changes(tuple(segments), Commits([end], [end], [7])), through_lsn=end)
    assert decoded > 250 * MEBI
    before = arrow_memory.bytes_allocated()
    pool = pa.proxy_memory_pool(arrow_memory)
    pa.set_memory_pool(pool)
    assert windows.apply().rows == at_once * count
    assert pool.max_memory() - before < most, "Arrow's peak"
    # Every key came in one segment and was updated in the next one, except for the last.
    lake_table = pipeline.spark.read.format("delta").load(str(pipeline.path()))
    answer = lake_table.selectExpr("count(*)", "sum(v)", "sum(length(s))", "count(DISTINCT id)").first()
    half = at_once // 2
    assert answer is not None
    assert tuple(answer) == (count * half, half * (count * 2 - 1), 660 * count * half, count * half)


def _wide_rows(number: int, size: int) -> pa.Table:
    """Half inserts of this number's keys with v = 1, half updates of the number before's with v = 2
    (of 0's own: of its inserts).
    """
    half = size // 2
    mine, before = np.arange(half) + number * half, np.arange(half) + max(number - 1, 0) * half
    updates = number > 0
    ids = np.concatenate([mine, before]) if updates else np.concatenate([mine, mine])
    ops = ["i"] * half + ["u"] * half
    v = np.concatenate([np.full(half, 1), np.full(half, 2 if updates else 1)]).astype(np.int32)
    texts = [f"{place:010d}" * 66 for place in ids.tolist()]
    return pa.table(
        {
            "id": pa.array(ids),
            "v": pa.array(v),
            "s": pa.array(texts),
            envelope.OP: pa.array(ops),
            envelope.LSN: pa.array(np.full(size, 1000)),
            envelope.TS: pa.array(np.full(size, 1000)).cast(TS),
            envelope.ORDINAL: pa.array(np.arange(size) + number * size),
            envelope.XID: pa.array(np.full(size, 7)),
            envelope.UNCHANGED: pa.nulls(size, pa.list_(pa.int16())),
            envelope.OLD: pa.nulls(size, pa.struct([("id", pa.int64())])),
            envelope.SPECIAL: pa.nulls(size, MAP),
            envelope.OLD_SPECIAL: pa.nulls(size, MAP),
        }
    )

"""Entries larger than memory may hold: folded in portions, one commit, the same table, and memory
that does not grow with the entry.
"""

from collections.abc import Iterator

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from sluice.contract import envelope
from sluice.contract.entries import BodyCommit, Changes, Commits
from sluice.contract.xids import XidIntervals
from tests.spark import lake
from tests.spark.changes import FLOAT8, INT4, INT8, MAP, TEXT, TS, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.spark.model import SCHEMA, Lake, histories
from tests.support.extent import slow

SMALL = 2_000
"""Bytes of decoded changes: a dozen rows or so."""
MEBI = 1 << 20


def _row(key: int, v: int = 0, big: str | None = "B") -> dict[str, object]:
    return {"id": key, "v": v, "big": big, "at": None}


def _by_key(rows: list[dict[str, object]]) -> dict[object, dict[str, object]]:
    assert len({row["id"] for row in rows}) == len(rows), "two rows with one key"
    return {row["id"]: row for row in rows}


@settings(
    max_examples=2, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(history=histories(keys=40, length=80), name=st.integers(0, 10**9))
def test_any_history_as_one_large_entry_leaves_the_delta_table_equal(
    pipeline: Pipeline, history: list[tuple[Change, Lake]], name: int
) -> None:
    pipeline = Pipeline(pipeline.spark, pipeline.folder / f"{id(history)}-{name}")
    pipeline.manifest.table(SCHEMA)
    pipeline.manifest.snapshot([], SCHEMA)
    half = len(history) // 2
    for part in (history[:half], history[half:]):
        if part:
            pipeline.manifest.transaction([change for change, _ in part], SCHEMA)
    # Rows that moved to other keys can make a dozen changes that are only followed together: they must fit.
    assert pipeline.apply(max_memory_bytes=12_000).tables["16385"].state == "live"
    assert _by_key(pipeline.rows()) == history[-1][1]


def test_moves_unsent_values_and_deletes_of_one_large_entry_are_exact_in_one_commit(pipeline: Pipeline) -> None:
    before = [_row(key, big=f"b{key}") for key in range(60)]
    pipeline.manifest.table(SCHEMA)
    pipeline.manifest.snapshot(before, SCHEMA)
    pipeline.apply()
    version = lake.version(pipeline.path())
    moved = [Change("u", {"id": key + 100, "v": 1}, old={"id": key}, unchanged=("big", "at")) for key in range(20)]
    sent = [Change("u", _row(key + 100, 2, "sent"), old={"id": key}) for key in range(20, 40)]
    reused = [Change("i", _row(key, 3, "new")) for key in range(30)]
    gone = [Change("d", old={"id": key}) for key in range(40, 50)]
    seq = pipeline.manifest.transaction([*moved, *sent, *reused, *gone], SCHEMA)
    pipeline.store.put("apply/scratch/left-by-a-killed-process.parquet", b"")
    pipeline.apply(max_memory_bytes=SMALL)
    expected: dict[object, dict[str, object]] = {row["id"]: row for row in before[50:]}
    expected.update((key + 100, _row(key + 100, 1, f"b{key}")) for key in range(20))
    expected.update((key + 100, _row(key + 100, 2, "sent")) for key in range(20, 40))
    expected.update((key, _row(key, 3, "new")) for key in range(30))
    assert _by_key(pipeline.rows()) == expected
    assert (lake.version(pipeline.path()), lake.marker(pipeline.path(), pipeline.store)) == (version + 1, seq)
    assert list(pipeline.store.list("apply/scratch/")) == []


def truncated_and_rolled_back(pipeline: Pipeline) -> Changes:
    """One streamed transaction: rows, a TRUNCATE, another that was rolled back with the rows of odd
    keys, and rows again.
    """
    changes = [
        Change("i", _row(key), lsn=None, ordinal=place, xid=7 + key % 2) for place, key in enumerate(range(10, 60))
    ]
    changes += [Change("t", lsn=None, ordinal=60), Change("t", lsn=None, ordinal=61, xid=8)]
    changes += [
        Change("u" if key % 3 else "i", _row(key, 5), lsn=None, ordinal=100 + key, xid=7 + key % 2)
        for key in range(100)
    ]
    body = BodyCommit(end_lsn=500, commit_time_us=500, xid=7, aborted_xids=XidIntervals.of([8]))
    return Changes((pipeline.manifest.segment(changes, SCHEMA, body=body),), Commits([500], [500], [7]))


def assert_even_keys(pipeline: Pipeline) -> None:
    rows = lake.rows_in(pipeline.path(), metadata=True)
    assert sorted(row["id"] for row in rows) == list(range(0, 100, 2))
    assert {(row["v"], row["_sluice_lsn"]) for row in rows} == {(5, 500)}


def test_a_truncate_and_a_rolled_back_part_of_a_large_streamed_entry(pipeline: Pipeline) -> None:
    pipeline.manifest.table(SCHEMA)
    pipeline.manifest.snapshot([_row(1), _row(2)], SCHEMA)
    pipeline.manifest.append(truncated_and_rolled_back(pipeline), through_lsn=500)
    pipeline.apply(max_memory_bytes=SMALL)
    assert_even_keys(pipeline)


def test_new_rows_and_every_change_of_a_changelog_are_appended_as_they_stream_by(pipeline: Pipeline) -> None:
    log = type(SCHEMA)("16386", 1, "public", "log", "d", SCHEMA.columns)
    wider = table_schema(*SCHEMA.columns, column("extra", 9, INT4, missing="7"), version=2)
    for schema in (SCHEMA, log):
        pipeline.manifest.table(schema)
        pipeline.manifest.snapshot([_row(1)], schema)
    pipeline.manifest.table(wider, state="live")
    older, newer = (
        [Change("i", _row(key)) for key in range(2, 100)],
        [Change("i", {**_row(key), "extra": 1}) for key in range(100, 200)],
    )
    pipeline.manifest.entry(
        [(older, SCHEMA), (newer, wider), ([Change("u", _row(key, 2)) for key in range(1, 90)], log)]
    )
    pipeline.apply(max_memory_bytes=SMALL, tables={"public.log": {"targets": [{"kind": "changelog"}]}})
    assert _by_key(pipeline.rows()) == {key: {**_row(key), "extra": 7 if key < 100 else 1} for key in range(1, 200)}
    logged = lake.rows_in(pipeline.path("log"), metadata=True)
    assert sorted((row["_sluice_op"], row["id"], row["_sluice_ordinal"]) for row in logged) == [
        ("i", 1, 0),
        *(("u", key, 197 + key) for key in range(1, 90)),
    ]


def test_G05_G06_equal_rows_without_a_key_keep_their_number_in_a_large_entry(pipeline: Pipeline) -> None:
    schema = table_schema(column("a", 1, INT4), column("f", 2, FLOAT8), identity="f")
    pipeline.manifest.table(schema)
    pipeline.manifest.snapshot([{"a": key % 20, "f": -0.0} for key in range(100)], schema)
    removed = [Change("d", old={"a": key, "f": -0.0}) for key in range(10)]
    changed = [Change("u", {"a": key, "f": 0.0}, old={"a": key, "f": -0.0}) for key in range(5, 15)]
    pipeline.manifest.transaction([*removed, *changed, *(Change("i", {"a": 99, "f": None}) for _ in range(3))], schema)
    pipeline.apply(max_memory_bytes=SMALL)
    found = [(row["a"], str(row["f"])) for row in pipeline.rows()]
    expected = [(key, "-0.0") for key in range(20) for _ in range(5 - (key < 10) - (5 <= key < 15))]
    assert sorted(found) == sorted([*expected, *((key, "0.0") for key in range(5, 15)), *[(99, "None")] * 3])


@pytest.fixture
def arrow_memory() -> Iterator[pa.MemoryPool]:
    """All of Arrow's memory from here on, as a pool that knows its peak."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    yield pool
    pa.set_memory_pool(before)


@slow
def test_L8_one_transaction_of_hundreds_of_megabytes_is_applied_within_the_ceiling(
    pipeline: Pipeline, arrow_memory: pa.MemoryPool
) -> None:
    schema = table_schema(column("id", 1, INT8, key=True), column("v", 2, INT4), column("s", 3, TEXT))
    pipeline.manifest.table(schema)
    pipeline.manifest.snapshot([], schema)
    ceiling, at_once, count = 16 * MEBI, 40_000, 10
    decoded, end = 0, 1000
    segments = []
    for number in range(count):
        rows = _wide_rows(number, at_once)
        decoded += rows.nbytes
        segments.append(pipeline.manifest.stored(rows, schema, first_lsn=end, last_lsn=end))
    pipeline.manifest.append(Changes(tuple(segments), Commits([end], [end], [7])), through_lsn=end)
    assert decoded > 250 * MEBI
    before = arrow_memory.bytes_allocated()
    pool = pa.proxy_memory_pool(arrow_memory)
    pa.set_memory_pool(pool)
    pipeline.apply(max_memory_bytes=ceiling)
    assert pool.max_memory() - before < 6 * ceiling, "Arrow's peak"
    # Every key came in one segment and was updated in the next one, except for the last.
    answer = (
        pipeline.spark.read.format("delta")
        .load(str(pipeline.path()))
        .selectExpr("count(*)", "sum(v)", "sum(length(s))", "count(DISTINCT id)")
        .first()
    )
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

"""Windows that Spark's executors read, fold, find and write: the same rows as in the other ways, one commit, and
nothing of what failed, was refused or was tried twice.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, Phase, given, settings

from sluice import faults
from sluice.contract.entries import BodyCommit, Changes, Commits
from sluice.contract.schema import TableSchema
from sluice.contract.xids import XidIntervals
from sluice.errors import ManifestCorrupt, UnsupportedChange
from sluice_spark.lake.commit_way import DIRECT, DISTRIBUTED, MERGE
from sluice_spark.options import AUTO
from tests.spark import lake
from tests.spark.changes import FLOAT8, INT4, TEXT, TIMESTAMP, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.spark.model import SCHEMA, Lake, histories, windows
from tests.spark.test_large_windows import _by_key, _row, _wide_rows, assert_even_keys, truncated_and_rolled_back
from tests.spark.windows import Windows
from tests.support.extent import slow

WITHOUT_KEY = table_schema(column("a", 1, INT4), column("s", 2, TEXT), identity="f")
SMALL = 8_000
"""Bytes of decoded changes for both tasks at once: a part of some rows goes over local disk."""


def _way(applied: Windows) -> tuple[str, str]:
    assert applied.table is not None
    return applied.table.way.name, applied.table.way.reason


def _nothing_is_left(pipeline: Pipeline) -> None:
    """No scratch, and no file in the lake that its log does not name."""
    assert list(pipeline.store.list("apply/scratch/")) == []
    table = pipeline.path()
    named = b"".join(path.read_bytes() for path in (table / "_delta_log").glob("*.json"))
    # Spark's own files lie in folders of the table.
    for path in table.glob("*.parquet"):
        assert path.name.encode() in named, f"{path.name} is an orphan"
    vectors = sum(line.count(b'"storageType":"u"') for line in named.splitlines())
    assert len(list(table.glob("*.bin"))) <= vectors


@settings(
    max_examples=2, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    history=histories(keys=40, length=120),
    cuts=st.lists(st.integers(0, 120), min_size=2, max_size=2),
    memory=st.sampled_from([SMALL, 1 << 28]),
    name=st.integers(0, 10**9),
)
def test_any_history_leaves_the_delta_table_equal(
    pipeline: Pipeline, history: list[tuple[Change, Lake]], cuts: list[int], memory: int, name: int
) -> None:
    pipeline = Pipeline(pipeline.spark, pipeline.folder / f"{id(history)}-{name}")
    pipeline.begin(SCHEMA)
    applied = Windows(pipeline, way=DISTRIBUTED, max_memory_bytes=memory)
    applied.apply()
    for window in windows(history, cuts):
        if window:
            half = len(window) // 2
            for part in (window[:half], window[half:]):
                if part:
                    pipeline.manifest.transaction(part, SCHEMA)
            try:
                applied.apply()
            except UnsupportedChange as error:
                # A chain of moves may be longer than so little memory can hold.
                if memory == SMALL and "apply.max_memory" in str(error):
                    return
                raise
            assert _way(applied) == (DISTRIBUTED, "")
    assert _by_key(pipeline.rows()) == history[-1][1]
    _nothing_is_left(pipeline)


def test_moves_unsent_values_and_deletes_are_exact_in_one_commit(pipeline: Pipeline) -> None:
    before = [_row(key, big=f"b{key}") for key in range(60)]
    pipeline.begin(SCHEMA, *before)
    applied = Windows(pipeline, way=DISTRIBUTED, max_memory_bytes=SMALL)
    applied.apply()
    version = lake.version(pipeline.path())
    moved = [Change("u", {"id": key + 100, "v": 1}, old={"id": key}, unchanged=("big", "at")) for key in range(20)]
    sent = [Change("u", _row(key + 100, 2, "sent"), old={"id": key}) for key in range(20, 40)]
    reused = [Change("i", _row(key, 3, "new")) for key in range(30)]
    gone = [Change("d", old={"id": key}) for key in range(40, 50)]
    marked = [Change("u", {"id": 50, "v": 4}, unchanged=("big",), special={"at": "infinity"})]
    kept = [Change("u", {"id": 51, "v": 4}, unchanged=("big", "at"))]
    seq = pipeline.manifest.transaction([*moved, *sent, *reused, *gone, *marked, *kept], SCHEMA)
    found = applied.apply()
    expected: dict[object, dict[str, object]] = {row["id"]: row for row in before[50:]}
    expected.update((key + 100, _row(key + 100, 1, f"b{key}")) for key in range(20))
    expected.update((key + 100, _row(key + 100, 2, "sent")) for key in range(20, 40))
    expected.update((key, _row(key, 3, "new")) for key in range(30))
    expected[50] = {"id": 50, "v": 4, "big": "b50", "at": "infinity"}
    expected[51] = _row(51, 4, "b51")
    assert _by_key(pipeline.rows()) == expected
    assert found.ops == {"update": 42, "insert": 30, "delete": 10}
    assert (lake.version(pipeline.path()), lake.marker(pipeline.path(), pipeline.store)) == (version + 1, seq)
    metrics = DeltaTable(pipeline.path()).history(1)[0]["operationMetrics"]
    assert int(metrics["numTargetRowsInserted"]) - int(metrics["numTargetRowsDeleted"]) == 30 - 10
    _nothing_is_left(pipeline)


def test_a_truncate_and_a_rolled_back_part_replace_the_table(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, _row(1), _row(2))
    changes = truncated_and_rolled_back(pipeline)
    applied = Windows(pipeline, way=DISTRIBUTED, max_memory_bytes=SMALL)
    applied.apply()
    pipeline.manifest.append(changes, through_lsn=500)
    applied.apply()
    assert_even_keys(pipeline)
    _nothing_is_left(pipeline)


def test_new_rows_and_every_change_of_a_changelog_are_appended_in_the_newest_form(pipeline: Pipeline) -> None:
    log = type(SCHEMA)("16386", 1, "public", "log", "d", SCHEMA.columns)
    wider = table_schema(*SCHEMA.columns, column("extra", 9, INT4, missing="7"), version=2)
    for schema in (SCHEMA, log):
        pipeline.begin(schema, _row(1))
    pipeline.manifest.table(wider, state="live")
    older, newer = (
        [Change("i", _row(key)) for key in range(2, 100)],
        [Change("i", {**_row(key), "extra": 1}) for key in range(100, 200)],
    )
    pipeline.manifest.entry(
        [(older, SCHEMA), (newer, wider), ([Change("u", _row(key, 2)) for key in range(1, 90)], log)]
    )
    pipeline.apply(way=DISTRIBUTED, max_memory_bytes=SMALL, tables={"public.log": {"targets": [{"kind": "changelog"}]}})
    assert _by_key(pipeline.rows()) == {key: {**_row(key), "extra": 7 if key < 100 else 1} for key in range(1, 200)}
    logged = lake.rows_in(pipeline.path("log"), metadata=True)
    assert sorted((row["_sluice_op"], row["id"], row["_sluice_ordinal"]) for row in logged) == [
        ("i", 1, 0),
        *(("u", key, 197 + key) for key in range(1, 90)),
    ]
    for name in ("items", "log"):
        operations = [one["operation"] for one in DeltaTable(pipeline.path(name)).history()]
        assert next(one for one in operations if one != "UPDATE SCHEMA") == "WRITE"


def test_composite_marked_and_double_keys_are_found_as_the_merge_finds_them(pipeline: Pipeline) -> None:
    schema = table_schema(
        column("t", 1, TEXT, key=True),
        column("at", 2, TIMESTAMP, key=True),
        column("f", 3, FLOAT8, key=True),
        column("v", 4, INT4),
    )
    keys = [("a", None, 0.0), ("a", None, float("nan")), ("ä", None, -1.5), ("", None, 1e300)]
    pipeline.manifest.table(schema)
    pipeline.manifest.snapshot([], schema)
    pipeline.manifest.table(schema, state="live", new=False)
    applied = Windows(pipeline, way=DISTRIBUTED)
    applied.apply()
    rows = [
        Change("i", {"t": t, "at": at, "f": f, "v": 0}, special={"at": special})
        for t, at, f in keys
        for special in ("infinity", "-infinity")
    ]
    pipeline.manifest.transaction(rows, schema)
    applied.apply()
    changed = [
        Change("u", {"t": t, "at": at, "f": f, "v": 1}, special={"at": "infinity"}) for t, at, f in keys
    ] + [
        Change("d", old={"t": t, "at": at, "f": -f if f == 0 else f}, old_special={"at": "-infinity"})
        for t, at, f in keys[:2]
    ]  # fmt: skip
    pipeline.manifest.transaction(changed, schema)
    applied.apply()
    assert _way(applied) == (DISTRIBUTED, "")
    found = sorted((row["t"], row["at"], str(row["f"]), row["v"]) for row in pipeline.rows())
    assert found == sorted(
        [*((t, "infinity", str(f), 1) for t, _, f in keys), *((t, "-infinity", str(f), 0) for t, _, f in keys[2:])]
    )


def test_auto_distributes_what_does_not_fit_and_the_rest_is_direct(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, *(_row(key) for key in range(200)))
    applied = Windows(pipeline, way=AUTO, max_memory_bytes=SMALL)
    applied.apply()
    for keys, way in ((range(2), DIRECT), (range(200), DISTRIBUTED)):
        pipeline.manifest.transaction([Change("u", _row(key, 1)) for key in keys], SCHEMA)
        applied.apply()
        assert _way(applied) == (way, "")
    assert {row["v"] for row in pipeline.rows()} == {1}


def test_a_table_that_only_spark_can_write_to_gets_a_merge(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, *(_row(key) for key in range(50)))
    applied = Windows(pipeline, way=DISTRIBUTED, max_memory_bytes=SMALL)
    applied.apply()
    pipeline.spark.sql(
        f"ALTER TABLE delta.`{pipeline.path()}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')"
    )
    for keys in (range(1), range(50)):
        pipeline.manifest.transaction([Change("u", _row(key, 1)) for key in keys], SCHEMA)
        applied.apply()
        assert _way(applied)[0] == MERGE
    assert _by_key(pipeline.rows()) == {key: _row(key, 1) for key in range(50)}


ROLLED_BACK: dict[str, tuple[TableSchema, dict[str, object], dict[str, object]]] = {
    "a key": (SCHEMA, _row(5), {"way": DISTRIBUTED}),
    "no key": (WITHOUT_KEY, {"a": 1, "s": "x"}, {"way": DISTRIBUTED}),
    "no key, too large": (WITHOUT_KEY, {"a": 1, "s": "x"}, {"way": AUTO, "max_memory_bytes": 100}),
}


@pytest.mark.parametrize("case", ROLLED_BACK)
def test_a_window_that_was_rolled_back_commits_nothing(pipeline: Pipeline, case: str) -> None:
    schema, row, options = ROLLED_BACK[case]
    pipeline.begin(schema, row)
    applied = Windows(pipeline, **options)
    applied.apply()
    before = lake.version(pipeline.path())
    body = BodyCommit(end_lsn=500, commit_time_us=500, xid=7, aborted_xids=XidIntervals.of([7]))
    rows = [Change("d", old=row, lsn=None)]
    segment = pipeline.manifest.segment(rows, schema, body=body)
    pipeline.manifest.append(Changes((segment,), Commits([500], [500], [7])), through_lsn=500)
    assert not applied.apply().committed
    assert lake.version(pipeline.path()) == before
    _nothing_is_left(pipeline)


@pytest.mark.parametrize("kind", ["window", "appended window", "snapshot"])
def test_a_segment_with_other_bytes_stops_the_table_and_is_named(pipeline: Pipeline, kind: str) -> None:
    pipeline.begin(SCHEMA, _row(1), _row(2))
    applied = Windows(pipeline, way=DISTRIBUTED)
    if kind != "snapshot":
        applied.apply()
        op = "u" if kind == "window" else "i"
        pipeline.manifest.transaction([Change(op, _row(key, 7)) for key in (1, 2, 3)], SCHEMA)
    key = max(pipeline.store.list("data/"))
    data = bytearray(pipeline.store.get(key))
    data[len(data) // 2] ^= 1
    pipeline.store.put(key, bytes(data))
    with pytest.raises(ManifestCorrupt, match=key):
        applied.apply()
    if kind == "snapshot":
        assert not DeltaTable.is_deltatable(str(pipeline.path()))
    else:
        assert _by_key(pipeline.rows()) == {1: _row(1), 2: _row(2)}
        _nothing_is_left(pipeline)


def test_two_rows_of_the_lake_with_one_key_and_a_value_without_a_row_stop_the_table(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, _row(1), _row(2))
    applied = Windows(pipeline, way=DISTRIBUTED)
    applied.apply()
    pipeline.manifest.transaction([Change("u", {"id": 3, "v": 1}, unchanged=("big",))], SCHEMA)
    with pytest.raises(UnsupportedChange, match="no row to keep it from"):
        applied.apply()
    _nothing_is_left(pipeline)
    pipeline = Pipeline(pipeline.spark, pipeline.folder / "other")
    pipeline.begin(SCHEMA, _row(1), _row(2), _row(2))
    applied = Windows(pipeline, way=DISTRIBUTED)
    applied.apply()
    pipeline.manifest.transaction([Change("u", _row(2, 1))], SCHEMA)
    with pytest.raises(UnsupportedChange, match="two rows of the lake table have the same key"):
        applied.apply()
    _nothing_is_left(pipeline)


@contextmanager
def _held(tmp_path: Path, name: str) -> Iterator[threading.Event]:
    """The fault point `name` waits on its first passage until the block is left."""
    gate = tmp_path / "gate"
    faults.arm(f"{name}=hold:{gate}@1")
    try:
        yield threading.Event()
    finally:
        gate.touch()
        faults.arm("")


@slow
def test_an_optimize_between_look_and_commit_leads_to_a_fresh_look(pipeline: Pipeline, tmp_path: Path) -> None:
    pipeline.begin(SCHEMA, *(_row(key, big=f"b{key}") for key in range(40)))
    applied = Windows(pipeline, way=DISTRIBUTED)
    applied.apply()
    for place in range(2):
        pipeline.manifest.transaction([Change("i", _row(100 + place))], SCHEMA)
        applied.apply()
    changes = [Change("u", {"id": key, "v": 5}, unchanged=("big", "at")) for key in range(20)]
    pipeline.manifest.transaction([*changes, Change("d", old={"id": 39})], SCHEMA)
    foreign = pipeline.spark.newSession()
    with _held(tmp_path, "apply.commit.before"):
        worker = threading.Thread(target=applied.apply)
        worker.start()
        while not faults.passages("apply.commit.before"):
            worker.join(0.01)
            assert worker.is_alive()
        foreign.sql(f"OPTIMIZE delta.`{pipeline.path()}`").collect()
    worker.join()
    expected = {key: _row(key, 5 if key < 20 else 0, f"b{key}") for key in range(39)}
    assert _by_key(pipeline.rows()) == {**expected, 100: _row(100), 101: _row(101)}
    operations = [item["operation"] for item in DeltaTable(pipeline.path()).history(2)]
    assert operations == ["MERGE", "OPTIMIZE"]
    _nothing_is_left(pipeline)


@slow
def test_a_window_of_hundreds_of_megabytes_takes_no_memory_of_the_driver(pipeline: Pipeline) -> None:
    schema = table_schema(column("id", 1, 20, key=True), column("v", 2, INT4), column("s", 3, TEXT))
    pipeline.begin(schema)
    applied = Windows(pipeline, way=DISTRIBUTED, max_memory_bytes=64 << 20)
    applied.apply()
    at_once, count, end = 40_000, 8, 1000
    decoded = 0
    segments = []
    for number in range(count):
        rows = _wide_rows(number, at_once)
        decoded += rows.nbytes
        segments.append(pipeline.manifest.stored(rows, schema, first_lsn=end, last_lsn=end))
        del rows
    pipeline.manifest.append(Changes(tuple(segments), Commits([end], [end], [7])), through_lsn=end)
    assert decoded > 200 << 20
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        assert applied.apply().rows == at_once * count
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < 1 << 20, "Arrow's memory in the driver"
    answer = (
        pipeline.spark.read.format("delta")
        .load(str(pipeline.path()))
        .selectExpr("count(*)", "sum(v)", "sum(length(s))", "count(DISTINCT id)")
        .first()
    )
    half = at_once // 2
    assert answer is not None
    assert tuple(answer) == (count * half, half * (count * 2 - 1), 660 * count * half, count * half)

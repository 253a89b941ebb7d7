"""Windows that Spark's executors read, fold, find and write: the same rows as in the other ways, one commit, and
nothing of what failed, was refused or was tried twice.
"""

import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable

from sluice import faults
from sluice.contract.entries import BodyCommit, Changes, Commits
from sluice.contract.schema import TableSchema
from sluice.contract.xids import XidIntervals
from sluice.errors import ManifestCorrupt, UnsupportedChange
from sluice_spark.lake.commit_way import DIRECT, DISTRIBUTED, MERGE, CommitWay
from sluice_spark.options import AUTO
from tests.spark.changes import FLOAT8, INT4, TEXT, TIMESTAMP, Change, column, table_schema
from tests.spark.conftest import Pipeline, held
from tests.spark.model import SCHEMA, by_key, row
from tests.spark.test_large_windows import SMALL, nothing_is_left
from tests.spark.windows import Windows
from tests.support.extent import cases, slow

WITHOUT_KEY = table_schema(column("a", 1, INT4), column("s", 2, TEXT), identity="f")


@slow
def test_composite_marked_and_double_keys_are_found_as_the_merge_finds_them(pipeline: Pipeline) -> None:
    parts = (column("t", 1, TEXT, key=True), column("at", 2, TIMESTAMP, key=True), column("f", 3, FLOAT8, key=True))
    schema = table_schema(*parts, column("v", 4, INT4))
    keys = [("a", None, 0.0), ("a", None, float("nan")), ("ä", None, -1.5), ("", None, 1e300)]
    pipeline.begin(schema)
    applied = Windows(pipeline, way=DISTRIBUTED)
    applied.apply()
    rows = [{"t": t, "at": at, "f": f} for t, at, f in keys]
    ends = [{"at": "infinity"}, {"at": "-infinity"}]
    applied.change(*(Change("i", {**one, "v": 0}, special=end) for one in rows for end in ends))
    changed = [Change("u", {**one, "v": 1}, special=ends[0]) for one in rows]
    # One zero is the other in a key.
    gone = [
        Change("d", old={**one, "f": -one["f"] if one["f"] == 0 else one["f"]}, old_special=ends[1]) for one in rows[:2]
    ]
    assert applied.change(*changed, *gone).way == CommitWay(DISTRIBUTED)
    found = sorted((one["t"], one["at"], str(one["f"]), one["v"]) for one in pipeline.rows())
    assert found == sorted(
        [*((t, "infinity", str(f), 1) for t, _, f in keys), *((t, "-infinity", str(f), 0) for t, _, f in keys[2:])]
    )


@slow
def test_auto_distributes_what_does_not_fit_and_the_rest_is_direct(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, *(row(key) for key in range(200)))
    applied = Windows(pipeline, way=AUTO, max_memory_bytes=SMALL)
    applied.apply()
    for keys, way in ((range(2), DIRECT), (range(200), DISTRIBUTED)):
        assert applied.change(*(Change("u", row(key, 1)) for key in keys)).way == CommitWay(way)
    assert {one["v"] for one in pipeline.rows()} == {1}


@slow
def test_a_table_that_only_spark_can_write_to_gets_a_merge(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, *(row(key) for key in range(50)))
    applied = Windows(pipeline, way=DISTRIBUTED, max_memory_bytes=SMALL)
    applied.apply()
    pipeline.set(enableDeletionVectors="false")
    for keys in (range(1), range(50)):
        assert applied.change(*(Change("u", row(key, 1)) for key in keys)).way.name == MERGE
    assert by_key(pipeline.rows()) == {key: row(key, 1) for key in range(50)}


ROLLED_BACK: dict[str, tuple[TableSchema, dict[str, object], dict[str, object]]] = {
    "a key": (SCHEMA, row(5), {"way": DISTRIBUTED}),
    "no key": (WITHOUT_KEY, {"a": 1, "s": "x"}, {"way": DISTRIBUTED}),
    "no key, too large": (WITHOUT_KEY, {"a": 1, "s": "x"}, {"way": AUTO, "max_memory_bytes": 100}),
}


@pytest.mark.parametrize("case", cases(ROLLED_BACK, quick=["a key", "no key, too large"]))
def test_a_window_that_was_rolled_back_commits_nothing(pipeline: Pipeline, case: str) -> None:
    schema, values, options = ROLLED_BACK[case]
    pipeline.begin(schema, values)
    applied = Windows(pipeline, **options)
    applied.apply()
    before = pipeline.version()
    body = BodyCommit(end_lsn=500, commit_time_us=500, xid=7, aborted_xids=XidIntervals.of([7]))
    segment = pipeline.manifest.segment([Change("d", old=values, lsn=None)], schema, body=body)
    pipeline.manifest.append(Changes((segment,), Commits([500], [500], [7])), through_lsn=500)
    assert not applied.apply().committed
    assert pipeline.version() == before
    nothing_is_left(pipeline)


@pytest.mark.parametrize("kind", ["window", "appended window", "snapshot"])
def test_a_segment_with_other_bytes_stops_the_table_and_is_named(pipeline: Pipeline, kind: str) -> None:
    pipeline.begin(SCHEMA, row(1), row(2))
    applied = Windows(pipeline, way=DISTRIBUTED)
    if kind != "snapshot":
        applied.apply()
        pipeline.change(*(Change("u" if kind == "window" else "i", row(key, 7)) for key in (1, 2, 3)))
    key = max(pipeline.store.list("data/"))
    pipeline.damage(key)
    with pytest.raises(ManifestCorrupt, match=key):
        applied.apply()
    if kind == "snapshot":
        assert not DeltaTable.is_deltatable(str(pipeline.path()))
    else:
        assert by_key(pipeline.rows()) == {1: row(1), 2: row(2)}
        nothing_is_left(pipeline)


@pytest.mark.parametrize(
    ("snapshot", "change", "said"),
    [
        ((row(1), row(2)), Change("u", {"id": 3, "v": 1}, unchanged=("big",)), "no row to keep it from"),
        pytest.param(
            (row(1), row(2), row(2)),
            Change("u", row(2, 1)),
            "two rows of the lake table have the same key",
            marks=slow,
        ),
    ],
    ids=["a value without a row", "two rows with one key"],
)
def test_what_the_lake_contradicts_stops_the_table(
    pipeline: Pipeline, snapshot: tuple[dict[str, object], ...], change: Change, said: str
) -> None:
    pipeline.begin(SCHEMA, *snapshot)
    applied = Windows(pipeline, way=DISTRIBUTED)
    applied.apply()
    with pytest.raises(UnsupportedChange, match=said):
        applied.change(change)
    nothing_is_left(pipeline)


@slow
def test_an_optimize_between_look_and_commit_leads_to_a_fresh_look(pipeline: Pipeline, tmp_path: Path) -> None:
    pipeline.begin(SCHEMA, *(row(key, big=f"b{key}") for key in range(40)))
    applied = Windows(pipeline, way=DISTRIBUTED)
    applied.apply()
    for place in range(2):
        applied.change(Change("i", row(100 + place)))
    changes = [Change("u", {"id": key, "v": 5}, unchanged=("big", "at")) for key in range(20)]
    pipeline.change(*changes, Change("d", old={"id": 39}))
    with held(tmp_path / "gate", "apply.commit.before@1"):
        worker = threading.Thread(target=applied.apply)
        worker.start()
        while not faults.passages("apply.commit.before"):
            worker.join(0.01)
            assert worker.is_alive()
        pipeline.sql("OPTIMIZE {t}")
    worker.join()
    expected = {key: row(key, 5 if key < 20 else 0, f"b{key}") for key in range(39)}
    assert by_key(pipeline.rows()) == {**expected, 100: row(100), 101: row(101)}
    assert [item["operation"] for item in DeltaTable(pipeline.path()).history(2)] == ["MERGE", "OPTIMIZE"]
    nothing_is_left(pipeline)

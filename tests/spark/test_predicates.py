"""Other engines find by a condition what a full scan of theirs finds, in the files of every way to commit: no statistic
and no dictionary of ours leaves out a row.
"""

from typing import Any

import pytest
from deltalake import DeltaTable

from sluice_spark.lake.commit_way import DIRECT, DISTRIBUTED, MERGE
from tests.spark.canonical import marks, typed
from tests.spark.changes import INT8, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.spark.predicates import KINDS, differences, name_of, rows, with_ids
from tests.spark.windows import Windows
from tests.support.extent import FULL, cases

SCHEMA = table_schema(
    column("id", 1, INT8, key=True),
    *(kind.column(name_of(name), place) for place, (name, kind) in enumerate(KINDS.items(), start=2)),
)
FLOATS = ("double", "real", "double precision[]")


def _change(op: str, row: dict[str, Any]) -> Change:
    return Change(op, typed(row), special=marks(row))


def _snapshot(pipeline: Pipeline, every: list[dict[str, Any]]) -> None:
    pipeline.manifest.table(SCHEMA)
    pipeline.manifest.snapshot([typed(row) for row in every], SCHEMA)


def _fill(pipeline: Pipeline, way: str) -> Windows:
    files = with_ids(rows())
    if way in ("first", "snapshot"):
        _snapshot(pipeline, [row for file in files for row in file])
        windows = Windows(pipeline, way=DIRECT if way == "first" else DISTRIBUTED)
        windows.apply()
        return windows
    _snapshot(pipeline, [])
    windows = Windows(pipeline, way=way if way in (DISTRIBUTED, MERGE) else DIRECT)
    windows.apply()
    for file in files:
        pipeline.manifest.transaction([_change("i", row) for row in file], SCHEMA)
        if way != "one file":
            windows.apply()
    if way == "one file":
        windows.apply()
    if way == "vectors":
        for file in files:
            pipeline.manifest.transaction([Change("d", old={"id": file[0]["id"]}), _change("u", file[-1])], SCHEMA)
            windows.apply()
    if way == "joined":
        for number in range(20):
            pipeline.manifest.transaction([_change("i", {"id": 1000 + number})], SCHEMA)
            windows.apply()
        assert windows.table is not None
        assert (windows.table.known_file_count or 99) < 20, "nothing was joined"
    if way == "optimized":
        pipeline.spark.newSession().sql(f"OPTIMIZE delta.`{pipeline.path()}`").collect()
    return windows


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "way",
    cases(
        [DIRECT, "first", "one file", "vectors", "joined", "optimized", DISTRIBUTED, "snapshot", MERGE], quick=[DIRECT]
    ),
)
def test_a_condition_finds_what_a_full_scan_finds(pipeline: Pipeline, way: str) -> None:
    _fill(pipeline, way)
    wrong = differences(pipeline.spark, pipeline.path(), KINDS if FULL else FLOATS, every=FULL)
    assert not wrong, f"{len(wrong)} differences, such as\n" + "\n".join(wrong[:40])


def test_files_that_may_mislead_are_written_anew(pipeline: Pipeline) -> None:
    """Files of another writer under the name that ours had when they had such statistics."""
    before, windows = _fill(pipeline, "one file"), Windows(pipeline, way=MERGE)
    windows.place, windows.state = before.place, before.state
    for number in range(2):
        pipeline.manifest.transaction([_change("i", {"id": 1000 + number})], SCHEMA)
        windows.apply()
    assert any(path.endswith("-c000.snappy.parquet") for path in DeltaTable(pipeline.path()).file_uris())
    direct = Windows(pipeline, way=DIRECT)
    direct.place, direct.state = windows.place, windows.state
    pipeline.manifest.transaction([_change("i", {"id": 2000})], SCHEMA)
    direct.apply()
    assert all(path.endswith("-c001.snappy.parquet") for path in DeltaTable(pipeline.path()).file_uris())
    assert len(pipeline.rows()) == sum(map(len, rows())) + 3

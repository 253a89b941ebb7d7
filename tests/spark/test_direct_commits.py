"""Commits without a Spark job: what is right once is right after many."""

import random

from deltalake import DeltaTable

from sluice_spark.options import DIRECT
from tests.spark.changes import INT8, TEXT, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.spark.windows import Windows

ITEMS = table_schema(column("id", 1, INT8, key=True), column("s", 2, TEXT))
MOST_FILES = 16 + 2


def test_files_stay_few_and_rows_right_over_many_windows(pipeline: Pipeline) -> None:
    chance = random.Random(11)
    rows: dict[int, str | None] = {number: f"row {number}" for number in range(500)}
    first: list[dict[str, object]] = [{"id": key, "s": text} for key, text in rows.items()]
    pipeline.begin(ITEMS, *first)
    windows = Windows(pipeline)
    windows.apply()
    for number in range(45):
        changes = []
        for _ in range(20):
            key = chance.randrange(700)
            if key not in rows:
                rows[key] = f"new {number}"
                changes.append(Change("i", {"id": key, "s": rows[key]}))
            elif chance.random() < 0.5:
                rows[key] = None
                changes.append(Change("u", {"id": key, "s": None}))
            else:
                del rows[key]
                changes.append(Change("d", old={"id": key}))
        pipeline.manifest.transaction(changes, ITEMS)
        windows.apply()
        assert windows.table is not None
        assert windows.table.way.name == DIRECT, windows.table.way.reason
        assert len(DeltaTable(pipeline.path()).file_uris()) <= MOST_FILES
    expected = [{"id": key, "s": text} for key, text in rows.items()]
    assert sorted(pipeline.rows(), key=str) == sorted(expected, key=str)
    assert {item["operation"] for item in DeltaTable(pipeline.path()).history()} >= {"MERGE", "OPTIMIZE"}
    pipeline.apply()
    assert [row.state for row in pipeline.reported().values()] == ["live"]

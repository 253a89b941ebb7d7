"""Lake tables without column mapping and without deletion vectors, for readers that know neither: every change of rows
and columns comes to them, and their data files read alone have the columns of the table.
"""

import json
from dataclasses import replace
from itertools import product
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from sluice.contract.applied import AppliedTable
from sluice_spark.lake.commit_way import DIRECT, MERGE
from tests.spark.changes import INT4, INT8, TEXT, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.support.extent import cases, slow

FLOAT8 = 701
UNMAPPED, NO_VECTORS = {"delta.columnMapping.mode": "none"}, {"delta.enableDeletionVectors": "false"}
BOTH = {**UNMAPPED, **NO_VECTORS}
PLAIN = {"unmapped": UNMAPPED, "both": BOTH}
IDENTITY, WHO, WHAT = column("id", 1, INT8, key=True), column("who", 2, INT4), column("what", 3, TEXT)
WEIGHT = column("weight", 4, FLOAT8)
SCHEMA = table_schema(IDENTITY, WHO, WHAT, WEIGHT)
ROWS: list[dict[str, object]] = [
    {"id": number, "who": number % 3, "what": f"w{number}", "weight": -0.0 if number % 2 else 0.0}
    for number in range(1, 41)
]


def _apply(
    pipeline: Pipeline, properties: dict[str, str], *, kind: str = "mirror", state: str = "live"
) -> AppliedTable:
    target = {"kind": kind, "layout": {"properties": tuple(properties.items())}}
    return pipeline.applied(target=target, state=state)


def _features(pipeline: Pipeline) -> set[str]:
    (found,) = pipeline.sql("DESCRIBE DETAIL {t}")
    return set(found["tableFeatures"])


def _rows(pipeline: Pipeline) -> list[dict[str, Any]]:
    """As delta-rs reads them, without our own columns."""
    return sorted(pipeline.rows(), key=lambda row: row["id"])


def _read_alone(pipeline: Pipeline) -> list[dict[str, Any]]:
    """The same by a reader of Parquet that is given the files and nothing else: by pyarrow, and by DuckDB."""
    live: set[str] = set()
    for file in sorted(pipeline.log().glob("*.json")):
        for line in file.read_text().splitlines():
            action = json.loads(line)
            live |= {action["add"]["path"]} if "add" in action else set()
            live -= {action["remove"]["path"]} if "remove" in action else set()
            assert not action.get("add", {}).get("deletionVector")
    files = [str(pipeline.path() / unquote(path)) for path in live]
    rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    rows = [{name: value for name, value in row.items() if not name.startswith("_sluice")} for row in rows]
    counting = "SELECT count(*) FROM read_parquet($1, union_by_name = true)"
    assert duckdb.connect().execute(counting, [files]).fetchall() == [(len(rows),)]
    return sorted(rows, key=lambda row: row["id"])


def _signs(rows: list[dict[str, Any]]) -> list[str]:
    return [str(row["weight"]) for row in rows]


def test_every_change_of_rows_comes_to_a_table_that_any_reader_can_read(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, *ROWS)
    assert not _apply(pipeline, BOTH).maintenance.failing
    assert not _features(pipeline) & {"deletionVectors", "columnMapping"}
    assert DeltaTable(pipeline.path()).protocol().reader_features == ["timestampNtz"]
    changes = [Change("u", {"id": 3, "who": 9, "weight": -0.0}, unchanged=("what",)), Change("d", old={"id": 4})]
    pipeline.change(*changes, Change("i", {"id": 100, "who": 1, "what": "", "weight": 0.0}))
    row = _apply(pipeline, BOTH)
    assert (row.way, row.way_reason) == (MERGE, "deletion vectors are off")
    expected: dict[object, dict[str, object]] = {row["id"]: dict(row) for row in ROWS}
    del expected[4]
    expected[3] |= {"who": 9, "weight": -0.0}
    expected[100] = {"id": 100, "who": 1, "what": "", "weight": 0.0}
    rows = sorted(expected.values(), key=lambda row: str(row["id"]).zfill(9))
    assert _rows(pipeline) == _read_alone(pipeline) == rows
    assert _signs(_rows(pipeline)) == _signs(_read_alone(pipeline)) == _signs(rows), "a zero lost its sign"


@pytest.mark.parametrize("kind", cases(["mirror", "history"], quick=["history"]))
def test_without_column_mapping_alone_windows_stay_direct(pipeline: Pipeline, kind: str) -> None:
    pipeline.begin(SCHEMA, *ROWS)
    _apply(pipeline, UNMAPPED, kind=kind)
    pipeline.change(Change("u", {"id": 3, "who": 9, "weight": 1.5}, unchanged=("what",)))
    assert _apply(pipeline, UNMAPPED, kind=kind).way == DIRECT
    assert "columnMapping" not in _features(pipeline)
    current = [row for row in pipeline.rows() if row["id"] == 3 and row["who"] == 9]
    assert [(row["what"], row["weight"]) for row in current] == [("w3", 1.5)]


@slow
def test_without_vectors_alone_rows_are_merged_and_columns_keep_their_files(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, *ROWS)
    _apply(pipeline, NO_VECTORS)
    assert _features(pipeline) & {"deletionVectors", "columnMapping"} == {"columnMapping"}
    pipeline.evolve(table_schema(IDENTITY, replace(WHO, name="whom"), WHAT, WEIGHT, version=2))
    pipeline.change(Change("d", old={"id": 4}))
    assert _apply(pipeline, NO_VECTORS).way == MERGE
    assert [row["whom"] for row in _rows(pipeline)] == [row["who"] for row in ROWS if row["id"] != 4]


QUICK = [("history", "unmapped")]


@pytest.mark.parametrize(("kind", "plain"), cases(product(("mirror", "history", "changelog"), PLAIN), quick=QUICK))
def test_columns_that_are_renamed_dropped_and_come_again_have_their_own_values(
    pipeline: Pipeline, kind: str, plain: str
) -> None:
    properties = PLAIN[plain]
    pipeline.begin(SCHEMA, *ROWS)
    _apply(pipeline, properties, kind=kind)
    # Two columns exchange their names; one is dropped; another one gets its name, and must not have its values.
    weight, who = replace(WHO, name="weight"), replace(WEIGHT, name="who")
    exchanged = table_schema(IDENTITY, weight, WHAT, who, version=2)
    dropped = table_schema(IDENTITY, weight, who, version=3)
    again = table_schema(IDENTITY, weight, who, column("what", 5, TEXT), version=4)
    expected: list[dict[str, object]] = [{"id": row["id"], "weight": row["who"], "who": row["weight"]} for row in ROWS]
    for number, schema in enumerate((exchanged, dropped, again), start=1):
        pipeline.evolve(schema)
        added: dict[str, object] = {"id": 100 + number, "weight": number, "who": -0.0}
        pipeline.change(Change("i", added))
        expected.append(added)
        _apply(pipeline, properties, kind=kind)
    named = [{name: row[name] for name in ("id", "weight", "who")} for row in _rows(pipeline)]
    assert named == expected
    assert [str(row["who"]) for row in named] == [str(row["who"]) for row in expected]
    assert {row["what"] for row in _rows(pipeline)} == {None}
    if properties is BOTH and kind == "mirror":
        assert [row["weight"] for row in _read_alone(pipeline)] == [row["weight"] for row in expected]


def test_a_table_that_is_there_keeps_its_features_and_says_so(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, *ROWS)
    _apply(pipeline, {})
    failing = _apply(pipeline, BOTH).maintenance.failing
    pipeline.change(Change("d", old={"id": 4}))
    row = _apply(pipeline, BOTH)
    assert "rebuild" in {**failing, **row.maintenance.failing}["layout"]
    assert row.way == DIRECT
    assert len(_rows(pipeline)) == len(ROWS) - 1


@slow
def test_a_table_without_column_mapping_takes_no_name_that_needs_it_whatever_is_configured_since(
    pipeline: Pipeline,
) -> None:
    pipeline.begin(SCHEMA, *ROWS)
    _apply(pipeline, UNMAPPED)
    pipeline.evolve(table_schema(IDENTITY, WHO, WHAT, replace(WEIGHT, name="a.b"), version=2))
    pipeline.change(Change("i", {"id": 100, "a.b": -0.0}), Change("i", {"id": 101, "a.b": 0.0}))
    assert "'a.b'" in _apply(pipeline, {}, state="stale").reason
    assert _rows(pipeline) == ROWS


def test_a_name_that_needs_column_mapping_stops_the_table_by_name(pipeline: Pipeline) -> None:
    schema = table_schema(IDENTITY, column("a.b", 2, FLOAT8))
    pipeline.begin(schema, {"id": 1, "a.b": 1.5})
    assert "'a.b'" in _apply(pipeline, UNMAPPED, state="stale").reason

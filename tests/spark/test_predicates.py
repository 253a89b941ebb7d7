"""Other engines find by a condition what a full scan of theirs finds, in the files of every way to commit: no statistic
and no dictionary of ours leaves out a row.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from sluice.contract.schema import TableSchema
from sluice_spark.lake.commit_way import DIRECT, DISTRIBUTED, MERGE
from tests.spark.canonical import marks, typed
from tests.spark.changes import FLOAT8, INT4, INT8, TEXT, Change, column, table_schema
from tests.spark.conftest import Pipeline
from tests.spark.pools import FLOAT4, FLOAT8_ARRAY
from tests.spark.predicates import KINDS, DataFusion, Datasets, DuckDb, Spark, differences, name_of, rows, with_ids
from tests.spark.windows import Windows
from tests.support.extent import FULL, cases

ID = column("id", 1, INT8, key=True)
SCHEMA = table_schema(
    ID,
    *(kind.column(name_of(name), place) for place, (name, kind) in enumerate(KINDS.items(), start=2)),
)
WRITERS = (DIRECT, DISTRIBUTED, MERGE, "optimized")
"""Ways with a writer of data files of their own; the others put its files in other places, or join them."""
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
        pipeline.change(*(_change("i", row) for row in file), schema=SCHEMA)
        if way != "one file":
            windows.apply()
    if way == "one file":
        windows.apply()
    if way == "vectors":
        for file in files:
            windows.change(Change("d", old={"id": file[0]["id"]}), _change("u", file[-1]), schema=SCHEMA)
    if way == "joined":
        for number in range(20):
            windows.change(_change("i", {"id": 1000 + number}), schema=SCHEMA)
        assert windows.table is not None
        assert (windows.table.known_file_count or 99) < 20, "nothing was joined"
    if way == "optimized":
        session = pipeline.spark.newSession()
        session.conf.set("spark.databricks.delta.optimize.maxFileSize", str(20_000))
        session.sql(f"OPTIMIZE delta.`{pipeline.path()}`").collect()
        assert len(DeltaTable(pipeline.path()).file_uris()) > 1, "in one file all bounds are wide"
        # Bounds that Spark wrote are then read as it spells them in a checkpoint.
        log = cast("Any", session._jvm).org.apache.spark.sql.delta.DeltaLog
        log.forTable(session._jsparkSession, str(pipeline.path())).checkpoint()
        assert list((pipeline.path() / "_delta_log").glob("*.checkpoint*.parquet"))
    return windows


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "way",
    cases([DIRECT, "first", "one file", "vectors", "joined", "optimized", DISTRIBUTED, "snapshot", MERGE], quick=[]),
)
def test_a_condition_finds_what_a_full_scan_finds(pipeline: Pipeline, way: str) -> None:
    _fill(pipeline, way)
    path = pipeline.path()
    engines = (DataFusion(path), DuckDb(path), Datasets(path))
    wrong = [one for engine in engines for one in differences(engine, KINDS if FULL else FLOATS, every=FULL)]
    with ThreadPoolExecutor(2) as pool:
        for some in pool.map(lambda kind: _spark_differences(pipeline, way, kind), KINDS if FULL else FLOATS[:1]):
            wrong += some
    assert not wrong, f"{len(wrong)} differences, such as\n" + "\n".join(wrong[:40])
    assert not stated_floats(path)


def _spark_differences(pipeline: Pipeline, way: str, kind: str) -> list[str]:
    """Files of each writer are asked by either bound. Those of the other ways are asked for each value, which a bound
    that is wrong at either end would leave out.
    """
    spark = Spark(pipeline.spark, pipeline.path())
    if way in WRITERS:
        return differences(spark, [kind], every=FULL and kind in ("double", "real", "text"))
    return differences(spark, [kind], every=False, only=("IS NULL", "IS NOT NULL", "=", "LIKE"))


def test_no_writer_states_bounds_of_floats_whatever_becomes_of_the_columns(pipeline: Pipeline) -> None:
    """Spark goes by the table's properties."""
    number, text = column("a", 2, INT4), column("comma, `tick` and dot.", 3, TEXT)
    first = table_schema(ID, number, text)
    added = table_schema(ID, number, text, column("d", 4, FLOAT8, missing="-0"), version=2)
    list_added = replace(added, version=3, columns=(*added.columns, column("e", 5, FLOAT8_ARRAY)))
    renamed = replace(list_added, version=4, columns=(ID, replace(number, name="d2"), *list_added.columns[2:]))
    anew = replace(renamed, version=5, columns=(*renamed.columns[1:4], ID, column("f", 6, FLOAT4, missing="NaN")))
    dropped = replace(anew, version=6, columns=(ID, column("later", 7, INT4, missing="7")))
    pipeline.begin(first, {"id": 1, "a": 1, text.name: "x"})
    versions = (first, added, list_added, renamed, anew, dropped)[: None if FULL else 2]
    for place, schema in enumerate(versions, start=1):
        if schema != first:
            pipeline.evolve(schema)
        values = {one.name: _VALUES[one.lake.sql] for one in schema.columns if one != ID}
        pipeline.change(*(Change("i", {**values, "id": 10 * place + number}) for number in range(9)))
        assert pipeline.applied(way=MERGE).reason == "", schema.version
        _require_stated(pipeline.path(), schema)
        if schema in (added, anew):
            pipeline.sql("OPTIMIZE {t}")
            _require_stated(pipeline.path(), schema)
    assert len(pipeline.rows()) == 1 + 9 * len(versions)


def _require_stated(path: Path, schema: TableSchema) -> None:
    assert not stated_floats(path), schema.version
    bounded = {one.name for one in schema.columns if one.lake.sql in ("bigint", "int", "string")}
    assert stated_columns(path) >= bounded, schema.version


_VALUES: dict[str, Any] = {"int": 5, "string": "y", "double": -0.0, "float": 0.0, "array<double>": [float("nan")]}


def stated_floats(path: Path) -> list[str]:
    """Columns with floating-point numbers of which a data file that was ever committed has bounds or a dictionary."""
    floats: set[str] = set()
    found = []
    for action in _actions(path):
        if "metaData" in action:
            floats |= {
                _physical(field)
                for field in json.loads(action["metaData"]["schemaString"])["fields"]
                if "double" in json.dumps(field["type"]) or "float" in json.dumps(field["type"])
            }
        elif "add" in action:
            stats = json.loads(action["add"]["stats"])
            bounded = {*stats.get("minValues", ()), *stats.get("maxValues", ())}
            found += [f"{name} in the log" for name in floats & bounded]
            group = pq.ParquetFile(path / unquote(action["add"]["path"])).metadata.row_group(0)
            for one in (group.column(place) for place in range(group.num_columns)):
                is_stated = one.statistics is not None or one.has_dictionary_page
                if is_stated and one.path_in_schema.split(".")[0] in floats:
                    found.append(f"{one.path_in_schema} in {action['add']['path']}")
    return found


def stated_columns(path: Path) -> set[str]:
    """Columns of which the data file that was committed last has bounds in the log."""
    names: dict[str, str] = {}
    stated: set[str] = set()
    for action in _actions(path):
        if "metaData" in action:
            names = {_physical(one): one["name"] for one in json.loads(action["metaData"]["schemaString"])["fields"]}
        elif "add" in action:
            stated = {names.get(name, "") for name in json.loads(action["add"]["stats"]).get("minValues", ())}
    return stated


def _physical(field: dict[str, Any]) -> str:
    return str(field["metadata"]["delta.columnMapping.physicalName"])


def _actions(path: Path) -> Iterator[dict[str, Any]]:
    for log in sorted((path / "_delta_log").glob("*.json")):
        for line in log.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)

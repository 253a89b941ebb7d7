"""Spool and lake on S3: the applier's own process, its own jars and settings, read back by
another engine.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from sluice.contract import keys
from sluice.contract.applied import AppliedLog
from sluice.errors import UsageError
from sluice.store.opening import open_store
from sluice_spark import jars
from sluice_spark.options import ApplyOptions
from tests.spark.changes import FLOAT8, INT4, Change, Manifest, column, table_schema
from tests.spark.model import SCHEMA
from tests.spark.processes import SMALL_JVM, run_applier
from tests.support.policies import GuardedS3, guarded_s3


def _row(key: int, v: int = 0, big: str | None = "B") -> dict[str, object]:
    return {"id": key, "v": v, "big": big, "at": None}


def _rows(s3: GuardedS3, table: str) -> list[dict[str, object]]:
    lake = DeltaTable(f"{s3.lake_uri}/public/{table}", storage_options=s3.options["anybody"])
    rows = pa.table(QueryBuilder().register("lake", lake).execute("select * from lake").read_all()).to_pylist()
    return [{name: value for name, value in row.items() if not name.startswith("_sluice")} for row in rows]


@pytest.fixture
def s3() -> Iterator[GuardedS3]:
    with guarded_s3() as server:
        yield server


def test_merge_append_overwrite_and_large_windows_on_s3_with_the_appliers_policy_alone(s3: GuardedS3) -> None:
    try:
        jars.classpath(jars.default_directory(), s3=True)
    except UsageError as error:
        pytest.fail(f"{error}: {error.hint}")
    store = open_store(s3.spool_uri, prefix="test/", options=s3.options["anybody"])
    manifest = Manifest(store)
    counted = replace(
        table_schema(column("a", 1, INT4), column("f", 2, FLOAT8), identity="f", table="counted"), table_id="16386"
    )
    emptied = replace(SCHEMA, table_id="16387", table_name="emptied")
    for schema, rows in ((SCHEMA, [_row(1), _row(2)]), (counted, [{"a": 1, "f": 0.5}] * 3), (emptied, [_row(1)])):
        manifest.table(schema)
        manifest.snapshot(list(rows), schema)
    in_parts = replace(SCHEMA, table_id="16388", table_name="in_parts")
    manifest.table(in_parts)
    for keys_read in (range(5), range(5, 9), ()):
        manifest.snapshot([_row(key) for key in keys_read], in_parts, final=not keys_read)
    manifest.transaction([Change("i", _row(key)) for key in range(3, 50)], SCHEMA)
    moved = Change("u", {"id": 100, "v": 1}, old={"id": 1}, unchanged=("big", "at"))
    manifest.transaction(
        [moved, Change("d", old={"id": 2}), *(Change("u", _row(key, 9)) for key in range(3, 50))], SCHEMA
    )
    manifest.transaction([Change("d", old={"a": 1, "f": 0.5})], counted)
    manifest.transaction([Change("t"), Change("i", _row(7))], emptied)
    small: dict[str, Any] = {
        **SMALL_JVM,
        "once": True,
        "poll_seconds": 0.1,
        "max_window_bytes": 1,
        "max_memory_bytes": 2_000,
    }
    options = ApplyOptions(
        "test",
        s3.spool_uri,
        s3.lake_uri,
        spool_options=s3.options["applier"],
        lake_options=s3.options["applier"],
        **small,
    )
    run = run_applier(options)
    assert run.code == 0, run.output
    assert sorted(_rows(s3, "items"), key=str) == sorted(
        [_row(100, 1), *(_row(key, 9) for key in range(3, 50))], key=str
    )
    assert _rows(s3, "counted") == [{"a": 1, "f": 0.5}] * 2
    assert _rows(s3, "emptied") == [_row(7)]
    assert sorted(_rows(s3, "in_parts"), key=str) == [_row(key) for key in range(9)]
    log = AppliedLog.decode(store.get(list(store.list(keys.APPLY_LOG))[-1]))
    assert {table.state for table in log.tables.values()} == {"live"}
    assert list(store.list("apply/scratch/")) == []

"""What `check` says about Java, versions, jars and Delta tables, without starting Spark."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sluice.contract import keys
from sluice.findings import Finding
from sluice.store.opening import open_store
from sluice_spark import jars, preflight
from sluice_spark.lake.features import read_protocol, unknown_features
from sluice_spark.options import ApplyOptions
from sluice_spark.preflight import Place, examine, examine_java, examine_lake_store, examine_versions
from tests.support import manifests


def of(lake: str = "file:///lake", *, spool: str = "file:///spool", **options: Any) -> ApplyOptions:
    return ApplyOptions("shop", spool, lake, **options)


def codes(findings: Iterable[Finding]) -> list[str]:
    return [finding.code for finding in findings]


GOOD = 'openjdk version "17.0.15" 2025-04-15'


@pytest.mark.parametrize(
    ("said", "bad"),
    [
        (GOOD, False),
        ('java version "21"', False),
        ('java version "1.8.0_402"', True),
        ('openjdk version "11.0.2"', True),
        ("?", True),
        (None, True),
    ],
)
def test_java_must_be_there_and_new_enough(said: str | None, bad: bool) -> None:
    assert codes(examine_java(said)) == ["lake.java"] * bad


@pytest.mark.parametrize(
    ("spark", "delta", "core", "wrong"),
    [
        ("4.2.0", "4.4.0", "spark-core_2.13-4.2.0.jar", 0),
        ("4.1.2", "4.4.0", "spark-core_2.13-4.1.2.jar", 1),
        ("4.2.0", "4.3.0", "spark-core_2.13-4.2.0.jar", 1),
        ("4.2.0", "4.4.0", "spark-core_2.12-4.2.0.jar", 1),
    ],
)
def test_spark_delta_and_scala_must_fit_each_other(spark: str, delta: str, core: str, wrong: int) -> None:
    assert codes(examine_versions(spark, delta=delta, spark_jars=[Path(core)])) == ["lake.versions"] * wrong


def found(tmp_path: Path, lake: str = "", tables: tuple[Place, ...] = (), **changed: str) -> list[str]:
    options = of(lake or f"file://{tmp_path}/lake", spool=f"file://{tmp_path}/spool", **changed)
    return codes(examine(options, tables))


def test_this_installation_is_in_order(tmp_path: Path) -> None:
    try:
        jars.classpath(jars.default_directory(), s3=False)
    except Exception as error:  # noqa: BLE001
        pytest.fail(f"{error}: run `make jars`")
    assert found(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_missing_and_changed_jars_are_named(tmp_path: Path) -> None:
    assert found(tmp_path, jars=str(tmp_path)) == ["lake.jars"]
    for name in jars.DELTA.checksums:
        (tmp_path / name).write_bytes(b"another")
    assert found(tmp_path, jars=str(tmp_path)) == ["lake.jars"]


def test_a_lake_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert found(tmp_path, f"file://{tmp_path}/file/lake") == ["lake.writable"]
    away = {"aws_endpoint": "http://127.0.0.1:1", "allow_http": "true", "aws_region": "x"}
    away |= {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    assert codes(preflight._writable(of("s3://bucket/lake", lake_options=away))) == ["lake.writable"]


@pytest.mark.parametrize(
    ("spool", "given"),
    [("az://container/spool", {}), ("s3://bucket/spool", {"aws_endpoint": "http://minio.internal"})],
    ids=["scheme", "plain http"],
)
def test_addresses_that_spark_cannot_use_are_named(spool: str, given: dict[str, str]) -> None:
    assert codes(preflight._addresses(of(spool=spool, spool_options=given))) == ["lake.address"]


def test_on_s3_it_is_said_who_may_commit() -> None:
    said = list(preflight._log_store(of("s3://bucket/lake")))
    assert [(finding.code, finding.severity) for finding in said] == [("lake.log_store", "info")]
    coordinated = {"spark.delta.logStore.s3a.impl": "io.delta.storage.S3DynamoDBLogStore"}
    assert codes(preflight._log_store(of("s3://bucket/lake", spark_conf=coordinated))) == []
    assert codes(preflight._log_store(of())) == []


def test_tables_with_features_that_delta_does_not_support_are_named_and_others_are_not(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    for name in ("known", "strange", "newer", "broken"):
        write_deltalake(lake / keys.lake_path("public", name), pa.table({"id": [1]}))
    path = {name: lake / keys.lake_path("public", name) / "_delta_log" for name in ("strange", "newer", "broken")}
    features = {"readerFeatures": ["quantum"], "writerFeatures": ["quantum", "appendOnly"]}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    (path["strange"] / f"{1:020d}.json").write_text(json.dumps({"protocol": protocol}, separators=(",", ":")))
    (path["newer"] / f"{1:020d}.json").write_text('{"protocol":{"minReaderVersion":4,"minWriterVersion":8}}')
    (path["broken"] / f"{0:020d}.json").write_text("{}")
    tables = tuple(
        Place("public", name, "", f"public/{keys.path_part(name)}")
        for name in ("known", "strange", "newer", "broken", "not there")
    )
    found = examine(of(f"file://{lake}", spool=f"file://{tmp_path}/spool"), tables)
    findings = [one for one in found if one.code == "lake.protocol"]
    assert {one.object: ("quantum" in one.seen, "4, minWriterVersion 8" in one.seen) for one in findings} == {
        "public.strange": (True, False),
        "public.newer": (False, True),
        "public.broken": (False, False),
    }


def test_the_protocol_is_found_behind_a_checkpoint_too(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    for number in range(3):
        write_deltalake(folder, pa.table({"id": [number]}), mode="append")
    table = DeltaTable(folder)
    table.create_checkpoint()
    expected = table.protocol()
    write_deltalake(folder, pa.table({"id": [9]}), mode="append")
    for number in range(3):
        (folder / "_delta_log" / f"{number:020d}.json").unlink()
    seen = read_protocol(open_store(f"file://{tmp_path}", options={}), "t/")
    assert seen is not None
    versions = (expected.min_reader_version, expected.min_writer_version)
    assert (seen["minReaderVersion"], seen["minWriterVersion"]) == versions
    assert unknown_features(seen) == []
    assert read_protocol(open_store(f"file://{tmp_path}", options={}), "none/") is None


def test_a_lake_on_a_store_that_no_test_commits_to_is_refused_by_name(tmp_path: Path) -> None:
    for uri in ("gs://acme-lake", "abfss://lake@acme.dfs.core.windows.net/x"):
        found = examine(ApplyOptions("shop", tmp_path.as_uri(), uri), [])
        assert [one.severity for one in found if one.code == "lake.unproven"] == ["critical"]
    for uri in ("s3://acme-lake", "file:///var/lake"):
        assert list(examine_lake_store(uri)) == []


def test_a_table_is_looked_at_where_it_stands_and_not_where_its_name_would_put_it(tmp_path: Path) -> None:
    lake, spool = tmp_path / "lake", open_store(f"file://{tmp_path}/spool", prefix="shop/", options={})
    table = manifests.table(path="public/items~t7")
    manifests.open_log(spool).append(table)
    for path, readable in ((table.path, False), (keys.lake_path(table.schema_name, table.table_name), True)):
        write_deltalake(lake / path, pa.table({"id": [1]}))
        if not readable:
            (lake / path / "_delta_log" / f"{0:020d}.json").write_text("{}")
    assert found(tmp_path, tables=(Place(table.schema_name, table.table_name, "", "elsewhere"),))[-1:] == [
        "lake.protocol"
    ]

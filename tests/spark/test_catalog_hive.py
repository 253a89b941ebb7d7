"""Lake tables have names in a Hive metastore, whatever becomes of the metastore."""

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from pyspark.sql import SparkSession

from sluice import faults
from sluice.contract.applied import CATALOG, AppliedTable
from sluice.contract.entries import Table
from sluice.contract.schema import TableSchema
from sluice.contract.table_state import State
from sluice_spark.catalog.columns import columns_of
from sluice_spark.catalog.entries import Entry, Found
from sluice_spark.catalog.hive import HiveCatalog
from tests.spark.changes import TEXT, Change, column
from tests.spark.conftest import Pipeline, Running, running
from tests.spark.model import SCHEMA
from tests.spark.processes import SMALL_JVM, run_applier
from tests.support.extent import slow
from tests.support.metastore import Door, Metastore, metastore, read_in_spark
from tests.support.pipeline import wait_until

ID = SCHEMA.table_id


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metastore]:
    with metastore(tmp_path_factory.mktemp("metastore")) as found:
        yield found


@pytest.fixture(scope="module")
def hive(server: Metastore, spark: SparkSession) -> Iterator[HiveCatalog]:
    catalog = HiveCatalog(spark._jvm, uri=server.uri, timeout_seconds=20, create_schemas=True)
    yield catalog
    catalog.close()


def _catalog(uri: str, template: str, *, timeout: float = 20.0) -> dict[str, object]:
    names = {"template": template, "pipeline": "shop", "database": ""}
    return {
        "kind": "hive", "names": names, "uri": uri, "token": "", "create_schemas": True, "timeout_seconds": timeout,
    }  # fmt: skip


def _row(key: int, **more: object) -> dict[str, object]:
    return {"id": key, "v": key, "big": "B", "at": None, **more}


def _begin(pipeline: Pipeline) -> None:
    pipeline.begin(SCHEMA, _row(1), _row(2))


def _names(found: Found | None) -> list[str]:
    assert found is not None
    return [str(column[0]) for column in found.columns if isinstance(column, tuple) and column[0][:1] != "_"]


def _failing(table: AppliedTable) -> str:
    return table.maintenance.failing.get(CATALOG, "")


def _counted(work: Running, state: str) -> float:
    """What the metric of names says."""
    found = re.search(
        rf'^sluice_apply_catalog_tables{{.*state="{state}"}} (.+)$',
        work.telemetry.metrics.render().decode(),
        re.MULTILINE,
    )
    return float(found[1]) if found else 0.0


def test_a_table_is_read_by_its_name_after_its_first_version(pipeline: Pipeline, server: Metastore) -> None:
    _begin(pipeline)
    table = pipeline.apply(catalog=_catalog(server.uri, "first.{schema}_{target}")).tables[ID]
    assert CATALOG in table.maintenance.runs
    assert not _failing(table)
    rows, described = read_in_spark(
        server.conf, "SELECT id FROM first.public_items ORDER BY id", "DESCRIBE EXTENDED first.public_items"
    )
    assert [row["id"] for row in rows] == [1, 2]
    said = {row["col_name"]: row["data_type"] for row in described}
    assert (said["Provider"], said["Type"]) == ("delta", "EXTERNAL")


def test_commits_go_on_while_the_metastore_is_silent_and_it_learns_the_name_later(
    pipeline: Pipeline, server: Metastore, hive: HiveCatalog
) -> None:
    _begin(pipeline)
    with (
        closing(Door(server.port)) as door,
        running(pipeline, catalog=_catalog(door.uri, "later.{target}", timeout=1.0)) as work,
    ):
        wait_until(lambda: door.knocks > 0, what="the metastore is asked")
        for key in range(3, 8):
            pipeline.manifest.transaction([Change("i", _row(key))], SCHEMA)
            wait_until(lambda key=key: len(pipeline.rows()) == key, what="the row is in the lake")  # type: ignore[misc]
        wait_until(lambda: "does not answer" in _failing(pipeline.reported()[ID]), what="it is reported")
        assert pipeline.reported()[ID].state == "live"
        assert hive.find("later.items") is None
        wait_until(lambda: _counted(work, "failing") != 0, what="it is counted")
        assert (_counted(work, "registered"), _counted(work, "failing")) == (0, 1)
        door.open()
        wait_until(lambda: hive.find("later.items") is not None, what="it has its name")
        wait_until(lambda: not _failing(pipeline.reported()[ID]), what="that is reported")
        wait_until(lambda: _counted(work, "failing") == 0, what="that is counted")
        assert _counted(work, "registered") == 1
    assert not work.ended


def test_columns_and_their_names_follow_those_of_the_lake_table(
    pipeline: Pipeline, server: Metastore, hive: HiveCatalog
) -> None:
    options = {"catalog": _catalog(server.uri, "columns.{target}")}
    _begin(pipeline)
    pipeline.apply(**options)
    assert _names(hive.find("columns.items")) == ["id", "v", "big", "at"]
    one, two, three, four = SCHEMA.columns
    other, more = replace(two, name="renamed"), column("Added", 6, TEXT)
    for version, columns, expected in (
        (2, (one, two, three, four, more), ["id", "v", "big", "at", "added"]),
        (3, (one, other, three, four, more), ["id", "renamed", "big", "at", "added"]),
        (4, (one, other, four, more), ["id", "renamed", "at", "added"]),
    ):
        shape = TableSchema(ID, version, "public", "items", "d", columns)
        pipeline.manifest.table(shape, state="live", new=True)
        values = {"id": 10 + version, "v": 1, "renamed": 1, "big": "B", "at": None, "Added": "x"}
        row = {item.name: values[item.name] for item in columns}
        pipeline.manifest.transaction([Change("i", row)], shape)
        table = pipeline.apply(**options).tables[ID]
        assert (table.state, _failing(table)) == ("live", ""), table.reason
        assert _names(hive.find("columns.items")) == expected


def test_a_comment_of_the_lake_table_comes_to_its_entry(
    pipeline: Pipeline, server: Metastore, hive: HiveCatalog
) -> None:
    options = {"catalog": _catalog(server.uri, "comments.{target}")}
    _begin(pipeline)
    pipeline.apply(**options)
    pipeline.spark.sql(f"ALTER TABLE delta.`{pipeline.path()}` ALTER COLUMN v COMMENT 'how many'")
    assert not _failing(pipeline.apply(**options).tables[ID])
    found = hive.find("comments.items")
    assert found is not None
    assert ("v", "int", "how many") in found.columns


def test_a_name_follows_a_new_generation_to_its_path(pipeline: Pipeline, server: Metastore, hive: HiveCatalog) -> None:
    options = {"catalog": _catalog(server.uri, "moved.{target}")}
    _begin(pipeline)
    pipeline.apply(**options)
    first = hive.find("moved.items")
    assert first is not None
    assert first.location.endswith("/lake/public/items")
    begun = Table(ID, "public", "items", State.SNAPSHOT, 2, schema=replace(SCHEMA, version=2), path="elsewhere/items")
    pipeline.manifest.append(begun)
    pipeline.apply(**options)
    assert hive.find("moved.items") == first  # until the new one is whole
    pipeline.manifest.snapshot([_row(5)], replace(SCHEMA, version=2), generation=2)
    pipeline.apply(**options)
    moved = hive.find("moved.items")
    assert moved is not None
    assert moved.location.endswith("/lake/elsewhere/items")


def test_a_name_that_leads_elsewhere_is_left_as_it_is_and_named(
    pipeline: Pipeline, server: Metastore, hive: HiveCatalog
) -> None:
    foreign = Entry("foreign.items", "file:///somewhere/else", "another", "1", columns_of('{"fields": []}'))
    hive.create(foreign)
    before = hive.find("foreign.items")
    _begin(pipeline)
    table = pipeline.apply(catalog=_catalog(server.uri, "foreign.{target}")).tables[ID]
    assert (table.state, table.delta_version >= 0) == ("live", True)
    assert "leads to file:///somewhere/else" in _failing(table)
    assert hive.find("foreign.items") == before


def test_of_two_tables_with_one_name_the_second_does_not_get_it(
    pipeline: Pipeline, server: Metastore, hive: HiveCatalog
) -> None:
    _begin(pipeline)
    targets = {"public.items": {"targets": [{"kind": "mirror"}, {"kind": "mirror", "name": "ITEMS"}]}}
    options = {"catalog": _catalog(server.uri, "clash.{target}")}
    pipeline.apply(**options)
    before = hive.find("clash.items")
    pipeline.manifest.transaction([Change("i", _row(3))], SCHEMA)
    tables = pipeline.apply(**options, tables=targets).tables
    assert not _failing(tables[ID])
    assert "another table of this pipeline" in _failing(tables[f"{ID}/ITEMS"])
    assert hive.find("clash.items") == before


def test_a_schema_that_may_not_be_created_is_named(pipeline: Pipeline, server: Metastore, hive: HiveCatalog) -> None:
    _begin(pipeline)
    options = {**_catalog(server.uri, "not_there.{target}"), "create_schemas": False}
    table = pipeline.apply(catalog=options).tables[ID]
    assert "the catalog has no schema not_there" in _failing(table)
    table = pipeline.apply(catalog={**options, "create_schemas": True}).tables[ID]
    assert not _failing(table)
    assert hive.find("not_there.items") is not None
    assert CATALOG not in pipeline.apply().tables[ID].maintenance.runs


@slow
@pytest.mark.parametrize("point", ["before", "after"])
def test_a_kill_around_the_registration_is_made_good_by_the_next_start(
    pipeline: Pipeline, server: Metastore, hive: HiveCatalog, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    _begin(pipeline)
    options = {"catalog": _catalog(server.uri, f"killed_{point}.{{target}}")}
    monkeypatch.setenv("SLUICE_FAULTS", f"apply.catalog.{point}=crash")
    run = run_applier(pipeline.options(once=False, **options, **SMALL_JVM))
    assert run.code == faults.CRASHED, run.output
    assert (hive.find(f"killed_{point}.items") is not None) == (point == "after")
    monkeypatch.delenv("SLUICE_FAULTS")
    table = pipeline.apply(**options).tables[ID]
    assert CATALOG in table.maintenance.runs
    assert not _failing(table)
    found = hive.find(f"killed_{point}.items")
    assert found is not None
    assert found.location.endswith("/lake/public/items")


@slow
def test_the_metastore_of_hive_4_serves_the_name(pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> None:
    with metastore(tmp_path_factory.mktemp("hive4"), hive4=True) as server:
        options = {"catalog": _catalog(server.uri, "shop.{target}")}
        _begin(pipeline)
        assert not _failing(pipeline.apply(**options).tables[ID])
        shape = replace(SCHEMA, version=2, columns=(*SCHEMA.columns, column("more", 6, TEXT)))
        pipeline.manifest.table(shape, state="live", new=True)
        pipeline.manifest.transaction([Change("i", _row(3, more="x"))], shape)
        assert not _failing(pipeline.apply(**options).tables[ID])
        (rows,) = read_in_spark(server.conf, "SELECT id, more FROM shop.items ORDER BY id")
    assert [(row["id"], row["more"]) for row in rows] == [(1, None), (2, None), (3, "x")]

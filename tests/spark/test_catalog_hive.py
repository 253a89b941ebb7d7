"""Lake tables have names in a Hive metastore, whatever becomes of the metastore."""

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

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
from tests.spark.model import ID, SCHEMA, row
from tests.spark.processes import SMALL_JVM, run_applier
from tests.support.extent import slow
from tests.support.metastore import Door, Metastore, metastore, read_in_spark

pytestmark = slow


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


@pytest.fixture
def pipeline(pipeline: Pipeline) -> Pipeline:
    """With a table of two rows."""
    pipeline.begin(SCHEMA, row(1), row(2))
    return pipeline


def _found(hive: HiveCatalog, name: str) -> Found:
    found = hive.find(name)
    assert found is not None, f"there is no {name}"
    return found


def _names(found: Found) -> list[str]:
    return [str(column[0]) for column in found.columns if isinstance(column, tuple) and column[0][:1] != "_"]


def _failing(table: AppliedTable) -> str:
    return table.maintenance.failing.get(CATALOG, "")


def _named(pipeline: Pipeline, **options: Any) -> AppliedTable:
    """What is said of the table when all is applied, and nothing is wrong with its name."""
    table = pipeline.applied(**options)
    assert not _failing(table)
    return table


def _counted(work: Running, state: str) -> float:
    """What the metric of names says."""
    found = re.search(
        rf'^sluice_apply_catalog_tables{{.*state="{state}"}} (.+)$',
        work.telemetry.metrics.render().decode(),
        re.MULTILINE,
    )
    return float(found[1]) if found else 0.0


def test_a_table_is_read_by_its_name_after_its_first_version(pipeline: Pipeline, server: Metastore) -> None:
    assert CATALOG in _named(pipeline, catalog=_catalog(server.uri, "first.{schema}_{target}")).maintenance.runs
    rows, described = read_in_spark(
        server.conf, "SELECT id FROM first.public_items ORDER BY id", "DESCRIBE EXTENDED first.public_items"
    )
    assert [one["id"] for one in rows] == [1, 2]
    said = {one["col_name"]: one["data_type"] for one in described}
    assert (said["Provider"], said["Type"]) == ("delta", "EXTERNAL")


def test_commits_go_on_while_the_metastore_is_silent_and_it_learns_the_name_later(
    pipeline: Pipeline, server: Metastore, hive: HiveCatalog
) -> None:
    with (
        closing(Door(server.port)) as door,
        running(pipeline, catalog=_catalog(door.uri, "later.{target}", timeout=1.0)) as work,
    ):
        work.until(lambda: door.knocks > 0, what="the metastore is asked")
        for key in range(3, 8):
            work.takes(pipeline.change(Change("i", row(key))))
        assert pipeline.keys() == list(range(1, 8))
        assert work.says(lambda table: "does not answer" in _failing(table), "it is reported").state == "live"
        assert hive.find("later.items") is None
        work.until(lambda: _counted(work, "failing") != 0, what="it is counted")
        assert (_counted(work, "registered"), _counted(work, "failing")) == (0, 1)
        door.open()
        work.until(lambda: hive.find("later.items") is not None, what="it has its name")
        work.says(lambda table: not _failing(table), "that is reported")
        work.until(lambda: _counted(work, "failing") == 0, what="that is counted")
        assert _counted(work, "registered") == 1


def test_columns_their_names_and_comments_follow_those_of_the_lake_table(
    pipeline: Pipeline, server: Metastore, hive: HiveCatalog
) -> None:
    options = {"catalog": _catalog(server.uri, "columns.{target}")}
    pipeline.apply(**options)
    assert _names(_found(hive, "columns.items")) == ["id", "v", "big", "at"]
    one, two, three, four = SCHEMA.columns
    other, more = replace(two, name="renamed"), column("Added", 6, TEXT)
    for version, columns, expected in (
        (2, (one, two, three, four, more), ["id", "v", "big", "at", "added"]),
        (3, (one, other, three, four, more), ["id", "renamed", "big", "at", "added"]),
        (4, (one, other, four, more), ["id", "renamed", "at", "added"]),
    ):
        pipeline.evolve(TableSchema(ID, version, "public", "items", "d", columns))
        values = row(10 + version, renamed=1, Added="x")
        pipeline.change(Change("i", {item.name: values[item.name] for item in columns}))
        _named(pipeline, **options)
        assert _names(_found(hive, "columns.items")) == expected
    pipeline.sql("ALTER TABLE {t} ALTER COLUMN renamed COMMENT 'how many'")
    _named(pipeline, **options)
    assert ("renamed", "int", "how many") in _found(hive, "columns.items").columns


def test_a_name_follows_a_new_generation_to_its_path(pipeline: Pipeline, server: Metastore, hive: HiveCatalog) -> None:
    options = {"catalog": _catalog(server.uri, "moved.{target}")}
    pipeline.apply(**options)
    first = _found(hive, "moved.items")
    assert first.location.endswith("/lake/public/items")
    begun = Table(ID, "public", "items", State.SNAPSHOT, 2, schema=replace(SCHEMA, version=2), path="elsewhere/items")
    pipeline.manifest.append(begun)
    pipeline.apply(**options)
    assert hive.find("moved.items") == first  # until the new one is whole
    pipeline.manifest.snapshot([row(5)], replace(SCHEMA, version=2), generation=2)
    pipeline.apply(**options)
    assert _found(hive, "moved.items").location.endswith("/lake/elsewhere/items")


def test_what_people_wrote_to_an_entry_stays_when_its_columns_change(
    pipeline: Pipeline, server: Metastore, hive: HiveCatalog
) -> None:
    options = {"catalog": _catalog(server.uri, "kept.{target}")}
    pipeline.apply(**options)
    there = hive._get("kept.items")
    there.setOwner("somebody")
    there.setParameters(hive._map({**dict(there.getParameters()), "classification": "internal"}))
    hive._ask(lambda client: client.alter_table_with_environment_context("kept", "items", there, hive._context()))
    one, _, three, four = SCHEMA.columns
    pipeline.evolve(TableSchema(ID, 2, "public", "items", "d", (one, three, four)))
    pipeline.change(Change("i", {"id": 9}))
    _named(pipeline, **options)
    assert _names(_found(hive, "kept.items")) == ["id", "big", "at"]
    kept = hive._get("kept.items")
    assert (kept.getOwner(), dict(kept.getParameters())["classification"]) == ("somebody", "internal")


def test_a_name_that_leads_elsewhere_is_left_as_it_is_and_named(
    pipeline: Pipeline, server: Metastore, hive: HiveCatalog
) -> None:
    foreign = Entry("foreign.items", "file:///somewhere/else", "another", "1", columns_of('{"fields": []}'))
    hive.create(foreign)
    before = hive.find("foreign.items")
    table = pipeline.applied(catalog=_catalog(server.uri, "foreign.{target}"))
    assert table.delta_version >= 0
    assert "leads to file:///somewhere/else" in _failing(table)
    assert hive.find("foreign.items") == before


def test_of_two_tables_with_one_name_the_second_does_not_get_it(
    pipeline: Pipeline, server: Metastore, hive: HiveCatalog
) -> None:
    targets = {"public.items": {"targets": [{"kind": "mirror"}, {"kind": "mirror", "name": "ITEMS"}]}}
    options = {"catalog": _catalog(server.uri, "clash.{target}")}
    pipeline.apply(**options)
    before = hive.find("clash.items")
    pipeline.change(Change("i", row(3)))
    tables = pipeline.apply(**options, tables=targets).tables
    assert not _failing(tables[ID])
    assert "another table of this pipeline" in _failing(tables[f"{ID}/ITEMS"])
    assert hive.find("clash.items") == before


def test_a_schema_that_may_not_be_created_is_named(pipeline: Pipeline, server: Metastore, hive: HiveCatalog) -> None:
    options = {**_catalog(server.uri, "not_there.{target}"), "create_schemas": False}
    assert "the catalog has no schema not_there" in _failing(pipeline.applied(catalog=options))
    _named(pipeline, catalog={**options, "create_schemas": True})
    assert hive.find("not_there.items") is not None
    assert CATALOG not in pipeline.applied().maintenance.runs


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_kill_around_the_registration_is_made_good_by_the_next_start(
    pipeline: Pipeline, server: Metastore, hive: HiveCatalog, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    options: dict[str, Any] = {"catalog": _catalog(server.uri, f"killed_{point}.{{target}}")}
    monkeypatch.setenv("SLUICE_FAULTS", f"apply.catalog.{point}=crash")
    run = run_applier(pipeline.options(once=False, **options, **SMALL_JVM))
    assert run.code == faults.CRASHED, run.output
    assert (hive.find(f"killed_{point}.items") is not None) == (point == "after")
    monkeypatch.delenv("SLUICE_FAULTS")
    assert CATALOG in _named(pipeline, **options).maintenance.runs
    assert _found(hive, f"killed_{point}.items").location.endswith("/lake/public/items")


def test_the_metastore_of_hive_4_serves_the_name(pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> None:
    with metastore(tmp_path_factory.mktemp("hive4"), hive4=True) as server:
        options = {"catalog": _catalog(server.uri, "shop.{target}")}
        _named(pipeline, **options)
        pipeline.evolve(replace(SCHEMA, version=2, columns=(*SCHEMA.columns, column("more", 6, TEXT))))
        pipeline.change(Change("i", row(3, more="x")))
        _named(pipeline, **options)
        (rows,) = read_in_spark(server.conf, "SELECT id, more FROM shop.items ORDER BY id")
    assert [(one["id"], one["more"]) for one in rows] == [(1, None), (2, None), (3, "x")]

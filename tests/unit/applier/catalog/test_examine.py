"""What `check` says of the names in a catalog, before anything is registered."""

from collections.abc import Iterator
from typing import Any

import pytest

from sluice_spark.catalog.entries import Entry
from sluice_spark.catalog.examine import examine_catalog, examine_names
from sluice_spark.catalog.options import CatalogOptions
from sluice_spark.options import ApplyOptions
from tests.support.unity_catalog import UnityStub, unity_catalog

TABLES = {
    "public.orders": ("public", "orders", "", "public/orders"),
    "public.items": ("public", "items", "", "public/items"),
}


@pytest.fixture
def stub() -> Iterator[UnityStub]:
    with unity_catalog() as found:
        yield found


def _options(stub: UnityStub, *, create: bool = True) -> ApplyOptions:
    names = {"template": "shop.{schema}.{target}", "pipeline": "shop", "database": ""}
    catalog: dict[str, Any] = {
        "kind": "unity", "names": names, "uri": stub.uri, "token": "", "create_schemas": create, "timeout_seconds": 5.0,
    }  # fmt: skip
    return ApplyOptions("shop", "file:///spool", "file:///lake", catalog=catalog)


def _codes(options: ApplyOptions, tables: dict[str, tuple[str, str, str, str]] = TABLES) -> list[tuple[str, str]]:
    return [(one.code, one.object) for one in examine_catalog(options, tables, jvm=lambda: None)]


def test_two_tables_with_one_name_are_found_before_anything_is_written(stub: UnityStub) -> None:
    tables = {**TABLES, "public.Orders": ("public", "Orders", "", "public/Orders")}
    assert _codes(_options(stub), tables) == [("catalog.clash", "public.orders"), ("catalog.clash", "public.Orders")]
    assert not stub.tables
    assert not stub.schemas


def test_a_name_that_is_too_long_is_found() -> None:
    names = {"public.long": f"public.{'x' * 200}"}
    assert [one.code for one in examine_names(names)] == ["catalog.name"]


def test_a_free_name_is_no_finding_and_one_that_leads_elsewhere_is(stub: UnityStub) -> None:
    options = _options(stub)
    wanted = CatalogOptions.of(options)
    assert wanted is not None
    assert _codes(options) == []
    catalog = wanted.open(options, jvm=lambda: None)
    catalog.create(Entry("shop.public.orders", "file:///lake/public/orders", "shop", "16385"))
    assert _codes(options) == []
    catalog.create(Entry("shop.public.items", "file:///elsewhere", "other", "1"))
    assert _codes(options) == [("catalog.taken", "public.items")]


def test_a_schema_that_is_missing_is_found_once(stub: UnityStub) -> None:
    assert _codes(_options(stub, create=False)) == [("catalog.schema", "shop.public")]


@pytest.mark.parametrize(("status", "code"), [(503, "catalog.away"), (403, "catalog.refused")])
def test_a_catalog_that_does_not_answer_or_refuses_is_one_warning(stub: UnityStub, status: int, code: str) -> None:
    stub.failing = status
    (found,) = examine_catalog(_options(stub), TABLES, jvm=lambda: None)
    assert (found.severity, found.code) == ("warning", code)


def test_without_a_catalog_nothing_is_asked() -> None:
    assert list(examine_catalog(ApplyOptions("shop", "file:///spool", "file:///lake"), TABLES, jvm=lambda: None)) == []

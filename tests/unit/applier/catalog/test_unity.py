"""Against a stub of the interface (`tests.support.unity_catalog`)."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from sluice_spark.catalog.client import CatalogAway, CatalogRefused
from sluice_spark.catalog.columns import Column
from sluice_spark.catalog.entries import Entry, taken_by
from sluice_spark.catalog.unity import UnityCatalog
from tests.support.unity_catalog import UnityStub, unity_catalog

COLUMNS = (
    Column("Id", "long", "the id"), Column("amount", "decimal(12,2)"), Column("at", "timestamp_ntz"),
    Column("tags", {"type": "array", "elementType": "string", "containsNull": True}),
)  # fmt: skip
ENTRY = Entry("shop.public.orders", "file:///lake/public/orders", "shop", "16385", COLUMNS)


@pytest.fixture
def stub() -> Iterator[UnityStub]:
    with unity_catalog(token="a-secret-token") as found:
        yield found


def _catalog(stub: UnityStub, *, create: bool = True, token: str = "a-secret-token") -> UnityCatalog:
    return UnityCatalog(stub.uri, token=token, timeout_seconds=5, create_schemas=create)


def test_a_table_is_registered_as_an_external_delta_table(stub: UnityStub) -> None:
    catalog = _catalog(stub)
    assert catalog.find(ENTRY.name) is None
    catalog.create(ENTRY)
    found = catalog.find(ENTRY.name)
    assert found is not None
    assert (found.location, found.is_delta, found.pipeline, found.table) == (ENTRY.location, True, "shop", "16385")
    assert catalog.is_as_wanted(ENTRY, found)
    stored = stub.tables[ENTRY.name]["columns"]
    assert [column["type_text"] for column in stored] == ["bigint", "decimal(12,2)", "timestamp_ntz", "array<string>"]
    assert (stored[1]["type_precision"], stored[1]["type_scale"], stored[0]["comment"]) == (12, 2, "the id")


def test_an_entry_is_made_anew_for_another_place_and_left_for_other_columns(stub: UnityStub) -> None:
    catalog = _catalog(stub)
    catalog.create(ENTRY)
    found = catalog.find(ENTRY.name)
    assert found is not None
    assert catalog.is_as_wanted(replace(ENTRY, columns=()), found)
    moved = replace(ENTRY, location="file:///lake/elsewhere/orders")
    assert not catalog.is_as_wanted(moved, found)
    assert taken_by(moved, found, lake="file:///lake", names={"16385": ENTRY.name}) == ""
    catalog.replace(moved)
    assert stub.tables[ENTRY.name]["storage_location"] == moved.location


def test_a_schema_is_created_only_where_that_is_allowed(stub: UnityStub) -> None:
    with pytest.raises(CatalogRefused, match=r"no schema shop\.public"):
        _catalog(stub, create=False).create(ENTRY)
    assert not stub.schemas
    _catalog(stub).create(ENTRY)
    _catalog(stub, create=False).require_schema(ENTRY.name)
    with pytest.raises(CatalogRefused, match="404"):
        _catalog(stub).create(replace(ENTRY, name="nowhere.public.orders"))


@pytest.mark.parametrize(
    ("status", "error"), [(500, CatalogAway), (503, CatalogAway), (429, CatalogAway), (403, CatalogRefused)]
)
def test_what_fails_for_now_is_no_refusal(stub: UnityStub, status: int, error: type[Exception]) -> None:
    stub.failing = status
    with pytest.raises(error, match=str(status)):
        _catalog(stub).find(ENTRY.name)


def test_a_wrong_token_is_refused_without_being_shown(stub: UnityStub) -> None:
    with pytest.raises(CatalogRefused, match="401") as seen:
        _catalog(stub, token="another-secret").find(ENTRY.name)
    assert "another-secret" not in str(seen.value)


def test_a_server_that_is_not_there_is_away(stub: UnityStub) -> None:
    catalog = UnityCatalog("http://127.0.0.1:1", token="", timeout_seconds=1, create_schemas=False)
    with pytest.raises(CatalogAway, match="does not answer"):
        catalog.find(ENTRY.name)

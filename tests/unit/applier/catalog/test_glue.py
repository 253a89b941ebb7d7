"""Against moto's Glue."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import boto3
import pytest

from sluice.errors import UsageError
from sluice_spark.catalog.client import CatalogAway, CatalogRefused
from sluice_spark.catalog.columns import Column
from sluice_spark.catalog.entries import Entry, Found, taken_by
from sluice_spark.catalog.glue import GlueCatalog
from tools.local.s3 import S3Server

ENTRY = Entry(
    "sales.orders", "s3://lake/sales/orders", "shop", "16385", (Column("Id", "long", "the id"), Column("v", "variant"))
)


@pytest.fixture
def catalog(s3_server: S3Server) -> Iterator[GlueCatalog]:
    found = _catalog(s3_server)
    yield found
    client = _boto(s3_server)
    for database in client.get_databases()["DatabaseList"]:
        client.delete_database(Name=database["Name"])
    client.close()
    found.close()


def _catalog(server: S3Server, *, create: bool = True) -> GlueCatalog:
    return GlueCatalog(server.options(), endpoint=server.endpoint, timeout_seconds=10, create_schemas=create)


def _found(catalog: GlueCatalog) -> Found:
    found = catalog.find(ENTRY.name)
    assert found is not None
    return found


def _boto(server: S3Server) -> Any:
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    return boto3.client("glue", endpoint_url=server.endpoint, region_name="us-east-1", **keys)


def test_a_table_has_the_form_by_which_engines_know_delta_tables(catalog: GlueCatalog, s3_server: S3Server) -> None:
    assert catalog.find(ENTRY.name) is None
    catalog.close()
    catalog.create(ENTRY)
    table = _boto(s3_server).get_table(DatabaseName="sales", Name="orders")["Table"]
    assert table["TableType"] == "EXTERNAL_TABLE"
    assert (table["Parameters"]["spark.sql.sources.provider"], table["Parameters"]["table_type"]) == ("delta", "DELTA")
    assert table["StorageDescriptor"]["Location"] == ENTRY.location
    assert table["StorageDescriptor"]["SerdeInfo"]["Parameters"]["path"] == ENTRY.location
    columns = table["StorageDescriptor"]["Columns"]
    assert columns[0] == {"Name": "id", "Type": "bigint", "Comment": "the id"}
    assert (columns[1]["Name"], columns[1]["Type"]) == ("v", "string")


def test_an_entry_follows_columns_comments_and_the_place_of_its_table(catalog: GlueCatalog) -> None:
    catalog.create(ENTRY)
    assert catalog.is_as_wanted(ENTRY, _found(catalog))
    for changed in (
        replace(ENTRY, columns=(Column("Id", "long", "another comment"),)),
        replace(ENTRY, columns=(Column("v", "string"), Column("Id", "long"))),
        replace(ENTRY, location="s3://lake/elsewhere/orders"),
    ):
        before = _found(catalog)
        assert not catalog.is_as_wanted(changed, before)
        assert taken_by(changed, before, lake="s3://lake", names={"16385": ENTRY.name}) == ""
        catalog.replace(changed)
        assert catalog.is_as_wanted(changed, _found(catalog))


def test_what_people_wrote_to_an_entry_stays_when_it_follows_its_table(
    catalog: GlueCatalog, s3_server: S3Server
) -> None:
    catalog.create(ENTRY)
    client = _boto(s3_server)
    table = client.get_table(DatabaseName="sales", Name="orders")["Table"]
    written = {"team": "sales", "spark.sql.sources.schema": "of before"}
    given = {name: table[name] for name in ("Name", "TableType", "PartitionKeys", "StorageDescriptor")}
    given |= {"Description": "What was sold", "Owner": "ann", "Parameters": {**table["Parameters"], **written}}
    client.update_table(DatabaseName="sales", TableInput=given)
    moved = replace(ENTRY, location="s3://lake/elsewhere/orders")
    catalog.replace(moved)
    assert catalog.is_as_wanted(moved, _found(catalog))
    found = client.get_table(DatabaseName="sales", Name="orders")["Table"]
    assert (found["Description"], found["Owner"]) == ("What was sold", "ann")
    assert found["Parameters"] == {**table["Parameters"], "team": "sales"}


def test_a_database_is_created_only_where_that_is_allowed(catalog: GlueCatalog, s3_server: S3Server) -> None:
    careful = _catalog(s3_server, create=False)
    with pytest.raises(CatalogRefused, match="no schema sales"):
        careful.create(ENTRY)
    catalog.create(ENTRY)
    careful.require_schema(ENTRY.name)
    with pytest.raises(CatalogRefused, match="AlreadyExistsException"):
        careful.create(ENTRY)
    careful.close()


def test_an_endpoint_that_is_not_there_is_away() -> None:
    options = {"aws_region": "us-east-1", "aws_access_key_id": "x", "aws_secret_access_key": "y"}
    catalog = GlueCatalog(options, endpoint="http://127.0.0.1:1", timeout_seconds=1, create_schemas=False)
    with pytest.raises(CatalogAway, match="does not answer"):
        catalog.find(ENTRY.name)
    catalog.close()


def test_a_catalog_without_a_region_is_a_mistake_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(UsageError, match="Glue cannot be asked"):
        GlueCatalog({}, endpoint="", timeout_seconds=1, create_schemas=False)

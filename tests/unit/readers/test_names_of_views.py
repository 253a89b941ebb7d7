"""A view shows the table that its name means: none takes the place of another, to engines that know no case either."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from sluice.cli.views import script
from sluice_lake import AsOf, Lake, UnknownTable
from tests.support.offered import publish


def _now(folder: Path, *tables: str) -> AsOf:
    """Each table has one row, with its own name."""
    for name in tables:
        marked = CommitProperties(app_transactions=[Transaction("marker", 1)])
        write_deltalake(folder / name, pa.table({"of": [name]}), commit_properties=marked)
    publish(folder, 1, 10, tables=tables, version=0)
    return Lake(str(folder)).as_of()


@pytest.mark.parametrize(
    ("engine", "tables"),
    [
        ("spark", ("public.orders", "public.sales_orders", "sales.orders")),
        ("spark", ("public.Orders", "public.orders")),
        ("spark", ("public.archive", "public.orders/Archive")),
        ("duckdb", ("public.Orders", "public.orders")),
        ("duckdb", ("public.archive", "public.orders/Archive")),
        ("databricks", ("public.Orders", "public.orders")),
    ],
)
def test_two_views_of_one_name_are_refused_by_name_and_one_of_them_can_be_asked_for(
    tmp_path: Path, engine: str, tables: tuple[str, ...]
) -> None:
    now = _now(tmp_path, *tables)
    with pytest.raises(UnknownTable, match="are both called"):
        script(Lake(str(tmp_path)), now, engine, ())
    for name in tables:
        assert f"/{name}" in script(Lake(str(tmp_path)), now, engine, (name,))


@pytest.mark.parametrize(
    "tables", [("public.archive", "public.orders/Archive"), ("main.t", "public.t"), ("public.Orders", "public.orders")]
)
def test_duckdb_gets_no_view_that_takes_the_place_of_another(tmp_path: Path, tables: tuple[str, ...]) -> None:
    now = _now(tmp_path, *tables)
    with pytest.raises(UnknownTable, match="are both called"):
        now.duckdb()
    for name in tables:
        rows = now.duckdb(tables=[name]).sql(f"SELECT * FROM {now.boundary.named(name).own_name}").fetchall()
        assert rows == [(name,)]


def test_a_name_alone_is_that_of_public_or_of_no_table_where_names_differ_by_case_alone(tmp_path: Path) -> None:
    connection = _now(tmp_path / "one", "hr.orders", "sales.Orders").duckdb()
    assert connection.sql("SELECT * FROM hr.orders").fetchall() == [("hr.orders",)]
    with pytest.raises(duckdb.CatalogException, match="does not exist"):
        connection.sql("SELECT * FROM orders")
    connection = _now(tmp_path / "two", "hr.Orders", "public.orders").duckdb()
    assert connection.sql("SELECT * FROM Orders").fetchall() == [("public.orders",)]

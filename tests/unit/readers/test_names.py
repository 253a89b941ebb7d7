"""A name means one table or none: never another one, nor rows of an earlier boundary."""

from collections.abc import Mapping
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from sluice.cli.views import script
from sluice_lake import AsOf, Lake, TableLeftOut, UnknownTable
from tests.support.offered import publish


def _now(folder: Path, tables: tuple[str, ...], left_out: Mapping[str, str] | None = None, *, number: int = 1) -> AsOf:
    """Its tables have a row for each boundary, with their own name."""
    for name in tables:
        marked = CommitProperties(app_transactions=[Transaction("marker", number)])
        write_deltalake(folder / name, pa.table({"of": [name]}), mode="append", commit_properties=marked)
    publish(folder, number, number * 10, tables=tables, left_out=dict(left_out or {}), version=number - 1)
    return Lake(str(folder)).as_of()


@pytest.mark.parametrize(
    ("left", "there"),
    [
        ("public.t", "x.t"),
        ("public.t", "public.orders/t"),
        ("y.t", "x.t"),
        ('"y.z".t', "x.t"),
        ("y.orders/t", "x.orders/t"),
        ("y.t", "public.orders/t"),
    ],
)
def test_a_name_alone_means_no_other_table_while_one_of_that_name_is_left_out(
    tmp_path: Path, left: str, there: str
) -> None:
    now = _now(tmp_path, ("x.u", there), {left: "stale"})
    with pytest.raises(TableLeftOut, match="is stale"):
        now.boundary.named("t")
    assert now.boundary.named(there).name == there
    assert [now.short_name(table) for table in now.tables] == ["u", ""]


@pytest.mark.parametrize(("there", "left"), [("public.t", "y.t"), ("x.t", "y.orders/t"), ("public.orders/t", "y.o/t")])
def test_a_table_that_comes_first_is_meant_whatever_is_left_out_behind_it(
    tmp_path: Path, there: str, left: str
) -> None:
    now = _now(tmp_path, (there,), {left: "stale"})
    assert now.boundary.named("t") == now.tables[0]
    assert now.short_name(now.tables[0]) == "t"


def test_duckdb_has_no_view_of_before_of_a_table_that_is_left_out_now(tmp_path: Path) -> None:
    connection = duckdb.connect()
    connection.sql("CREATE VIEW mine AS SELECT 7 AS id")
    _now(tmp_path / "other", ("public.o",)).duckdb(connection)
    _now(tmp_path / "lake", ("public.t", "public.u")).duckdb(connection)
    assert connection.sql("SELECT count(*) FROM t").fetchall() == [(1,)]
    _now(tmp_path / "lake", ("public.u",), {"public.t": "stale"}, number=2).duckdb(connection)
    assert connection.sql("SELECT count(*) FROM u").fetchall() == [(2,)]
    for name in ("t", "public.t"):
        with pytest.raises(duckdb.CatalogException, match="does not exist"):
            connection.sql(f"SELECT count(*) FROM {name}")
    assert connection.sql("SELECT (SELECT count(*) FROM o), (SELECT id FROM mine)").fetchall() == [(1, 7)]


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
    now = _now(tmp_path, tables)
    with pytest.raises(UnknownTable, match="are both called"):
        script(Lake(str(tmp_path)), now, engine, ())
    for name in tables:
        assert f"/{name}" in script(Lake(str(tmp_path)), now, engine, (name,))


@pytest.mark.parametrize(
    "tables", [("public.archive", "public.orders/Archive"), ("main.t", "public.t"), ("public.Orders", "public.orders")]
)
def test_duckdb_gets_no_view_that_takes_the_place_of_another(tmp_path: Path, tables: tuple[str, ...]) -> None:
    now = _now(tmp_path, tables)
    with pytest.raises(UnknownTable, match="are both called"):
        now.duckdb()
    for name in tables:
        rows = now.duckdb(tables=[name]).sql(f"SELECT * FROM {now.boundary.named(name).own_name}").fetchall()
        assert rows == [(name,)]


def test_a_name_alone_is_that_of_public_or_of_no_table_where_names_differ_by_case_alone(tmp_path: Path) -> None:
    connection = _now(tmp_path / "one", ("hr.orders", "sales.Orders")).duckdb()
    assert connection.sql("SELECT * FROM hr.orders").fetchall() == [("hr.orders",)]
    with pytest.raises(duckdb.CatalogException, match="does not exist"):
        connection.sql("SELECT * FROM orders")
    connection = _now(tmp_path / "two", ("hr.Orders", "public.orders")).duckdb()
    assert connection.sql("SELECT * FROM Orders").fetchall() == [("public.orders",)]

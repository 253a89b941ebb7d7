"""What a name means while a table of that name is not part of the boundary: nothing, and never another table, nor the
rows of an earlier boundary.
"""

from collections.abc import Mapping
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from sluice_lake import Lake, TableLeftOut
from tests.support.offered import publish

ONE = pa.table({"id": pa.array([1])})


def _lake(folder: Path, tables: tuple[str, ...], left_out: Mapping[str, str], *, number: int = 1) -> Lake:
    """Its tables have a row for each boundary."""
    for name in tables:
        marked = CommitProperties(app_transactions=[Transaction("marker", number)])
        write_deltalake(folder / name, ONE, mode="append", commit_properties=marked)
    publish(folder, number, number * 10, tables=tables, left_out=dict(left_out), version=number - 1)
    return Lake(str(folder))


@pytest.mark.parametrize(
    ("left", "there"),
    [("public.t", "x.t"), ("y.t", "x.t"), ('"y.z".t', "x.t"), ("y.orders/t", "x.orders/t"), ("y.t", "public.orders/t")],
)
def test_a_name_alone_means_no_other_table_while_one_of_that_name_is_left_out(
    tmp_path: Path, left: str, there: str
) -> None:
    now = _lake(tmp_path, ("x.u", there), {left: "stale"}).as_of()
    with pytest.raises(TableLeftOut, match="is stale"):
        now.boundary.named("t")
    assert [now.short_name(table) for table in now.tables] == ["u", ""]


@pytest.mark.parametrize(("there", "left"), [("public.t", "y.t"), ("x.t", "y.orders/t"), ("public.orders/t", "y.o/t")])
def test_a_table_that_comes_first_is_meant_whatever_is_left_out_behind_it(
    tmp_path: Path, there: str, left: str
) -> None:
    now = _lake(tmp_path, (there,), {left: "stale"}).as_of()
    assert now.boundary.named("t") == now.tables[0]
    assert now.short_name(now.tables[0]) == "t"


def test_duckdb_has_no_view_of_before_of_a_table_that_is_left_out_now(tmp_path: Path) -> None:
    connection = duckdb.connect()
    connection.sql("CREATE VIEW mine AS SELECT 7 AS id")
    other = _lake(tmp_path / "other", ("public.o",), {}).as_of()
    other.duckdb(connection)
    _lake(tmp_path / "lake", ("public.t", "public.u"), {}).as_of().duckdb(connection)
    assert connection.sql("SELECT count(*) FROM t").fetchall() == [(1,)]
    _lake(tmp_path / "lake", ("public.u",), {"public.t": "stale"}, number=2).as_of().duckdb(connection)
    assert connection.sql("SELECT count(*) FROM u").fetchall() == [(2,)]
    for name in ("t", "public.t"):
        with pytest.raises(duckdb.CatalogException, match="does not exist"):
            connection.sql(f"SELECT count(*) FROM {name}")
    assert connection.sql("SELECT (SELECT count(*) FROM o), (SELECT id FROM mine)").fetchall() == [(1, 7)]

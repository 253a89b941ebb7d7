"""Views in DuckDB over the tables of a boundary. Rows come from delta-rs, which knows deletion vectors and mapped
columns, batch by batch and each time anew.
"""

import hashlib
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sluice_lake.errors import LibraryMissing

if TYPE_CHECKING:
    import duckdb

    from sluice_lake.as_of import AsOf


class Rows:
    """The rows of one table, as a stream of Arrow for whoever asks, as often as they ask."""

    def __init__(self, as_of: "AsOf", name: str) -> None:
        self._as_of = as_of
        self._name = name

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._as_of.batches(self._name).__arrow_c_stream__(requested_schema)


def register(
    as_of: "AsOf", names: Sequence[str], connection: "duckdb.DuckDBPyConnection | None", *, lake: str
) -> "duckdb.DuckDBPyConnection":
    """Makes the views of `names`, in the place of all that were made there of this `lake`. Raises LibraryMissing,
    UnknownTable when two views differ by case alone.
    """
    try:
        import duckdb
    except ImportError as error:
        raise LibraryMissing("DuckDB is not installed", hint="pip install 'sluice-lake[duckdb]'") from error
    tables = [as_of.boundary.named(name) for name in names]
    boundary, short = as_of.boundary, as_of.short_names(tables)
    inside = {one.name: dict.fromkeys((one.table, boundary.name_in_schema(one))) for one in tables}
    views = [(f"{one.schema}.{view}", one) for one in tables for view in inside[one.name]]
    boundary.views(
        [*views, *((f"main.{short[one.name]}", one) for one in tables if one.name in short)], engine="DuckDB"
    )
    found = connection if connection is not None else duckdb.connect()
    of_lake = f"_sluice_{hashlib.sha256(lake.encode()).hexdigest()[:16]}_"
    _drop_views(found, of_lake)
    for table in tables:
        rows = f"{of_lake}{uuid.uuid4().hex}"
        found.register(rows, Rows(as_of, table.name))
        found.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(table.schema)}")
        for view in inside[table.name]:
            found.execute(f"CREATE OR REPLACE VIEW {quoted(table.schema)}.{quoted(view)} AS SELECT * FROM {rows}")
        name = short.get(table.name, "")
        if name and table.schema != "main":
            found.execute(f"CREATE OR REPLACE VIEW {quoted(name)} AS SELECT * FROM {rows}")
    return found


def _drop_views(connection: "duckdb.DuckDBPyConnection", of_lake: str) -> None:
    """Those over the rows of a lake, and the rows."""
    views = connection.execute(
        "SELECT schema_name, view_name, sql FROM duckdb_views() WHERE contains(sql, ?) OR starts_with(view_name, ?)",
        [f"FROM {of_lake}", of_lake],
    ).fetchall()
    for schema, name, _ in views:
        if name.startswith(of_lake):
            connection.unregister(name)
        else:
            connection.execute(f"DROP VIEW IF EXISTS {quoted(schema)}.{quoted(name)}")


def quoted(name: str) -> str:
    """`name` as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'

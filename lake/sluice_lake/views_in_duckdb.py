"""Views in DuckDB over the tables of a boundary. Rows come from delta-rs, which knows deletion vectors and mapped
columns, batch by batch and each time anew.
"""

import hashlib
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sluice_lake.errors import LibraryMissing, UnknownTable

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
    UnknownTable when two names differ by case alone.
    """
    try:
        import duckdb
    except ImportError as error:
        raise LibraryMissing("DuckDB is not installed", hint="pip install 'sluice-lake[duckdb]'") from error
    tables = [as_of.boundary.named(name) for name in names]
    seen: dict[str, str] = {}
    for table in tables:
        other = seen.setdefault(table.name.casefold(), table.name)
        if other != table.name:
            raise UnknownTable(
                f"DuckDB takes {other} and {table.name} for one name", hint="register one of them: tables=[...]"
            )
    found = connection if connection is not None else duckdb.connect()
    of_lake = f"_sluice_{hashlib.sha256(lake.encode()).hexdigest()[:16]}_"
    _drop_views(found, of_lake)
    short = {as_of.short_name(table).casefold() for table in tables}
    for table in tables:
        rows = f"{of_lake}{uuid.uuid4().hex}"
        found.register(rows, Rows(as_of, table.name))
        found.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(table.schema)}")
        for view in dict.fromkeys((table.table, as_of.boundary.name_in_schema(table))):
            found.execute(f"CREATE OR REPLACE VIEW {quoted(table.schema)}.{quoted(view)} AS SELECT * FROM {rows}")
        name = as_of.short_name(table)
        if name and table.schema != "main" and name.casefold() in short:
            short.discard(name.casefold())
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

"""The assertion at the end of every end-to-end test: the lake equals the source in every column, row by row."""

from collections.abc import Iterable, Mapping
from typing import Any

from tests.support.sources import Database
from tools.local.compare import Comparison, compare_table


def compare_tables(
    database: Database,
    tables: Iterable[str],
    *,
    lake_uri: str,
    schema: str = "public",
    storage_options: Mapping[str, str] | None = None,
    paths: Mapping[str, str] | None = None,
) -> list[Comparison]:
    where: dict[str, Any] = {"schema": schema, "lake_uri": lake_uri, "storage_options": storage_options}
    with database.connect() as connection:
        return [compare_table(connection, table=name, path=(paths or {}).get(name, ""), **where) for name in tables]


def assert_equal(database: Database, tables: Iterable[str], **where: Any) -> None:
    """`where` as `compare_tables` has it."""
    outcomes = compare_tables(database, tables, **where)
    assert outcomes, "no table was named: nothing was compared"
    differences = [f"{one.schema}.{one.table}: {difference}" for one in outcomes for difference in one.differences]
    assert not differences, "\n".join(differences)

"""The assertion at the end of every end-to-end test: the lake equals the source, in every table, in
every column, row by row.
"""

from collections.abc import Iterable, Mapping

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
    with database.connect() as connection:
        return [
            compare_table(
                connection,
                schema=schema,
                table=name,
                lake_uri=lake_uri,
                path=(paths or {}).get(name, ""),
                storage_options=storage_options,
            )
            for name in tables
        ]


def assert_equal(
    database: Database,
    tables: Iterable[str],
    *,
    lake_uri: str,
    schema: str = "public",
    storage_options: Mapping[str, str] | None = None,
    paths: Mapping[str, str] | None = None,
) -> None:
    """Fails with every difference of every table."""
    outcomes = compare_tables(
        database, tables, lake_uri=lake_uri, schema=schema, storage_options=storage_options, paths=paths
    )
    assert outcomes, "no table was named: nothing was compared"
    differences = [
        f"{outcome.schema}.{outcome.table}: {difference}" for outcome in outcomes for difference in outcome.differences
    ]
    assert not differences, "\n".join(differences)

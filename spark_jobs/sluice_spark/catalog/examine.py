"""What `check` says of the catalog, before anything is registered: names that clash, whether it answers, and names that
lead to something else there. Registers nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

from sluice.contract.catalog_names import clashing, too_long
from sluice.errors import UsageError
from sluice.findings import Finding
from sluice_spark.catalog.client import Catalog, CatalogAway, CatalogRefused
from sluice_spark.catalog.entries import Entry, taken_by
from sluice_spark.catalog.options import CatalogOptions
from sluice_spark.options import ApplyOptions

MOST_NAMES = 200
"""That are looked up; more would make `check` slow."""
_CHOOSE = "a catalog.name that tells them apart"


def examine_names(names: Mapping[str, str]) -> Iterator[Finding]:
    """Names by the titles of their lake tables. Pure."""
    for title, other in clashing(names).items():
        seen = f"in the catalog it is called {names[title]}, and so is {other}"
        yield Finding("critical", "catalog.clash", title, seen, fix_setting=_CHOOSE)
    for title, name in names.items():
        if too_long(name):
            seen = f"its name in the catalog, {name}, is longer than catalogs keep"
            yield Finding("warning", "catalog.name", title, seen, fix_setting="a shorter catalog.name")


def examine_catalog(
    options: ApplyOptions, tables: Mapping[str, tuple[str, str, str, str]], *, jvm: Callable[[], Any]
) -> Iterator[Finding]:
    """`tables` are (schema, table, target, path) of the lake tables by their titles. Nothing without a catalog."""
    wanted = CatalogOptions.of(options)
    if wanted is None:
        return
    names = {title: wanted.names.name(*table[:3]) for title, table in tables.items()}
    yield from examine_names(names)
    where = f"the catalog ({wanted.kind})"
    try:
        with closing(wanted.open(options, jvm=jvm)) as catalog:
            schemas: set[str] = set()
            for title, name in list(names.items())[:MOST_NAMES]:
                location = wanted.location(options.lake_uri, tables[title][3])
                entry = Entry(name, location, options.pipeline, "")
                yield from _examine(catalog, entry, title, schemas, options)
    except CatalogAway as error:
        yield Finding("warning", "catalog.away", where, str(error), fix_setting=error.hint or "catalog.uri")
    except (CatalogRefused, UsageError) as error:
        yield Finding("warning", "catalog.refused", where, str(error), fix_setting=error.hint)


def _examine(catalog: Catalog, entry: Entry, title: str, schemas: set[str], options: ApplyOptions) -> Iterator[Finding]:
    schema = entry.name.rpartition(".")[0]
    if schema not in schemas:
        schemas.add(schema)
        try:
            catalog.require_schema(entry.name)
        except CatalogRefused as error:
            yield Finding("warning", "catalog.schema", schema, str(error), fix_setting=error.hint)
    found = catalog.find(entry.name)
    # By which key the table will be known is not known yet.
    if found is not None and (why := taken_by(entry, found, lake=options.lake_uri, names={})):
        fix = "drop it in the catalog, or choose another catalog.name"
        yield Finding("warning", "catalog.taken", title, f"{entry.name}: {why}", fix_setting=fix)

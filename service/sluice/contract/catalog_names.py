"""The names of lake tables in a catalog, from the names at the source. Pure.

Invariant: a name has small letters, digits and _ alone, which every catalog takes and none changes. Two tables may come
to one name by that: `clashing` finds them before anything is written.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sluice.contract.lake_names import PLACEHOLDERS

PARTS = {"hive": 2, "glue": 2, "unity": 3}
"""Of a name, by the kind of catalog: a schema and a table, and before them the catalog of Unity."""
DEFAULT_TEMPLATES = {"hive": "{schema}.{target}", "glue": "{schema}.{target}", "unity": "{pipeline}.{schema}.{target}"}
LONGEST_PART = 128
"""Characters. Some metastores cut what is longer."""
_TEMPLATE = re.compile(r"(?:[A-Za-z0-9_]|\{[a-z]+\}|\.)+")
_OTHER = re.compile(r"[^a-z0-9_]")


@dataclass(frozen=True, slots=True)
class CatalogNames:
    """`template` has PLACEHOLDERS and a dot between two parts of a name."""

    template: str
    pipeline: str = ""
    database: str = ""

    def name(self, schema: str, table: str, target: str) -> str:
        """Of a lake table; `target` is empty for the one that has the name of its source table."""
        values = {"pipeline": self.pipeline, "database": self.database, "schema": schema, "table": table}
        parts = {name: _plain(value) for name, value in values.items()}
        return self.template.lower().format(**parts, target=_plain(target or table))


def misspelled(template: str, kind: str) -> str:
    """Why `template` gives no names in a catalog of this kind, empty when it does."""
    found = re.findall(r"\{([^}]*)\}", template)
    unknown = [name for name in found if name not in PLACEHOLDERS]
    if unknown:
        return f"{{{unknown[0]}}} is no part of a name; there are {', '.join(f'{{{name}}}' for name in PLACEHOLDERS)}"
    parts = template.split(".")
    if not _TEMPLATE.fullmatch(template) or not all(parts):
        return "a name has letters, digits, _, a dot between its parts, and parts such as {schema}"
    if len(parts) != PARTS[kind]:
        what = "catalog.schema.table" if kind == "unity" else "schema.table"
        return f"a name in a catalog of kind {kind} is {what}"
    if found.count("target") != 1:
        return "{target} must stand in it once: it tells the lake tables of one source table apart"
    return ""


def too_long(name: str) -> bool:
    """Whether a part of `name` has more characters than catalogs keep."""
    return any(len(part) > LONGEST_PART for part in name.split("."))


def clashing(names: Mapping[str, str]) -> dict[str, str]:
    """Of names by table: the tables that share theirs with another one, each with the first of the others."""
    by_name: dict[str, list[str]] = {}
    for table, name in names.items():
        by_name.setdefault(name, []).append(table)
    return {table: _other(table, tables) for tables in by_name.values() if len(tables) > 1 for table in tables}


def _other(table: str, tables: Iterable[str]) -> str:
    return next(one for one in tables if one != table)


def _plain(value: str) -> str:
    return _OTHER.sub("_", value.lower()) or "_"

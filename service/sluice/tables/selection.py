"""Which tables `source.tables` selects."""

from fnmatch import fnmatchcase
from glob import escape

from sluice.contract.catalog_facts import TableFacts
from sluice.manifest.values import TableState

EXCLUDED = "!"
"""How a pattern begins whose tables are left out, whatever the others say."""


def matches(patterns: tuple[str, ...], schema_name: str, table_name: str) -> bool:
    """Whether one of `patterns` (`public.*`, `shop.orders`) names the table and none leaves it out
    (`!public.logs`). Where no pattern names tables, all are named.
    """
    name = f"{schema_name}.{table_name}"
    wanted = naming(patterns)
    return (not wanted or any(fnmatchcase(name, pattern) for pattern in wanted)) and not excluding(
        patterns, schema_name, table_name
    )


def selects(patterns: tuple[str, ...], facts: TableFacts, known: TableState | None) -> bool:
    """Likewise for a table that may be `known` already: one that was renamed since it was taken in is still what was
    asked for, unless its present name is left out.
    """
    if matches(patterns, facts.schema, facts.name):
        return True
    left_out = excluding(patterns, facts.schema, facts.name)
    return known is not None and not left_out and matches(patterns, *known.first_name)


def naming(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `patterns` that name tables."""
    return tuple(pattern for pattern in patterns if not pattern.startswith(EXCLUDED))


def named_alone(patterns: tuple[str, ...], schema_name: str, table_name: str) -> bool:
    """Whether one of `patterns` is the name of the table, and not of whatever looks like it."""
    name = f"{schema_name}.{table_name}"
    return not {name, escape(name)}.isdisjoint(patterns)


def excluding(patterns: tuple[str, ...], schema_name: str, table_name: str) -> tuple[str, ...]:
    """Those of `patterns` that leave the table out."""
    name = f"{schema_name}.{table_name}"
    return tuple(
        pattern
        for pattern in patterns
        if pattern.startswith(EXCLUDED) and fnmatchcase(name, pattern.removeprefix(EXCLUDED))
    )

"""SQL about rows with certain keys. Texts of keys come from the lake, which may spell a value otherwise
than the server does (1.0 and 1, inf and Infinity). So the server reads each as its type, and prints it.

Invariant: a row has a key when both are equal to their type and print alike. Keys that are equal to their
type and print otherwise (1.0 and 1.00 of a numeric, citext) are two, as the lake tells them apart; the two
zeros of a floating-point column are one, as they are there. Of types of extensions (ltree), whose operators these
sessions do not find by name, the print alone decides.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sluice.contract.catalog_facts import ColumnFacts, TableFacts
from sluice.contract.schema import ColumnRule
from sluice.quoting import quote_identifier, quote_literal, quote_qualified
from sluice.source.catalog import Catalog
from sluice.source.rule_sql import text_sent, text_stored
from sluice.source.sessions import Connection, translated

_FLOATS = (700, 701, 1021, 1022)
"""float4, float8 and their arrays."""


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of the key, and what is stored of it: of one that is hashed the keys of rows are the hashes."""

    facts: ColumnFacts
    rule: ColumnRule | None

    @property
    def has_equality(self) -> bool:
        """Whether the SQL may compare values of the type itself, which lets the server use an index."""
        return self.rule is None and self.facts.output_function.startswith("pg_catalog.")

    @property
    def is_exact(self) -> bool:
        """Whether two values that are equal always print alike."""
        return self.rule is None and self.facts.base_type_oid in _FLOATS


def rows_of_keys(columns: Sequence[KeyColumn], keys: Sequence[Sequence[str]]) -> str:
    """The SQL condition that a row has one of `keys`, texts of the key's `columns`. The session needs the keys of
    their rules.
    """
    forms: list[str] = []
    wanted: list[str] = []
    for place, column in enumerate(columns):
        if column.has_equality:
            forms.append(quote_identifier(column.facts.name))
            wanted.append(f"k{place}")
        if not column.is_exact:
            forms.append(_printed(column))
            wanted.append(_given(column, place))
    return f"(({', '.join(forms)}) IN (SELECT {', '.join(wanted)} FROM {_values(columns, keys)}))"


def missing_keys(
    conn: Connection, facts: TableFacts, columns: Sequence[KeyColumn], keys: Sequence[Sequence[str]]
) -> list[tuple[str, ...]]:
    """Those of `keys` of which the session sees no row, as the server prints them."""
    equal, texts = [], []
    for place, column in enumerate(columns):
        if column.has_equality:
            equal.append(f"t.{quote_identifier(column.facts.name)} = v.k{place}")
        texts.append(f"{_given(column, place)} AS t{place}")
        if not column.is_exact:
            equal.append(f'{_printed(column)} = v.t{place} COLLATE pg_catalog."C"')
    only = "" if facts.relkind == "p" else "ONLY "
    row_filter = Catalog(conn).row_filter(facts)
    where = f" AND ({row_filter})" if row_filter else ""
    statement = (
        f"SELECT {', '.join(f'v.t{place}' for place in range(len(columns)))} "
        f"FROM (SELECT *, {', '.join(texts)} FROM {_values(columns, keys)}) AS v WHERE NOT EXISTS (SELECT FROM "
        f"{only}{quote_qualified(facts.schema, facts.name)} AS t WHERE {' AND '.join(equal)}{where})"
    )
    with translated(f"looking for rows of {facts.qualified_name} by their keys"):
        return [tuple(row) for row in conn.execute(statement.encode()).fetchall()]


def _values(columns: Sequence[KeyColumn], keys: Sequence[Sequence[str]]) -> str:
    """A table with the columns k0, k1 and so on, whose values are `keys`."""
    rows = (
        ", ".join(f"{quote_literal(text)}::{_type(column)}" for column, text in zip(columns, key, strict=True))
        for key in keys
    )
    names = ", ".join(f"k{place}" for place in range(len(columns)))
    return f"(VALUES {', '.join(f'({row})' for row in rows)}) AS w ({names})"


def _type(column: KeyColumn) -> str:
    return column.facts.type_name if column.rule is None else "pg_catalog.text"


def _given(column: KeyColumn, place: int) -> str:
    """The text of a key that is wanted."""
    return text_sent(replace(column.facts, name=f"k{place}")) if column.rule is None else f"k{place}"


def _printed(column: KeyColumn) -> str:
    """The text that is stored of the value, compared byte by byte."""
    return f'({text_stored(column.facts, column.rule)}) COLLATE pg_catalog."C"'

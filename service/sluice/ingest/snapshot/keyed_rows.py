"""SQL about rows with certain keys. Texts of keys come from the lake, which may spell a value otherwise
than the server does (1.0 and 1, inf and Infinity). So the server reads each as its type, and prints it.

Invariant: a row has a key when both are equal to their type and print alike. Keys that are equal to their
type and print otherwise (1.0 and 1.00 of a numeric, citext) are two, as the lake tells them apart; the two
zeros of a floating-point column are one, as they are there.
"""

from collections.abc import Sequence
from dataclasses import replace

from sluice.contract.catalog_facts import ColumnFacts, TableFacts
from sluice.quoting import quote_identifier, quote_literal, quote_qualified
from sluice.source.catalog import Catalog
from sluice.source.row_hashes import text_sent
from sluice.source.sessions import Connection, translated

_FLOATS = (700, 701, 1021, 1022)
"""float4, float8 and their arrays."""


def rows_of_keys(columns: Sequence[ColumnFacts], keys: Sequence[Sequence[str]]) -> str:
    """The SQL condition that a row has one of `keys`, texts of the key's `columns`."""
    forms = [quote_identifier(column.name) for column in columns]
    wanted = [f"k{place}" for place in range(len(columns))]
    for place, column in enumerate(columns):
        if column.base_type_oid not in _FLOATS:
            forms.append(_printed(column))
            wanted.append(_printed(replace(column, name=f"k{place}")))
    return f"(({', '.join(forms)}) IN (SELECT {', '.join(wanted)} FROM {_values(columns, keys)}))"


def missing_keys(
    conn: Connection, facts: TableFacts, columns: Sequence[ColumnFacts], keys: Sequence[Sequence[str]]
) -> list[tuple[str, ...]]:
    """Those of `keys` of which the session sees no row, as the server prints them."""
    equal, texts = [], []
    for place, column in enumerate(columns):
        equal.append(f"t.{quote_identifier(column.name)} = v.k{place}")
        texts.append(f"{text_sent(replace(column, name=f'k{place}'))} AS t{place}")
        if column.base_type_oid not in _FLOATS:
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


def _values(columns: Sequence[ColumnFacts], keys: Sequence[Sequence[str]]) -> str:
    """A table with the columns k0, k1 and so on, whose values are `keys`."""
    rows = (
        ", ".join(f"{quote_literal(text)}::{column.type_name}" for column, text in zip(columns, key, strict=True))
        for key in keys
    )
    names = ", ".join(f"k{place}" for place in range(len(columns)))
    return f"(VALUES {', '.join(f'({row})' for row in rows)}) AS w ({names})"


def _printed(column: ColumnFacts) -> str:
    """The text of the value, compared byte by byte."""
    return f'({text_sent(column)}) COLLATE pg_catalog."C"'

"""SQL about rows with certain keys. Texts of keys are literals of the key's types, quoted by
`sluice.quoting`.

Invariant: a row has a key when it prints as that very text, as the lake tells rows apart. Keys that are
equal to their type and print otherwise (1.0 and 1.00, citext) are two.
"""

from collections.abc import Sequence

from sluice.contract.catalog_facts import ColumnFacts, TableFacts
from sluice.quoting import quote_identifier, quote_literal, quote_qualified
from sluice.source.catalog import Catalog
from sluice.source.row_hashes import text_sent
from sluice.source.sessions import Connection, translated


def rows_of_keys(columns: Sequence[ColumnFacts], keys: Sequence[Sequence[str]]) -> str:
    """The SQL condition that a row has one of `keys`, texts of the key's `columns`."""
    names = ", ".join(quote_identifier(column.name) for column in columns)
    printed = ", ".join(_printed(column) for column in columns)
    return (
        f"(({names}) IN (VALUES {', '.join(_typed(columns, key) for key in keys)}) AND "
        f"({printed}) IN (VALUES {', '.join(_texts(key) for key in keys)}))"
    )


def missing_keys(
    conn: Connection, facts: TableFacts, columns: Sequence[ColumnFacts], keys: Sequence[Sequence[str]]
) -> list[tuple[str, ...]]:
    """Those of `keys` of which the session sees no row."""
    names = [f"k{place}" for place in range(len(columns))]
    equal = " AND ".join(
        f"t.{quote_identifier(column.name)} = v.{name} AND {_printed(column)} = v.t{name}"
        for column, name in zip(columns, names, strict=True)
    )
    only = "" if facts.relkind == "p" else "ONLY "
    row_filter = Catalog(conn).row_filter(facts)
    where = f" AND ({row_filter})" if row_filter else ""
    values = ", ".join(f"({place}, {_typed(columns, key)[1:-1]}, {_texts(key)[1:]}" for place, key in enumerate(keys))
    listed = ", ".join([*names, *(f"t{name}" for name in names)])
    statement = (
        f"SELECT place FROM (VALUES {values}) AS v (place, {listed}) WHERE NOT EXISTS (SELECT FROM "
        f"{only}{quote_qualified(facts.schema, facts.name)} AS t WHERE {equal}{where})"
    )
    with translated(f"looking for rows of {facts.qualified_name} by their keys"):
        return [tuple(keys[row[0]]) for row in conn.execute(statement.encode()).fetchall()]


def _typed(columns: Sequence[ColumnFacts], key: Sequence[str]) -> str:
    typed = (f"{quote_literal(text)}::{column.type_name}" for column, text in zip(columns, key, strict=True))
    return f"({', '.join(typed)})"


def _texts(key: Sequence[str]) -> str:
    return f"({', '.join(f'{quote_literal(text)}::pg_catalog.text' for text in key)})"


def _printed(column: ColumnFacts) -> str:
    """The text of the row's own value, compared byte by byte."""
    return f'({text_sent(column)}) COLLATE pg_catalog."C"'

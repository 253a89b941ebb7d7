"""Which columns keep a stream from being sent in binary form.

The choice is one for the whole session: the server then sends every type that has a send function
in that form, and where a type within an array, a composite or a range lacks one, it stops. So every
published column must have a form that `sluice.contract.types.binary_form` names, or none is asked
for.

Invariant: START_REPLICATION never asks for binary while the catalog shows a published column that
could not be read exactly. (PostgreSQL: Logical Streaming Replication Parameters; CREATE TYPE.)
"""

from collections.abc import Iterable, Iterator
from contextlib import closing

from sluice.contract.catalog_facts import ColumnFacts, TableFacts
from sluice.contract.types import binary_form
from sluice.errors import SourceRefused
from sluice.findings import Finding
from sluice.source.catalog import Catalog
from sluice.source.sessions import SourceOptions, open_query

REMEDY = "set source.binary to false, or leave the columns out by a column list of the publication (15 and later)"
_NAMED = 10
"""Columns that one message names."""


def examine_binary(tables: Iterable[TableFacts]) -> Iterator[Finding]:
    """A critical finding for each column that the lake could not have exactly from its binary form."""
    for facts, column in _without_form(tables):
        yield Finding(
            "critical",
            "column.binary",
            f"{facts.qualified_name}.{column.name}",
            f"source.binary is true, and {column.type_name} cannot be read exactly in binary form",
            fix_setting=REMEDY,
        )


def require_binary(options: SourceOptions) -> None:
    """Raises SourceRefused naming the columns and their types when the publication has one that
    cannot be read so. Looks over a session of its own.
    """
    with closing(Catalog(open_query(options))) as catalog:
        found = [
            f"{facts.qualified_name}.{column.name} ({column.type_name})"
            for facts, column in _without_form(catalog.published_tables(options.publication))
        ]
    if found:
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise SourceRefused(
            "source.binary is true, and these columns cannot be read exactly in binary form: "
            f"{', '.join(found[:_NAMED])}{more}",
            hint=REMEDY,
        )


def _without_form(tables: Iterable[TableFacts]) -> Iterator[tuple[TableFacts, ColumnFacts]]:
    for facts in tables:
        for column in facts.sent_columns:
            if not binary_form(column.base_type_oid, column.base_typmod, is_enum=column.is_enum):
                yield facts, column

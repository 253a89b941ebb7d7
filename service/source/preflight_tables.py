"""Preflight of tables: what would keep a table from being carried exactly, from its catalog facts alone. Pure.

Invariant: a table without a critical finding here can be copied and streamed; whatever cannot be carried is named with the SQL that mends it.
(PostgreSQL: Logical Replication, Restrictions; ALTER TABLE, REPLICA IDENTITY; Row Filters; Column Lists.)
"""

from collections.abc import Iterator, Sequence

from service.contract import keys
from service.contract.columns import folded, is_reserved
from service.contract.findings import Finding
from service.source.catalog import TableFacts
from service.source.quoting import quote_identifier, quote_qualified

_STORED_GENERATED = 180000
"""The first server that can publish stored generated columns."""


def examine_tables(tables: Sequence[TableFacts], *, publication: str, server_version: int) -> Iterator[Finding]:
    """Findings about each table, then about tables that get into each other's way."""
    for facts in tables:
        yield from _schema(facts)
        yield from _identity(facts)
        yield from _filter(facts)
        yield from _columns(facts)
        yield from _generated(facts, quote_identifier(publication), server_version)
        yield from _partitions(facts)
    yield from _collisions(tables)


def _name(facts: TableFacts) -> str:
    return quote_qualified(facts.schema, facts.name)


def _full(facts: TableFacts) -> str:
    return f"ALTER TABLE {_name(facts)} REPLICA IDENTITY FULL;"


def _schema(facts: TableFacts) -> Iterator[Finding]:
    if is_reserved(facts.schema):
        yield Finding(
            "critical",
            "schema.reserved",
            facts.qualified_name,
            "the lake needs the name of its schema for its own tables",
            fix_sql=f"ALTER SCHEMA {quote_identifier(facts.schema)} RENAME TO ...;",
            fix_setting="or leave the table out in source.tables",
            by_hand=True,
        )


def _identity(facts: TableFacts) -> Iterator[Finding]:
    has_identity = facts.replica_identity == "f" or any(column.in_identity for column in facts.columns)
    if not has_identity and (not facts.publishes or set(facts.publishes) & {"u", "d"}):
        what = "replica identity NOTHING" if facts.replica_identity == "n" else "no primary key and no other replica identity"
        yield Finding(
            "critical",
            "table.no_identity",
            facts.qualified_name,
            f"it has {what}: while it is published, the source itself refuses every UPDATE and DELETE",
            fix_sql=_full(facts),
            fix_setting="better: a primary key",
        )
    elif facts.replica_identity == "f" and not facts.has_primary_key:
        yield Finding(
            "warning",
            "table.no_key",
            facts.qualified_name,
            "it has replica identity FULL and no primary key: rows are matched as a whole, which is slow, and equal rows are told apart by number only",
            fix_sql=f"ALTER TABLE {_name(facts)} ADD PRIMARY KEY (...);",
            by_hand=True,
        )
    if facts.published_columns is not None and facts.replica_identity != "f":
        left_out = [column.name for column in facts.columns if column.in_identity and column.name not in facts.published_columns]
        if left_out:
            yield Finding(
                "critical",
                "table.identity_not_published",
                facts.qualified_name,
                f"the publication's column list leaves out {', '.join(left_out)}, by which changed rows are found",
                fix_sql=f"ALTER PUBLICATION ... SET TABLE {_name(facts)} (...);",
                fix_setting="SET TABLE replaces the publication's whole list of tables",
                by_hand=True,
            )


def _filter(facts: TableFacts) -> Iterator[Finding]:
    if not facts.row_filter:
        return
    large = [column.name for column in facts.columns if column.storable_out_of_line and not column.in_identity]
    if large and facts.replica_identity != "f":
        yield Finding(
            "critical",
            "table.filter_hides_values",
            facts.qualified_name,
            f"it has a row filter and large columns ({', '.join(large[:5])}): an update that moves a row into the filter arrives without their values",
            fix_sql=_full(facts),
        )
    else:
        yield Finding("info", "table.row_filter", facts.qualified_name, "the publication has a row filter: the lake holds the rows that match it")


def _columns(facts: TableFacts) -> Iterator[Finding]:
    if not facts.columns:
        yield Finding("warning", "table.no_columns", facts.qualified_name, "it has no columns", fix_setting="leave it out in source.tables")
    sent = facts.published_columns
    seen: dict[str, str] = {}
    for column in facts.columns:
        if sent is not None and column.name not in sent:
            continue
        if is_reserved(column.name):
            yield Finding(
                "critical",
                "column.reserved",
                f"{facts.qualified_name}.{column.name}",
                "the lake table needs this name for itself",
                fix_sql=f"ALTER TABLE {_name(facts)} RENAME COLUMN {quote_identifier(column.name)} TO ...;",
                by_hand=True,
            )
        other = seen.setdefault(folded(column.name), column.name)
        if other != column.name:
            yield Finding(
                "critical",
                "column.case",
                f"{facts.qualified_name}.{column.name}",
                f"it differs from {other} only by case, which Delta does not allow",
                fix_sql=f"ALTER TABLE {_name(facts)} RENAME COLUMN {quote_identifier(column.name)} TO ...;",
                by_hand=True,
            )


def _generated(facts: TableFacts, publication: str, server_version: int) -> Iterator[Finding]:
    sent = facts.published_columns
    unsent = [column for column in facts.columns if column.generated and (sent is None or column.name not in sent)]
    if not unsent or facts.has_column_list:
        return
    names = ", ".join(column.name for column in unsent)
    stored = server_version >= _STORED_GENERATED and any(column.generated == "s" for column in unsent)
    fix = f"ALTER PUBLICATION {publication} SET (publish_generated_columns = stored);" if stored else ""
    if server_version >= _STORED_GENERATED and facts.replica_identity == "f":
        seen = f"it has replica identity FULL and unpublished generated columns ({names}): the source itself refuses UPDATE and DELETE"
        other = f"ALTER TABLE {_name(facts)} REPLICA IDENTITY DEFAULT;"
        yield Finding("critical", "column.generated_in_identity", facts.qualified_name, seen, fix_sql=fix or other)
    else:
        seen = f"generated columns are not sent, the lake will not have {names}"
        yield Finding("warning", "column.generated", facts.qualified_name, seen, fix_sql=fix, fix_setting="" if fix else "a plain column that a trigger fills")


def _partitions(facts: TableFacts) -> Iterator[Finding]:
    for leaf in facts.children:
        name = f"{leaf.schema}.{leaf.name}"
        if leaf.relkind == "f" or leaf.relpersistence != "p":
            kind = "a foreign table" if leaf.relkind == "f" else "unlogged"
            seen = f"this partition of {facts.qualified_name} is {kind}: its changes are not in the log"
            logged = "" if leaf.relkind == "f" else f"ALTER TABLE {quote_qualified(leaf.schema, leaf.name)} SET LOGGED;"
            yield Finding("critical", "partition.not_logged", name, seen, fix_sql=logged, fix_setting="or detach it")
            continue
        if facts.differs_in_identity(leaf):
            wanted = _IDENTITIES.get(facts.replica_identity, "USING INDEX ...")
            yield Finding(
                "critical",
                "partition.identity",
                name,
                f"its replica identity differs from that of {facts.qualified_name}, under which it is published: old rows would hold false NULLs",
                fix_sql=f"ALTER TABLE {quote_qualified(leaf.schema, leaf.name)} REPLICA IDENTITY {wanted};",
                by_hand="..." in wanted,
            )


_IDENTITIES = {"d": "DEFAULT", "f": "FULL", "n": "NOTHING"}


def _collisions(tables: Sequence[TableFacts]) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for facts in tables:
        other = seen.setdefault(keys.lake_path(facts.schema, facts.name).lower(), facts.qualified_name)
        if other != facts.qualified_name:
            yield Finding(
                "critical",
                "table.path",
                facts.qualified_name,
                f"its lake path differs from that of {other} only by case: on some stores they are one",
                fix_sql=f"ALTER TABLE {_name(facts)} RENAME TO ...;",
                fix_setting="or leave one of them out in source.tables",
                by_hand=True,
            )

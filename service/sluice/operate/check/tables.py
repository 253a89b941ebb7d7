"""Preflight of tables: what keeps a table from being carried exactly, and what else a person should
know of it, from its catalog facts alone. Pure.

Invariant: what keeps a table from being carried is `conditions`, which stops it in `run` as well.
The other critical findings are no loss: where a table has no identity, or one that is not sent, the
source refuses UPDATE and DELETE by itself; and whether two paths are one, only the store knows.
(PostgreSQL: Logical Replication, Restrictions; ALTER TABLE, REPLICA IDENTITY; Row Filters; Column
Lists.)
"""

from collections.abc import Iterator, Mapping, Sequence

from sluice.contract import keys
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.conditions import left_out
from sluice.findings import Finding
from sluice.manifest.targets import Layout
from sluice.manifest.values import TableState
from sluice.quoting import quote_identifier, quote_qualified
from sluice.tables.policies import Policies

_DEFAULT = Layout()
OURS = "_sluice"
"""The folder of our own tables in the lake."""
_STORED_GENERATED = 180000
"""The first server that can publish stored generated columns."""


def examine_tables(
    tables: Sequence[TableFacts],
    *,
    publication: str,
    server_version: int,
    policies: Policies,
    known: Mapping[int, TableState],
    layout: Layout = _DEFAULT,
) -> Iterator[Finding]:
    """Findings about each table, then about tables that get into each other's way. `known` is what the manifest has of
    them, by oid: what columns were called before.
    """
    for facts in tables:
        policy, state = policies.of(facts.schema, facts.name), known.get(facts.oid)
        yield from policy.conditions(facts, state.latest if state is not None else None)
        yield from _operations(facts, policy.accept_missing)
        yield from _identity(facts)
        yield from _filter(facts)
        yield from _columns(facts)
        yield from _generated(facts, quote_identifier(publication), server_version)
    yield from collisions(tables, layout)


def _name(facts: TableFacts) -> str:
    return quote_qualified(facts.schema, facts.name)


def _operations(facts: TableFacts, accept_missing: str) -> Iterator[Finding]:
    missing = left_out(facts.publishes)
    if facts.published and missing and not left_out(facts.publishes + accept_missing):
        seen = f"it leaves out {', '.join(missing)}, as source.accept_missing allows: the lake differs by that"
        yield Finding("info", "publication.operations", facts.publication, seen)


def _identity(facts: TableFacts) -> Iterator[Finding]:
    has_identity = facts.replica_identity == "f" or any(column.in_identity for column in facts.columns)
    if not has_identity and (not facts.publishes or set(facts.publishes) & {"u", "d"}):
        what, better = "it has no primary key and no other replica identity", "a primary key"
        if facts.replica_identity == "n":
            what = "it has replica identity NOTHING"
        elif facts.primary_key and not facts.has_primary_key:
            what = "its primary key is DEFERRABLE, which cannot be its replica identity"
            better = "a primary key that is not deferrable"
        yield Finding(
            "critical",
            "table.no_identity",
            facts.qualified_name,
            f"{what}: while it is published, the source itself refuses every UPDATE and DELETE",
            fix_sql=f"ALTER TABLE {_name(facts)} REPLICA IDENTITY FULL;",
            fix_setting=f"better: {better}",
        )
    elif facts.replica_identity == "f" and not facts.has_primary_key:
        yield Finding(
            "warning",
            "table.no_key",
            facts.qualified_name,
            "it has replica identity FULL, and no primary key that is not deferrable: rows are matched as a whole, "
            "which is slow, and equal rows are distinguished by number only",
            fix_sql=f"ALTER TABLE {_name(facts)} ADD PRIMARY KEY (...);",
            by_hand=True,
        )


def _filter(facts: TableFacts) -> Iterator[Finding]:
    large = [column.name for column in facts.sent_columns if column.storable_out_of_line and not column.in_identity]
    if facts.row_filter and large and facts.replica_identity != "f":
        yield Finding(
            "warning",
            "table.filter_hides_values",
            facts.qualified_name,
            f"it has a row filter and large columns ({', '.join(large[:5])}): an update that moves a row into the "
            "filter may arrive without their values, and the whole table is then read again",
            fix_sql=f"ALTER TABLE {_name(facts)} REPLICA IDENTITY FULL;",
            fix_setting="nothing, if rows do not move into the filter",
            by_hand=True,
        )
    elif facts.row_filter:
        yield Finding(
            "info",
            "table.row_filter",
            facts.qualified_name,
            "the publication has a row filter: the lake holds the rows that match it",
        )


def _columns(facts: TableFacts) -> Iterator[Finding]:
    if not facts.columns:
        yield Finding(
            "warning",
            "table.no_columns",
            facts.qualified_name,
            "it has no columns",
            fix_setting="leave it out in source.tables",
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
        seen = (
            f"it has replica identity FULL and unpublished generated columns ({names}): the source itself "
            "refuses UPDATE and DELETE"
        )
        other = f"ALTER TABLE {_name(facts)} REPLICA IDENTITY DEFAULT;"
        yield Finding("critical", "column.generated_in_identity", facts.qualified_name, seen, fix_sql=fix or other)
    else:
        seen = f"generated columns are not sent, so the lake will not have {names}"
        yield Finding(
            "warning",
            "column.generated",
            facts.qualified_name,
            seen,
            fix_sql=fix,
            fix_setting="" if fix else "use a plain column that a trigger fills",
        )


def collisions(tables: Sequence[TableFacts], layout: Layout) -> Iterator[Finding]:
    """Lake tables that would stand where another one stands, on some stores at least."""
    seen: dict[str, tuple[str, str]] = {keys.path_part(OURS): ("the table of messages", keys.path_part(OURS))}
    for facts in tables:
        for name, path in layout.paths(facts.schema, facts.name).items():
            title = keys.target_title(facts.schema, facts.name, name)
            other, there = seen.setdefault(path.lower(), (title, path))
            if other == title:
                continue
            same = there == path
            yield Finding(
                "critical",
                "table.path",
                title,
                f"its lake table and that of {other} would both be at {path}"
                if same
                else f"its lake path differs from that of {other} only by case: on some stores they are the same",
                fix_sql="" if same or name else f"ALTER TABLE {_name(facts)} RENAME TO ...;",
                fix_setting="another name of the target, or another lake.path"
                if same or name
                else "or leave one of them out in source.tables",
                by_hand=not (same or name),
            )

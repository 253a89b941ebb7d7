"""The conditions under which a table can be carried exactly: one list, asked by `check`, by
joining, by snapshots and by the catalog watch. Pure.

Invariant: a table for which `conditions` gives nothing can be read and streamed without loss, as
far as the catalog shows. Whatever else is wrong with it either harms the source alone (which then
refuses changes by itself, so that none are lost) or is found when it happens; `examine_tables` of
`check` reports that. (PostgreSQL: Logical Replication, Restrictions; Row Filters; Column Lists; CREATE
PUBLICATION, publish.)
"""

from collections.abc import Iterator, Sequence

from sluice.contract import keys
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.column_rules import NO_RULES, RulesInForce
from sluice.contract.column_rules import findings as findings_of_rules
from sluice.contract.envelope import OP_NAMES, folded, is_reserved
from sluice.contract.reasons import Reason, ReasonCode
from sluice.contract.schema import TableSchema
from sluice.findings import Finding
from sluice.quoting import quote_identifier, quote_qualified

PUBLISHED = ", ".join(OP_NAMES.values())
_IDENTITIES = {"d": "DEFAULT", "f": "FULL", "n": "NOTHING"}


def conditions(
    facts: TableFacts, *, accept_missing: str = "", rules: RulesInForce = NO_RULES, binary: bool = False
) -> Iterator[Finding]:
    """A critical finding for each condition that does not hold. `accept_missing` has a letter for each kind of
    change that the publication may leave out, and `rules` are those of its columns; `binary`: values arrive in the
    binary form of their types.
    """
    stored = [column for column in facts.sent_columns if not rules.excludes(column.attnum)]
    yield from _names(facts.schema, facts.name, [column.name for column in stored])
    yield from _operations(facts, accept_missing)
    yield from _identity(facts)
    yield from _stable_identity(facts, rules)
    yield from findings_of_rules(facts, rules, binary=binary)
    yield from _partitions(facts)
    yield from _rights(facts, selectable=all(column.selectable for column in stored))


def refusal_of(schema: TableSchema) -> Reason | None:
    """Why a table of this shape cannot be carried, as far as names alone can be judged."""
    return refused(_names(schema.schema_name, schema.table_name, [column.name for column in schema.columns]))


def left_out(publishes: str) -> tuple[str, ...]:
    """The kinds of change that a publication does not send, which has the letters of the others."""
    return tuple(word for letter, word in OP_NAMES.items() if letter not in publishes)


def _operations(facts: TableFacts, accept_missing: str) -> Iterator[Finding]:
    """Equal for every table of one publication."""
    missing = left_out(facts.publishes + accept_missing)
    if facts.published and missing:
        seen = (
            f"it does not publish every kind of change ({', '.join(missing)} left out): the lake would "
            "differ from the source without notice"
        )
        fix = f"ALTER PUBLICATION {quote_identifier(facts.publication)} SET (publish = '{PUBLISHED}');"
        all_missing = left_out(facts.publishes)
        accept = f"source.accept_missing: [{', '.join(all_missing)}], if that is meant"
        accept = accept if {"truncate", "delete"} >= set(all_missing) else ""
        yield Finding("critical", "publication.operations", facts.publication, seen, fix_sql=fix, fix_setting=accept)


def refused(findings: Iterator[Finding]) -> Reason | None:
    """The first condition that does not hold, with what to do about it; None when all do."""
    found = next(findings, None)
    if found is None:
        return None
    what = f"{found.object}: {found.seen}; {' '.join(filter(None, (found.fix_sql, found.fix_setting)))}"
    return Reason(ReasonCode.CONDITION, {"finding": found.code, "what": what})


def _names(schema: str, table: str, columns: Sequence[str]) -> Iterator[Finding]:
    qualified, quoted = f"{schema}.{table}", quote_qualified(schema, table)
    if is_reserved(schema):
        yield Finding(
            "critical",
            "schema.reserved",
            qualified,
            f"the lake needs the name of its schema ({schema!r}) for its own tables",
            fix_sql=f"ALTER SCHEMA {quote_identifier(schema)} RENAME TO ...;",
            fix_setting="or leave the table out in source.tables",
            by_hand=True,
        )
    if any(len(part.encode()) > keys.LONGEST_FOLDER for part in keys.lake_path(schema, table).split("/")):
        yield Finding(
            "critical",
            "table.long_name",
            qualified,
            f"its name, or its schema's, is longer than {keys.LONGEST_FOLDER} bytes as a folder of the "
            "lake, which file systems refuse",
            fix_sql=f"ALTER TABLE {quoted} RENAME TO ...;",
            fix_setting="or leave the table out in source.tables",
            by_hand=True,
        )
    seen: dict[str, str] = {}
    for name in columns:
        rename = f"ALTER TABLE {quoted} RENAME COLUMN {quote_identifier(name)} TO ...;"
        if is_reserved(name):
            said = f"the lake table needs the name {name!r} for itself"
            yield Finding("critical", "column.reserved", f"{qualified}.{name}", said, fix_sql=rename, by_hand=True)
        other = seen.setdefault(folded(name), name)
        if other != name:
            said = f"{name!r} differs from {other!r} only by case, which Delta does not allow"
            yield Finding("critical", "column.case", f"{qualified}.{name}", said, fix_sql=rename, by_hand=True)


def _identity(facts: TableFacts) -> Iterator[Finding]:
    """A mirror finds its rows by these columns. With some of them missing, different rows would be
    taken for one.
    """
    if not facts.published or facts.replica_identity == "f":
        return
    sent = {column.attnum for column in facts.sent_columns}
    unsent = ", ".join(column.name for column in facts.columns if column.in_identity and column.attnum not in sent)
    if not unsent:
        return
    if facts.has_column_list:
        yield Finding(
            "critical",
            "table.identity_not_published",
            facts.qualified_name,
            f"the publication's column list leaves out {unsent}, by which changed rows are found",
            fix_sql=f"ALTER PUBLICATION ... SET TABLE {_quoted(facts)} (...);",
            fix_setting="SET TABLE replaces the publication's whole list of tables",
            by_hand=True,
        )
    else:
        yield Finding(
            "critical",
            "table.identity_not_published",
            facts.qualified_name,
            f"the publication does not send {unsent}: changed rows are found by it, and it is generated",
            fix_sql=f"ALTER TABLE {_quoted(facts)} REPLICA IDENTITY USING INDEX ...;",
            fix_setting="name an index without generated columns; from PostgreSQL 18 on the publication can send "
            "them too: publish_generated_columns = stored",
            by_hand=True,
        )


def _stable_identity(facts: TableFacts, rules: RulesInForce) -> Iterator[Finding]:
    """One row has one text for as long as it lives, and no other row has it."""
    if not facts.published:
        return
    found_by = facts.rows_are_found_by
    nullable = ", ".join(column.name for column in found_by if not column.not_null and facts.replica_identity == "i")
    if nullable:
        yield Finding(
            "critical",
            "table.identity_nullable",
            facts.qualified_name,
            f"changed rows are found by {nullable}, which may be NULL in several rows: its NOT NULL is not validated",
            fix_sql=f"ALTER TABLE {_quoted(facts)} VALIDATE CONSTRAINT ...;",
            by_hand=True,
        )
    names = [column for column in found_by if column.holds_names and not rules.excludes(column.attnum)]
    if names:
        column = names[0]
        yield Finding(
            "critical",
            "table.identity_by_name",
            facts.qualified_name,
            f"changed rows are found by {column.name} of type {column.type_name}, which is sent as the name of another "
            "object: rows would no longer be found when that is renamed, and objects of one name would share a row",
            fix_sql=f"ALTER TABLE {_quoted(facts)} ALTER COLUMN {quote_identifier(column.name)} TYPE oid;",
            fix_setting="" if facts.has_primary_key else "or add a primary key",
            by_hand=True,
        )
    # Whole rows that print alike are counted, whichever of them goes.
    keyed = facts.replica_identity != "f" or facts.has_primary_key
    twins = [column for column in found_by if keyed and column.spelled_twice and not rules.excludes(column.attnum)]
    if twins:
        column = twins[0]
        yield Finding(
            "critical",
            "table.identity_spelled_twice",
            facts.qualified_name,
            f"changed rows are found by {column.name} of type {column.type_name}, and values of it that differ may "
            "have one text (seg is printed with six digits, and EUC_JP and EUC_TW have several codes for some "
            "characters that are one in UTF-8): their rows would be one",
            fix_sql=f"ALTER TABLE {_quoted(facts)} REPLICA IDENTITY USING INDEX ...;",
            fix_setting="name an index without such columns, such as one of a new identity column, or move the data "
            "to a database with encoding UTF8; it does not help that all values are ASCII now: the next may not be",
            by_hand=True,
        )


def _partitions(facts: TableFacts) -> Iterator[Finding]:
    for leaf in facts.children:
        name = f"{leaf.schema}.{leaf.name}"
        if leaf.relkind == "f" or leaf.relpersistence != "p":
            kind = "a foreign table" if leaf.relkind == "f" else "unlogged"
            seen = f"this partition of {facts.qualified_name} is {kind}: its changes are not in the log"
            logged = "" if leaf.relkind == "f" else f"ALTER TABLE {quote_qualified(leaf.schema, leaf.name)} SET LOGGED;"
            yield Finding("critical", "partition.not_logged", name, seen, fix_sql=logged, fix_setting="or detach it")
        elif facts.differs_in_identity(leaf):
            wanted = _IDENTITIES.get(facts.replica_identity, "USING INDEX ...")
            yield Finding(
                "critical",
                "partition.identity",
                name,
                f"it has another replica identity than {facts.qualified_name}, under which it is "
                "published: old rows would hold false NULLs",
                fix_sql=f"ALTER TABLE {quote_qualified(leaf.schema, leaf.name)} REPLICA IDENTITY {wanted};",
                by_hand="..." in wanted,
            )


def _rights(facts: TableFacts, *, selectable: bool) -> Iterator[Finding]:
    role = quote_identifier(facts.role)
    grants = []
    if not facts.schema_usable:
        grants.append(f"GRANT USAGE ON SCHEMA {quote_identifier(facts.schema)} TO {role};")
    if not selectable:
        grants.append(f"GRANT SELECT ON {_quoted(facts)} TO {role};")
    if grants:
        seen = f"{facts.role} cannot read it, which the snapshot needs"
        yield Finding("critical", "table.not_readable", facts.qualified_name, seen, fix_sql=" ".join(grants))
    if facts.policies_apply:
        seen = f"row level security applies to {facts.role}: the snapshot would miss rows, and therefore stops"
        words = "BYPASSRLS holds for every table of the server; or leave the table out"
        yield Finding(
            "critical",
            "table.row_security",
            facts.qualified_name,
            seen,
            fix_sql=f"ALTER ROLE {role} BYPASSRLS;",
            fix_setting=words,
            by_hand=True,
        )


def _quoted(facts: TableFacts) -> str:
    return quote_qualified(facts.schema, facts.name)

"""A table's columns under its policy: what the column rules and the contract make of a shape. Pure.

Invariant: nothing is written in a version whose rules are not those of the configuration any more.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from sluice.contract import column_rules
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.schema import TableSchema
from sluice.manifest.values import TableState
from sluice.protocol.messages import RelationVersion
from sluice.tables.catalog_diff import leaves_seen
from sluice.tables.policies import Policies, TablePolicy


def under_policy(schema: TableSchema, latest: TableSchema | None, policy: TablePolicy) -> TableSchema:
    """`schema`, which comes after `latest`, under the column rules, and with the columns that the contract leaves
    out; none that identifies rows.
    """
    rules = policy.rules.in_force(schema.columns, latest, name=schema.qualified_name)
    schema = column_rules.applied(schema, rules, latest, policy.rules.keys)
    if latest is None or policy.contract == "stop":
        return schema
    known = {column.attnum: column.ignored for column in latest.columns}
    leaves_out = policy.contract == "ignore_new"
    ignored = {
        column.attnum for column in schema.columns if leaves_out and not column.key and known.get(column.attnum, True)
    }
    columns = tuple(replace(column, ignored=column.attnum in ignored) for column in schema.columns)
    return replace(schema, columns=columns)


def other_rules(before: TableSchema, after: TableSchema) -> str:
    """Why rows must be read again under other rules, empty when the rules are those of before."""
    if by_key := column_rules.of_key(after):
        return f"its key has a column rule: {by_key}"
    said = column_rules.changed(before, after)
    why = f"its column rules changed ({said}), and rows that are stored have what the rules made of them then"
    return why if said else ""


def rules_differ(state: TableState, policy: TablePolicy) -> str:
    """Why no more rows may be written in the newest version of the table: the rules are other ones by now, or the table
    has another name, which has none. Empty when neither is so.
    """
    latest = state.latest
    if latest is None:
        return ""
    if not policy.rules and latest.rules_of not in ("", state.source_name):
        return f"it was {latest.rules_of}, which has column rules, and none are configured for {state.source_name}"
    if not policy.rules and all(column.rule is None for column in latest.sent):
        return ""
    return other_rules(latest, under_policy(_without_rules(latest), latest, policy))


def may_have_rules(relation: RelationVersion, state: TableState | None, policies: Policies) -> bool:
    """Whether there are, or were, column rules for the table of `relation`, under any of its names. One that is
    not known yet may have any name when its transaction has committed, and may be a partition of any table.
    """
    if state is None:
        return any(policy.rules for policy in policies.tables.values())
    latest = state.latest
    in_force = latest is not None and (latest.rules_of or any(column.rule is not None for column in latest.sent))
    names = ((relation.schema, relation.name), (state.schema_name, state.table_name))
    return bool(in_force) or any(policies.of(*name).rules for name in names)


def ruled_root(facts: TableFacts, known: Iterable[TableState], ruled: Collection[str]) -> str:
    """The table with column rules of which the one in `facts`, or one below it, was a partition when that was looked
    at last; empty when there is none. `ruled` are all tables that have rules.
    """
    oids = {facts.oid, *(leaf.oid for leaf in facts.children)}
    for state in known:
        has_rules = state.source_name in ruled or (state.latest is not None and bool(state.latest.rules_of))
        if has_rules and int(state.table_id) not in oids and oids & leaves_seen(state.fingerprint):
            return state.source_name
    return ""


def _without_rules(schema: TableSchema) -> TableSchema:
    return replace(schema, columns=schema.sent, excluded=())

"""Which rule holds for which column of a table: what the configuration says, and what was in force before. Pure.

Invariant: a column that was renamed keeps its rule until the configuration says otherwise, and a table that
was renamed away from its rules is not carried: what was kept out of the lake does not come into it by a
change at the source. A rule that no column ever had is a mistake in its name, and the table is not carried
either.
"""

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from sluice.contract.catalog_facts import ColumnFacts, TableFacts
from sluice.contract.column_values import NO_KEYS, STORED_AS, HashKeys, made_of
from sluice.contract.schema import ColumnRule, ColumnSchema, ExcludedColumn, RuleKind, TableSchema
from sluice.contract.types import SPELLED_FORMS, binary_form
from sluice.findings import Finding

NewColumns = Literal["include", "exclude"]
EXCLUDED = ColumnRule(RuleKind.EXCLUDE)
"""What a column gets that is added where new columns are excluded."""
_KEEP_ROWS_APART = frozenset([RuleKind.HASH])
"""Rules under which different values of a key stay different."""
_OF_TEXT = frozenset([RuleKind.TRUNCATE, RuleKind.HASH])
"""Rules that depend on the text of the value."""


@dataclass(frozen=True, slots=True)
class RulesInForce:
    """By attnum, the rules of columns that have one. `met` are the names in the configuration that a column
    has or had, `unknown` the others. `configured_for` is the name of the table that the configuration has the
    rules for; `left_behind` is that name where it is a former one, and there are no rules for the present one.
    `of_root` is a table above it that has rules, where it is published by itself and has none.
    """

    by_attnum: Mapping[int, ColumnRule] = field(default_factory=dict)
    met: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    configured_for: str = ""
    left_behind: str = ""
    of_root: str = ""

    def excludes(self, attnum: int) -> bool:
        rule = self.by_attnum.get(attnum)
        return rule is not None and rule.kind is RuleKind.EXCLUDE


NO_RULES = RulesInForce()


@dataclass(frozen=True, slots=True)
class ColumnRules:
    """What is configured for one table. `columns` has the rule of each column that is listed, None where
    that is to carry it as it is; `new_columns` is what becomes of others that are added later. `keys` are those
    of its hashes.
    """

    columns: Mapping[str, ColumnRule | None] = field(default_factory=dict)
    new_columns: NewColumns = "include"
    keys: HashKeys = field(default=NO_KEYS, repr=False, compare=False)

    def __bool__(self) -> bool:
        return bool(self.columns) or self.new_columns != "include"

    def in_force(
        self, columns: Iterable[ColumnFacts | ColumnSchema], before: TableSchema | None, *, name: str
    ) -> RulesInForce:
        """For a table called `name` (schema.table) with these columns; `before` is its newest version."""
        known = {column.attnum: column for column in before.sent} if before is not None else {}
        found: dict[int, ColumnRule] = {}
        names = {column.name for column in known.values()}
        for column in columns:
            names.add(column.name)
            rule = self._rule(column, known.get(column.attnum), joins=before is None)
            if rule is not None:
                found[column.attnum] = rule
        met = {*(before.rules_met if before is not None else ()), *(one.listed_as for one in found.values()), *names}
        former = before.rules_of if before is not None else ""
        return RulesInForce(
            found,
            met=tuple(sorted(self.columns.keys() & met)),
            unknown=tuple(sorted(self.columns.keys() - met)),
            configured_for=name if self else former if former != name else "",
            left_behind=former if not self and former != name else "",
        )

    def _rule(
        self, column: ColumnFacts | ColumnSchema, known: ColumnSchema | None, *, joins: bool
    ) -> ColumnRule | None:
        listed = [column.name]
        if known is not None:
            listed += [known.name, known.rule.listed_as] if known.rule is not None else [known.name]
        for name in listed:
            if name in self.columns:
                rule = self.columns[name]
                return replace(rule, listed_as=name) if rule is not None else None
        is_new = known is None or (known.rule is not None and not known.rule.listed_as)
        return EXCLUDED if self.new_columns == "exclude" and is_new and not joins else None


def for_table(
    rules: ColumnRules, facts: TableFacts, before: TableSchema | None, ruled: Collection[str]
) -> RulesInForce:
    """`rules` for the table of `facts`; `ruled` are all tables that have rules."""
    found = rules.in_force(facts.sent_columns, before, name=facts.qualified_name)
    # One that the publication leaves out has nothing that a rule would have to keep out.
    if found.unknown:
        there = {column.name for column in facts.columns}
        found = replace(found, unknown=tuple(name for name in found.unknown if name not in there))
    roots = () if rules else [name for name in facts.ancestors if name in ruled]
    return replace(found, of_root=roots[0]) if roots else found


def after_root(rules: RulesInForce, root: str) -> RulesInForce:
    """`rules` of a table that was a partition of `root`, which has some; empty when it was none."""
    return replace(rules, left_behind=rules.left_behind or root) if root and not rules.configured_for else rules


def without_table(configured: Mapping[str, ColumnRules], tables: Sequence[str]) -> Iterator[Finding]:
    """What is wrong with rules that are configured for none of `tables`, which are all that are carried: what they
    are meant to keep out may be carried under another name.
    """
    for name, rules in configured.items():
        if rules and name not in tables:
            near = nearest(name, tables)
            words = f"did you mean {near}?" if near else "partitions that are published one by one have rules each"
            seen = "it has column rules, and no table of this name is carried"
            yield Finding("critical", "table.rules_unmatched", name, seen, fix_setting=f"tables: {words}")


def applied(schema: TableSchema, rules: RulesInForce, before: TableSchema | None, keys: HashKeys) -> TableSchema:
    """`schema`, of which no column is excluded, under the rules; it comes after `before`."""
    known = {column.attnum: column for column in before.sent} if before is not None else {}
    columns: list[ColumnSchema] = []
    excluded: list[ExcludedColumn] = []
    for place, column in enumerate(schema.columns):
        rule = rules.by_attnum.get(column.attnum)
        if rule is not None and rule.kind is RuleKind.EXCLUDE:
            excluded.append(ExcludedColumn(place, replace(column, rule=rule, missing=None)))
        else:
            columns.append(_made(column, rule, keys, known.get(column.attnum)))
    return replace(
        schema, columns=tuple(columns), excluded=tuple(excluded), rules_met=rules.met, rules_of=rules.configured_for
    )


def _made(column: ColumnSchema, rule: ColumnRule | None, keys: HashKeys, known: ColumnSchema | None) -> ColumnSchema:
    """What older rows hold in a column that is `known` was made under its rule when it came; under another rule all
    rows are read again, and there are no older ones.
    """
    missing = column.missing
    if known is not None and not _alike(known.rule, rule):
        missing = None
    elif known is None and rule is not None:
        missing = made_of(rule, missing, keys, where=column.name)
    return replace(column, rule=rule, missing=missing, lake=column.lake if rule is None else STORED_AS)


def changed(before: TableSchema, after: TableSchema) -> str:
    """What the rules make of columns otherwise than before, empty when nothing: rows that are stored have what
    they were made then.
    """
    old = {column.attnum: column.rule for column in before.sent}
    said = [
        f"{column.name}: {_shown(old[column.attnum])} becomes {_shown(column.rule)}"
        for column in after.sent
        if column.attnum in old and not _alike(old[column.attnum], column.rule)
    ]
    return ", ".join(said)


def findings(facts: TableFacts, rules: RulesInForce, *, binary: bool = False) -> Iterator[Finding]:
    """What keeps the table from being carried under its rules."""
    if rules.of_root:
        seen = f"it is a partition of {rules.of_root}, which has column rules, and is published under its own name"
        setting = f"tables.{facts.qualified_name}.columns, or publish_via_partition_root for the publication"
        yield Finding("critical", "partition.rules", facts.qualified_name, seen, fix_setting=setting)
    if rules.left_behind:
        was = f"it was {rules.left_behind}, or a partition of it, which has column rules"
        seen = f"{was}, and none are configured under its own name"
        setting = (
            f"tables.{facts.qualified_name}.columns: the same rules, or include for each column that may be stored"
        )
        yield Finding("critical", "table.rules_left", facts.qualified_name, seen, fix_setting=setting)
    for name in rules.unknown:
        near = nearest(name, [column.name for column in facts.columns])
        seen = "a rule of tables names a column that the table does not have and never had"
        words = f"did you mean {near}?" if near else "the name as the database spells it"
        setting = f"tables.{facts.qualified_name}.columns: {words}"
        yield Finding("critical", "column.rule_unknown", f"{facts.qualified_name}.{name}", seen, fix_setting=setting)
    for column in facts.sent_columns:
        rule = rules.by_attnum.get(column.attnum)
        if rule is not None and rule.kind not in _KEEP_ROWS_APART and _identifies(facts, column):
            where = f"{facts.qualified_name}.{column.name}"
            yield Finding("critical", "column.rule_on_key", where, f"its rule is {rule.text}, and {_BY_KEY}")
        if binary and rule is not None and rule.kind in _OF_TEXT and not _has_text(column):
            seen = f"its rule is {rule.text}, and the text of {column.type_name} cannot be made from its binary form"
            setting = "source.binary: false, or exclude or mask the column"
            where = f"{facts.qualified_name}.{column.name}"
            yield Finding("critical", "column.rule_binary", where, seen, fix_setting=setting)


def of_key(schema: TableSchema) -> str:
    """Which column identifies rows of `schema` under a rule that makes different ones alike; empty when none does."""
    for column in schema.sent:
        if column.key and column.rule is not None and column.rule.kind not in _KEEP_ROWS_APART:
            return f"{column.rule.text} for {column.name}, and {_BY_KEY}"
    return ""


def nearest(name: str, names: Sequence[str]) -> str:
    """Which of `names` was most likely meant, empty when none."""
    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=0.6)), "")


_BY_KEY = "rows are found by it: different rows would be one"


def _has_text(column: ColumnFacts) -> bool:
    return binary_form(column.base_type_oid, column.base_typmod, is_enum=column.is_enum) in SPELLED_FORMS


def _identifies(facts: TableFacts, column: ColumnFacts) -> bool:
    return column.in_primary_key if facts.replica_identity == "f" else column.in_identity


def _alike(one: ColumnRule | None, other: ColumnRule | None) -> bool:
    return one.does_as(other) if one is not None else other is None


def _shown(rule: ColumnRule | None) -> str:
    return rule.text if rule is not None else "include"

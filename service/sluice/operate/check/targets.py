"""Preflight of lake tables: columns that the configuration of a target names and that its lake table cannot have so,
from the catalog facts of the source table alone. Pure.

Invariant: what the applier would refuse by the name of a column is found before, with the nearest name that there is.
(Delta: liquid clustering, partitioning.)
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sluice.contract import envelope, keys
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.column_rules import nearest
from sluice.contract.lake_layout import LEADING, MAPPING, refused_column, refused_unmapped
from sluice.contract.lake_targets import LakeTarget
from sluice.findings import Finding
from sluice.manifest.values import TableState
from sluice.tables.column_policy import under_policy
from sluice.tables.policies import Policies, TablePolicy
from sluice.tables.schemas import build_schema, relation_of

CLUSTERING = "target.cluster_by"
"""The code of what keeps files from being clustered, and no row from the lake table."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """Those that the lake tables of a source table have of it, with their Spark types, in order; why they lack others
    by name; and what they were called before.
    """

    types: Mapping[str, str]
    absent: Mapping[str, str]
    former: frozenset[str]
    has_key: bool

    def why_not(self, name: str) -> str:
        if name in self.absent:
            return self.absent[name]
        return "the table has no more" if name in self.former else "the table does not have"


def examine_targets(
    facts: TableFacts, policy: TablePolicy, known: TableState | None, *, metadata: bool
) -> Iterator[Finding]:
    """What is wrong with the targets of a table and the columns that they name. `known` is what the manifest has of it,
    `metadata` is `lake.metadata_columns`.
    """
    columns = _columns(facts, policy, known)
    for target in policy.targets:
        if target.needs_key and not columns.has_key:
            seen = f"a {target.form.name} needs a key to identify its rows, and the table has none"
            fix = "a primary key, a replica identity index, or another kind of lake table"
            where = keys.target_title(facts.schema, facts.name, target.name)
            yield Finding("critical", "target.key", where, seen, fix_setting=fix)
        yield from _tracked(facts, target, columns)
        added = {name: envelope.LAKE_TYPES[name] for name in target.added_columns(metadata=metadata)}
        types = {**columns.types, **added}
        if MAPPING in target.layout.without and (said := refused_unmapped(types)):
            where = keys.target_title(facts.schema, facts.name, target.name)
            yield Finding("critical", "target.properties", where, said)
        for name in target.layout.partition_by:
            if said := _refused(name, types, columns, partitions=True):
                yield _finding("target.partition_by", facts, target, name, said, types)
        if target.layout.partition_by and len(target.layout.partition_by) == len(types):
            seen = "partition_by names every column of the lake table, and Delta needs one beside them"
            where = keys.target_title(facts.schema, facts.name, target.name)
            yield Finding("critical", "target.partition_by", where, seen)
        for name in target.layout.cluster_by:
            if said := _refused(name, types, columns, partitions=False):
                was_there = name not in types and name in columns.former
                yield _finding(CLUSTERING, facts, target, name, said, types, warns=was_there)


def losable(facts: TableFacts, policy: TablePolicy) -> Iterator[Finding]:
    """A changelog that loses its changes without anybody asking: a new snapshot replaces it."""
    if policy.on_change == "resync":
        for target in policy.targets:
            if target.keeps_changes:
                where = keys.target_title(facts.schema, facts.name, target.name)
                seen = (
                    "after a change that cannot be followed Sluice takes a new snapshot by itself, and the changelog "
                    "loses the changes that it has"
                )
                fix = f"tables.{facts.qualified_name}: on_change: stop, if you need these changes"
                yield Finding("info", "target.changelog", where, seen, fix_setting=fix)


def without_table(policies: Policies, carried: Sequence[str]) -> Iterator[Finding]:
    """Settings of tables that are none of `carried`, where no column rule is among them: those are looked for at
    another place. The table may come later.
    """
    for name, policy in policies.tables.items():
        if name not in carried and not policy.rules:
            near = nearest(name, list(carried))
            fix = f"tables: did you mean {near}?" if near else "tables: the name as the database spells it"
            seen = "it has settings, and no table of this name is carried: they hold for none"
            yield Finding("warning", "table.settings_unmatched", name, seen, fix_setting=fix)


def _columns(facts: TableFacts, policy: TablePolicy, known: TableState | None) -> _Columns:
    latest = known.latest if known is not None else None
    schema = under_policy(build_schema(relation_of(facts), facts, latest, version=1), latest, policy)
    absent = {column.name: "is not sent by the publication" for column in facts.columns}
    absent |= {one.column.name: "a column rule keeps out of the lake" for one in schema.excluded}
    absent |= {column.name: "its contract leaves out" for column in schema.ignored_columns}
    types = {column.name: column.lake.sql for column in schema.carried.columns}
    versions = known.schemas.values() if known is not None else ()
    return _Columns(
        types,
        {name: why for name, why in absent.items() if name not in types},
        frozenset(column.name for version in versions for column in version.columns),
        bool(schema.key_columns),
    )


def _tracked(facts: TableFacts, target: LakeTarget, columns: _Columns) -> Iterator[Finding]:
    for name in target.track:
        # The applier knows a column by the name that it had when the history began.
        if name not in columns.types and (name in columns.absent or name not in columns.former):
            said = f"track names column {name!r}, which {columns.why_not(name)}"
            yield _finding("target.track", facts, target, name, said, columns.types)


def _refused(name: str, types: Mapping[str, str], columns: _Columns, *, partitions: bool) -> str:
    setting = "partition_by" if partitions else "cluster_by"
    if name not in types:
        return f"{setting} names column {name!r}, which {columns.why_not(name)}"
    if said := refused_column(name, types, partitions=partitions):
        return f"{setting}: {said}"
    if not partitions and list(types).index(name) >= LEADING:
        return (
            f"{setting}: column {name!r} is not among the first {LEADING} of the lake table, of which Delta has bounds"
        )
    return ""


def _finding(
    code: str,
    facts: TableFacts,
    target: LakeTarget,
    name: str,
    seen: str,
    types: Mapping[str, str],
    *,
    warns: bool = False,
) -> Finding:
    near = nearest(name, list(types)) if name not in types else ""
    setting = f"tables.{facts.qualified_name}: " + (
        f"did you mean {near}?" if near else f"other columns in {code.partition('.')[2]}"
    )
    where = keys.target_title(facts.schema, facts.name, target.name)
    return Finding("warning" if warns else "critical", code, where, seen, fix_setting=setting)

"""What is configured for a table that changes, by its name."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sluice.contract import column_rules
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.column_rules import ColumnRules, RulesInForce, for_table
from sluice.contract.column_values import HashKeys
from sluice.contract.conditions import conditions, refused
from sluice.contract.lake_names import LakeNames
from sluice.contract.lake_targets import LakeTarget
from sluice.contract.reasons import Reason
from sluice.contract.schema import TableSchema
from sluice.contract.table_policy import Contract, OnChange, OnRename, OnWiden
from sluice.findings import Finding


@dataclass(frozen=True, slots=True)
class TablePolicy:
    """`on_change`: whether a table that changed in a way that cannot be followed is read again by
    itself, or is stale until somebody decides. `on_widen`: whether a rewrite of the table that gave a column
    a wider type is taken for a cast that changed no value. `on_rename`: whether the lake table of one that was
    renamed keeps its path, or is made anew at that of the new name. `contract`: whether the lake table
    follows the columns of the source, leaves out those that are added, or stops at any change of them.
    `targets` are the lake tables that it feeds. `accept_missing` has a letter for each kind of
    change that the publication may leave out. `binary`: values arrive in the binary form of their
    types. `names`: where lake tables stand. `rules`: what happens to columns before anything is stored; `ruled`
    are all tables that have some.
    """

    on_change: OnChange = "resync"
    on_widen: OnWiden = "resync"
    on_rename: OnRename = "keep"
    contract: Contract = "evolve"
    targets: tuple[LakeTarget, ...] = (LakeTarget(),)
    accept_missing: str = ""
    binary: bool = False
    rules: ColumnRules = field(default_factory=ColumnRules)
    ruled: frozenset[str] = frozenset()
    names: LakeNames = field(default_factory=LakeNames)

    @property
    def keeps_changes(self) -> bool:
        """Whether a lake table keeps every change, with its old row."""
        return any(target.keeps_changes for target in self.targets)

    @property
    def casts_only(self) -> bool:
        """Whether a column that got a wider type was cast, on somebody's word."""
        return self.on_widen == "follow"

    def rules_of(self, facts: TableFacts, latest: TableSchema | None) -> RulesInForce:
        """The column rules of a table as the catalog has it; `latest` is its newest version."""
        return for_table(self.rules, facts, latest, self.ruled)

    def conditions(self, facts: TableFacts, latest: TableSchema | None, *, root: str = "") -> Iterator[Finding]:
        """What keeps the table from being carried. One that is new was a partition of `root`."""
        rules = column_rules.after_root(self.rules_of(facts, latest), root)
        return conditions(facts, accept_missing=self.accept_missing, rules=rules, binary=self.binary)

    def refusal(self, facts: TableFacts, latest: TableSchema | None, *, root: str = "") -> Reason | None:
        """Why the table cannot be carried; None when it can."""
        return refused(self.conditions(facts, latest, root=root))


@dataclass(frozen=True, slots=True)
class Policies:
    """`tables` are those of single tables, by schema.table; all others have `default`."""

    default: TablePolicy = field(default_factory=TablePolicy)
    tables: Mapping[str, TablePolicy] = field(default_factory=dict)

    @property
    def hash_keys(self) -> HashKeys:
        """Those of all column rules."""
        found = HashKeys()
        for policy in (self.default, *self.tables.values()):
            found.add(policy.rules.keys)
        return found

    def of(self, schema_name: str, table_name: str) -> TablePolicy:
        return self.tables.get(f"{schema_name}.{table_name}", self.default)

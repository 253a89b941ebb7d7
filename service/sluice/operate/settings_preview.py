"""What the configuration would do to lake tables at the next start, beside what the catalog would do. Pure."""

from collections.abc import Iterator, Mapping, Sequence

from sluice.contract import keys
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.column_rules import ColumnRules, without_table
from sluice.manifest.targets import Layout
from sluice.manifest.values import TableState
from sluice.operate.check.tables import collisions
from sluice.operate.check.targets import CLUSTERING, examine_targets
from sluice.tables.policies import Policies
from sluice.tables.preview import Effect, Preview

Name = tuple[str, str]
Previewed = Iterator[tuple[Name, Preview]]


def colliding(taken: Sequence[TableFacts], layout: Layout) -> Previewed:
    """The tables of `taken`, which are selected, of which a lake table would stand where another one does."""
    sources = {
        keys.target_title(facts.schema, facts.name, target): (facts.schema, facts.name)
        for facts in taken
        for target in layout.paths(facts.schema, facts.name)
    }
    for finding in collisions(taken, layout):
        # Whether two paths that differ by case are one, only the store knows.
        if not finding.by_hand:
            why = f"lake table {finding.object}: {finding.seen}; {finding.fix_setting}"
            yield sources[finding.object], Preview("stop", why)


def unfit(
    taken: Sequence[TableFacts], states: Mapping[int, TableState], policies: Policies, *, metadata: bool
) -> Previewed:
    """The tables of `taken` with targets that they cannot have. `metadata` is `lake.metadata_columns`."""
    for facts in taken:
        policy = policies.of(facts.schema, facts.name)
        for finding in examine_targets(facts, policy, states.get(facts.oid), metadata=metadata):
            # A lake table whose files are not clustered has every row.
            effect: Effect = "followed" if finding.code == CLUSTERING else "stop"
            yield (facts.schema, facts.name), Preview(effect, f"{finding.seen}; {finding.fix_setting}")


def unmatched(rules: Mapping[str, ColumnRules], carried: Sequence[str]) -> Previewed:
    """Tables with column rules that are not among those that are `carried`, both as schema.table."""
    for finding in without_table(rules, carried):
        schema, _, table = finding.object.partition(".")
        yield (schema, table), Preview("stop", f"{finding.seen}; {finding.fix_setting}")

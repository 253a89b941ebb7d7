"""Under which name a table is known, and where its lake table stands. Pure.

Invariant: a table is followed by its oid; its name is what the catalog shows, and no part of what its
rows mean. Two tables that are carried never share a lake path, and a table gets another path only
with another generation, whose snapshot replaces whatever is there in one commit.
"""

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.lake_names import place_of, split
from sluice.contract.table_state import State
from sluice.manifest.targets import planned_paths, target_paths
from sluice.manifest.values import TableState
from sluice.tables import messages as messagetable
from sluice.tables.policies import Policies
from sluice.tables.register import TableRegister
from sluice.tables.selection import matches, selects


class LakePaths:
    """`patterns` are those of `source.tables`."""

    def __init__(self, register: TableRegister, policies: Policies, patterns: tuple[str, ...]) -> None:
        self._register = register
        self.policies = policies
        self.patterns = patterns

    def selected(self, schema_name: str, table_name: str) -> bool:
        """Whether configuration asks for a table of this name; no patterns mean every one."""
        return matches(self.patterns, schema_name, table_name)

    def selects(self, facts: TableFacts, known: TableState | None) -> bool:
        """Likewise for a table that may be carried: see `selection.selects`."""
        first_name = known.first_name if known is not None else None
        return selects(self.patterns, facts.schema, facts.name, first_name=first_name)

    def path(self, oid: int, schema_name: str, table_name: str, known: TableState | None) -> str:
        """Where the next generation of a table stands, as in `LakeNames.place`, and its other targets with it. By its
        name, or where it stood, as the policy says; at a place of its own while another table that is carried has a
        lake table there, and no longer.
        """
        policy = self.policies.of(schema_name, table_name)
        plain = policy.names.place(schema_name, table_name)
        own = policy.names.place_of_its_own(oid, schema_name, table_name)
        taken = {messagetable.PATH}.union(
            *(
                target_paths(other, self.policies.of(other.schema_name, other.table_name).targets)
                for other in self._register.states().values()
                if other.table_id != str(oid) and other.state != State.DETACHED
            )
        )
        keeps = known is not None and policy.on_rename == "keep" and known.path != split(own)[0]
        if known is not None and keeps and not taken & target_paths(known, policy.targets):
            return place_of(known.path, known.pattern)
        return own if taken & set(planned_paths(plain, policy.targets).values()) else plain

    def moves(self, known: TableState) -> bool:
        """Whether the lake table is made anew, at the path of the table's name: as the policy says, or
        because whoever had that path has left it. Its rows would stay there for ever, under a wrong name.
        """
        name = (known.schema_name, known.table_name)
        return known.path != split(self.path(int(known.table_id), *name, known))[0]

    def gives_way(self, other: TableState, facts: TableFacts) -> bool:
        """Whether it has the name of the table that `facts` describe, or the lake path of that name."""
        path = split(self.policies.default.names.place(facts.schema, facts.name))[0]
        return other.path == path or (other.schema_name, other.table_name) == (facts.schema, facts.name)

    def namesakes(self, oid: int, schema_name: str, table_name: str) -> tuple[TableState, ...]:
        """Other tables of the source that the manifest knows by this name: they are gone, or have another one."""
        return tuple(
            other
            for other in self._register.states().values()
            if (other.schema_name, other.table_name) == (schema_name, table_name)
            and other.table_id not in (str(oid), messagetable.TABLE_ID)
            and other.state != State.DETACHED
        )

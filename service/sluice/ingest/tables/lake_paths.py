"""Under which name a table is known, and where its lake table stands. For FollowedTables, under its lock.

Invariant: a table is followed by its oid; its name is what the catalog shows, and no part of what its
rows mean. Two tables that are carried never share a lake path, and a table gets another path only
with another generation, whose snapshot replaces whatever is there in one commit.
"""

from sluice.contract import keys
from sluice.contract.catalog_facts import TableFacts
from sluice.contract.table_state import State
from sluice.ingest.tables import messages as messagetable
from sluice.ingest.tables.policies import Policies
from sluice.ingest.tables.register import TableRegister
from sluice.manifest.values import TableState
from sluice.source.selection import matches, selects


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
        """Where the next generation of a table stands. That of its name, or the one that it had, as
        the policy says; one of its own while another table that is carried has that, and no longer.
        """
        plain = keys.lake_path(schema_name, table_name)
        own = keys.lake_path_of_its_own(oid, schema_name, table_name)
        taken = {messagetable.PATH} | {
            other.path
            for other in self._register.states().values()
            if other.table_id != str(oid) and other.state != State.DETACHED
        }
        keeps = known is not None and self.policies.of(schema_name, table_name).on_rename == "keep"
        if known is not None and known.path not in {*taken, own} and keeps:
            return known.path
        return plain if plain not in taken else own

    def moves(self, known: TableState) -> bool:
        """Whether the lake table is made anew, at the path of the table's name: as the policy says, or
        because whoever had that path has left it. Its rows would stay there for ever, under a wrong name.
        """
        name = (known.schema_name, known.table_name)
        return known.path != self.path(int(known.table_id), *name, known)

    def gives_way(self, other: TableState, facts: TableFacts) -> bool:
        """Whether it has the name of the table that `facts` describe, or the lake path of that name."""
        path = keys.lake_path(facts.schema, facts.name)
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

"""Where the lake tables of a source table stand. Pure.

Invariant: a table is followed by its oid; its name is what the catalog shows, and no part of what its
rows mean. Two tables that are carried never share a lake path, and a table gets another path only
with another generation, whose snapshot replaces whatever is there in one commit.
"""

from collections.abc import Iterable, Mapping

from sluice.contract.catalog_facts import TableFacts
from sluice.contract.lake_names import LakeNames, place_of, split
from sluice.contract.table_state import State
from sluice.manifest.targets import planned_paths, target_paths
from sluice.manifest.values import TableState
from sluice.tables import messages as messagetable
from sluice.tables.policies import Policies


class TakenPaths:
    """Where lake tables of the carried tables among `states` stand, each with all of its targets. Made once for many
    questions.
    """

    def __init__(self, states: Mapping[str, TableState], policies: Policies) -> None:
        self._policies = policies
        self._holders: dict[str, set[str]] = {messagetable.PATH: {""}}
        self._seen: dict[str, tuple[TableState, set[str]]] = {}
        self.follow(states)

    def follow(self, states: Mapping[str, TableState]) -> None:
        """The tables are in `states` now. It costs by those that changed: while thousands join one by one, each
        asks.
        """
        for key in self._seen.keys() - states.keys():
            self._leave(key)
        for key, one in states.items():
            known = self._seen.get(key)
            if known is None or known[0] is not one:
                self._leave(key)
                targets = self._policies.of(one.schema_name, one.table_name).targets
                paths = target_paths(one, targets) if one.state != State.DETACHED else set()
                self._seen[key] = one, paths
                for path in paths:
                    self._holders.setdefault(path, set()).add(one.table_id)

    def _leave(self, key: str) -> None:
        _, paths = self._seen.pop(key, (None, ()))
        for path in paths:
            self._holders[path].discard(key)

    def by_others(self, oid: int, paths: Iterable[str]) -> bool:
        """Whether a lake table of another one than `oid` stands at one of `paths`."""
        return any(self._holders.get(path, set()) - {str(oid)} for path in paths)


def next_path(oid: int, name: tuple[str, str], known: TableState | None, taken: TakenPaths, policies: Policies) -> str:
    """Where the next generation of a table called `name` stands, as in `LakeNames.place`, and its other targets with
    it. By its name, or where it stood, as the policy says; at a place of its own while another one that is carried has
    a lake table there, and no longer.
    """
    policy = policies.of(*name)
    plain = policy.names.place(*name)
    own = policy.names.place_of_its_own(oid, *name)
    keeps = known is not None and policy.on_rename == "keep" and known.path != split(own)[0]
    if known is not None and keeps and not taken.by_others(oid, target_paths(known, policy.targets)):
        return place_of(known.path, known.pattern)
    return own if taken.by_others(oid, planned_paths(plain, policy.targets).values()) else plain


def moves(known: TableState, taken: TakenPaths, policies: Policies) -> bool:
    """Whether the lake table is made anew, at the path of the table's name, once it may be read again: as the policy
    says, or because whoever had that path has left it. Its rows would stay there for ever, under a wrong name.
    """
    name = (known.schema_name, known.table_name)
    return known.path != split(next_path(int(known.table_id), name, known, taken, policies))[0]


def gives_way(other: TableState, facts: TableFacts, names: LakeNames) -> bool:
    """Whether it has the name of the table that `facts` describe, or the lake path of that name."""
    path = split(names.place(facts.schema, facts.name))[0]
    return other.path == path or (other.schema_name, other.table_name) == (facts.schema, facts.name)

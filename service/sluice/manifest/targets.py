"""From source tables to the lake tables that they feed: one state for each.

Owns where a lake table stands and by which key progress, reports and comparisons know it. A source table has the lake
tables that were configured when this object saw it first, whatever it is called later: another configuration
holds from the next start on. Pure.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace

from sluice.contract import keys, lake_names
from sluice.contract.lake_layout import LakeLayout
from sluice.contract.lake_names import LakeNames
from sluice.contract.lake_targets import LakeTarget
from sluice.contract.table_state import State
from sluice.manifest.values import PipelineState, TableState

TargetsOf = Callable[[str], tuple[LakeTarget, ...]]
"""The lake tables that are configured for a source table, by schema.table."""


@dataclass(frozen=True, slots=True)
class TargetState(TableState):
    """A source table as `target` sees it: `path` is where this lake table stands."""

    target: LakeTarget = field(default_factory=LakeTarget)

    @property
    def key(self) -> str:
        return keys.target_key(self.table_id, self.target.name)

    @property
    def target_name(self) -> str:
        return self.target.name

    @property
    def keeps_changes(self) -> bool:
        return self.target.keeps_changes

    @property
    def layout(self) -> LakeLayout:
        return self.target.layout

    @property
    def title(self) -> str:
        return keys.target_title(self.schema_name, self.table_name, self.target.name)


class Targets:
    """The lake tables of a pipeline, as `configured`."""

    def __init__(self, configured: TargetsOf) -> None:
        self.configured = configured
        self._chosen: dict[str, tuple[LakeTarget, ...]] = {}
        self._made: dict[str, tuple[TableState, tuple[TargetState, ...]]] = {}
        self._last: tuple[Mapping[str, TableState], dict[str, TableState]] = ({}, {})

    def of(self, state: PipelineState) -> PipelineState:
        """`state` with a table for each lake table, by its key."""
        if self._last[0] is not state.tables:
            fanned: dict[str, TableState] = {one.key: one for table in state.tables.values() for one in self._of(table)}
            self._last = state.tables, fanned
        return replace(state, tables=self._last[1])

    def keys(self, table_id: str) -> tuple[str, ...]:
        """Those of the lake tables of a source table that `of` has seen."""
        return tuple(one.key for one in self._made[table_id][1])

    def _of(self, table: TableState) -> tuple[TargetState, ...]:
        before = self._made.get(table.table_id)
        if before is not None and before[0] is table:
            return before[1]
        chosen = self._chosen.get(table.table_id)
        if chosen is None:
            chosen = self._chosen[table.table_id] = self.configured(table.source_name)
        made = tuple(of_target(table, target) for target in chosen)
        self._made[table.table_id] = table, made
        return made


def clashing(states: Mapping[str, TableState], first: Collection[str]) -> dict[str, TableState]:
    """Lake tables, by key, that would stand where another one stands, with that one. Those of `first` were there
    before, and a table that has the name of its source table comes before one with a name of its own.
    """
    at: dict[str, TableState] = {}
    found: dict[str, TableState] = {}
    followed = (state for state in states.values() if state.state is not State.DETACHED)
    for state in sorted(followed, key=lambda one: (one.key not in first, one.key != one.table_id, one.key)):
        holder = at.setdefault(state.path, state)
        if holder is not state:
            found[state.key] = holder
    return found


def lake_tables(state: PipelineState, configured: TargetsOf) -> dict[str, TableState]:
    """The lake tables of the pipeline by key, as they are configured now."""
    return Targets(configured).of(state).tables


def of_target(table: TableState, target: LakeTarget) -> TargetState:
    """`table` as `target` sees it."""
    values = {one.name: getattr(table, one.name) for one in fields(TableState)}
    return TargetState(**{**values, "path": target_path(table, target)}, target=target)


def target_path(table: TableState, target: LakeTarget) -> str:
    """Where the lake table `target` of a source table stands."""
    return _path(table.path, table.pattern, target.name)


def target_paths(table: TableState, targets: tuple[LakeTarget, ...]) -> set[str]:
    """Likewise for all of them."""
    return {target_path(table, target) for target in targets}


@dataclass(frozen=True, slots=True)
class Layout:
    """Where lake tables will stand that are not there yet: by `names`, for the targets that are `configured`."""

    names: LakeNames = field(default_factory=LakeNames)
    configured: TargetsOf = lambda _: (LakeTarget(),)

    def paths(self, schema: str, table: str) -> dict[str, str]:
        """Those of a source table, by the names of its targets."""
        return planned_paths(self.names.place(schema, table), self.configured(f"{schema}.{table}"))


def planned_paths(place: str, targets: tuple[LakeTarget, ...]) -> dict[str, str]:
    """Where the targets of a table will stand, by their names, whose lake table comes to `place`, see
    `LakeNames.place`.
    """
    path, pattern = lake_names.split(place)
    return {target.name: _path(path, pattern, target.name) for target in targets}


def _path(path: str, pattern: str, name: str) -> str:
    if not name:
        return path
    return lake_names.joined(pattern, name) if pattern else keys.beside(path, name)


def fed(state: TableState) -> LakeTarget:
    """The target whose lake table `state` describes."""
    assert isinstance(state, TargetState), "a table of the source is no lake table"
    return state.target

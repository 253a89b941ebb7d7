"""The lake tables that a source table feeds, as they are configured: a kind, a name, and the settings of the kind."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from sluice.contract import lake_kinds
from sluice.contract.lake_layout import LakeLayout

Deletes = Literal["hard", "soft"]
"""What a deletion does to a row of a mirror: it goes, or it stays and is marked."""


@dataclass(frozen=True, slots=True)
class LakeTarget:
    """One lake table. `kind` is one of `lake_kinds.KINDS`, and `name` is empty for the table that has the name of
    its source table.

    `track` are the columns whose changes make a new version of a row (empty: all), and a row that is marked as
    deleted is removed after `soft_delete_retention` seconds (None: never). Each means something for the kinds alone
    that take it.

    A change of it waits `freshness` seconds at most for its window (None: as long as those of its table). This alone
    may change while a process runs, and says nothing of what the lake table is.
    """

    kind: str = lake_kinds.DEFAULT
    name: str = ""
    deletes: Deletes = "hard"
    track: tuple[str, ...] = ()
    soft_delete_retention: float | None = None
    freshness: float | None = field(default=None, compare=False)
    layout: LakeLayout = field(default_factory=LakeLayout)

    @property
    def form(self) -> lake_kinds.LakeKind:
        """What such a lake table is: of its kind, or what a setting makes of that."""
        return lake_kinds.SOFT if self.deletes == "soft" else lake_kinds.KINDS[self.kind]

    @property
    def keeps_changes(self) -> bool:
        """Whether the lake table keeps every change, with its old row."""
        return self.form.keeps_changes

    @property
    def needs_key(self) -> bool:
        """Whether there can be no lake table of a source table without a key."""
        return self.form.needs_key

    @property
    def compared(self) -> str:
        """What a row is called that a comparison looks at: others of its lake table stand for nothing at the source."""
        return self.form.compared

    def added_columns(self, *, metadata: bool) -> tuple[str, ...]:
        """What its lake table may have beside the columns of the source table; `metadata` is
        `lake.metadata_columns`.
        """
        return (*(self.form.adds_metadata if metadata else ()), *self.form.adds)

    def encode(self) -> dict[str, Any]:
        """As plain values, which `decode` reads."""
        return asdict(self)

    @staticmethod
    def decode(value: Mapping[str, Any]) -> "LakeTarget":
        """Raises TypeError for values that `encode` does not make."""
        target = LakeTarget(**{name: one for name, one in value.items() if name != "layout"})
        layout = LakeLayout.decode(value.get("layout", {}))
        return replace(target, track=tuple(target.track), layout=layout)


def held_as(target: LakeTarget) -> tuple[str, ...]:
    """What the applier's reports call a lake table of `target`."""
    name = target.form.name
    return (name, lake_kinds.WHOLE_ROWS) if name == lake_kinds.DEFAULT else (name,)


def not_taken(kind: str, given: Sequence[str]) -> str:
    """Why a target of `kind` cannot have the settings `given`, empty when it can."""
    for name in given:
        takers = [other.name for other in lake_kinds.KINDS.values() if name in other.takes]
        if kind not in takers:
            whose = f"is a setting of {' and '.join(takers)}" if takers else "is not supported by this version"
            return f"{name} {whose}, and this target is a {kind}"
    return ""

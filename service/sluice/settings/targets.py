"""The lake tables of a source table as the configuration has them."""

import difflib
from typing import Annotated, Self

from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema, model_validator

from sluice.contract.lake_kinds import KINDS
from sluice.contract.lake_targets import Deletes, LakeTarget, not_taken
from sluice.settings.layout import LAYOUT_KEYS, LayoutSettings
from sluice.settings.section import LONGEST_FRESHNESS
from sluice.settings.values import Duration


def _registered(kind: str) -> str:
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"{kind} is no kind of lake table{meant} (there are {', '.join(KINDS)})")
    return kind


Kind = Annotated[str, AfterValidator(_registered), WithJsonSchema({"enum": list(KINDS), "type": "string"})]
_OF_EVERY_KIND = {"kind", "name", "freshness"} | LAYOUT_KEYS
TargetName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,200}$")]


class TargetSettings(LayoutSettings):
    """One lake table."""

    kind: Kind = Field(description="as lake.mode, for this lake table")
    name: TargetName | None = Field(None, description="name of the lake table; by default the name of the source table")
    deletes: Deletes = Field(
        "hard",
        description="what a deletion does to a row of a mirror: hard removes it, soft keeps it and marks it with the "
        "time of the deletion",
    )
    track: tuple[str, ...] = Field(
        (),
        description="the columns of a history whose changes make a new version of a row; by default all. If only "
        "other columns change, they are updated in the newest version",
    )
    soft_delete_retention: Duration | None = Field(
        None, ge=0, description="how long a mirror with soft deletes keeps a deleted row; by default forever"
    )
    freshness: Duration | None = Field(
        None, ge=0, le=LONGEST_FRESHNESS, description="as freshness of the table, for this lake table"
    )

    @model_validator(mode="after")
    def _of_its_kind(self) -> Self:
        given = [name for name in TargetSettings.model_fields if name in self.model_fields_set - _OF_EVERY_KIND]
        if problem := not_taken(self.kind, given):
            raise ValueError(problem)
        if self.soft_delete_retention is not None and self.deletes != "soft":
            raise ValueError("soft_delete_retention needs deletes: soft")
        return self

    def target(self, general: LayoutSettings) -> LakeTarget:
        """What it asks for; where it does not say how files lie, `general` does."""
        return LakeTarget(
            self.kind,
            self.name or "",
            self.deletes,
            self.track,
            self.soft_delete_retention,
            self.freshness,
            self.layout(general),
        )


def of_different_names(targets: tuple[TargetSettings, ...]) -> tuple[TargetSettings, ...]:
    """At least one, and no two with the same name: they would be one folder, on some stores also where only the case
    differs.
    """
    if not targets:
        raise ValueError(
            "a table has at least one target; omit targets for one lake table of the kind that lake.mode names"
        )
    names = [(target.name or "").lower() for target in targets]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"two targets are called {name}" if name else "two targets have no name; one may have that of the table"
            )
    return targets

"""How the files of lake tables lie, as the configuration has it."""

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from sluice.contract.lake_layout import MOST_CLUSTERED, WITHOUT, LakeLayout, refused_property
from sluice.settings.section import Section


def _spelled(value: Any) -> Any:
    """YAML reads true and 7 as such; a property is a text."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else value


def _settable(properties: dict[str, str]) -> dict[str, str]:
    for name, value in properties.items():
        if problem := refused_property(name, value):
            raise ValueError(problem)
    return {name: WITHOUT.get(name, value) for name, value in properties.items()}


def _different(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        raise ValueError("a column is named twice")
    return names


PropertyValue = Annotated[str, BeforeValidator(_spelled)]
ColumnNames = Annotated[tuple[str, ...], AfterValidator(_different)]


class LayoutSettings(Section):
    """The part of a table's or a target's settings that is about files."""

    properties: Annotated[dict[str, PropertyValue], AfterValidator(_settable)] | None = Field(
        None, description="table properties of the lake table, for example delta.enableRowTracking"
    )
    cluster_by: Annotated[ColumnNames, Field(max_length=MOST_CLUSTERED)] | None = Field(
        None, description="columns by which OPTIMIZE clusters the files of the lake table"
    )
    partition_by: ColumnNames | None = Field(
        None,
        description="columns by which the lake table is partitioned after its next snapshot; windows of a "
        "partitioned table are committed by MERGE",
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> "LayoutSettings":
        if self.cluster_by and self.partition_by:
            raise ValueError("a lake table is clustered or partitioned, not both")
        return self

    def layout(self, general: "LayoutSettings | None" = None) -> LakeLayout:
        """What it asks for; `general` holds where it says nothing."""
        cluster, partition = self.cluster_by, self.partition_by
        if general is not None and cluster is None and partition is None:
            cluster, partition = general.cluster_by, general.partition_by
        properties = {**((general.properties if general is not None else None) or {}), **(self.properties or {})}
        return LakeLayout(tuple(properties.items()), cluster or (), partition or ())


LAYOUT_KEYS = set(LayoutSettings.model_fields)
"""Settings of a table that are about the files of its lake tables."""

"""What every section of the settings is, and values that more than one of them takes."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict

LONGEST_FRESHNESS = 240
"""Seconds. Below the 300 from which on status and alerts call the lake behind."""


def _table_name(value: str) -> str:
    if not _has_parts(value):
        raise ValueError("a table is given as schema.table")
    if set(value) & set("*?") or value.startswith("!"):
        # It would hold for no table, and a column rule in it would keep nothing out.
        raise ValueError("settings are those of one table, by its name; only source.tables takes patterns")
    return value


def _selection_pattern(value: str) -> str:
    if not _has_parts(value.removeprefix("!")):
        raise ValueError("a table is given as schema.table; * and ? match within a name, as in public.*")
    return value


def _has_parts(value: str) -> bool:
    return all(value.partition("."))


ApplyWay = Literal["auto", "direct", "distributed", "merge"]
TableName = Annotated[str, AfterValidator(_table_name)]
SelectionPattern = Annotated[str, AfterValidator(_selection_pattern)]


class Section(BaseModel):
    """Base of every model: frozen, unknown keys refused, input never repeated in errors (it may be
    a secret).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True)

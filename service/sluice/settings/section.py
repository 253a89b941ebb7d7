"""What every section of the settings is, and values that more than one of them takes."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict

LONGEST_FRESHNESS = 240
"""Seconds. Below the 300 from which on status and alerts call the lake behind."""


def _table_pattern(value: str) -> str:
    schema, separator, table = value.partition(".")
    if not schema or not separator or not table:
        raise ValueError("a table is given as schema.table; * and ? match within a name, as in public.*")
    return value


def _selection_pattern(value: str) -> str:
    _table_pattern(value.removeprefix("!"))
    return value


ApplyWay = Literal["auto", "direct", "distributed", "merge"]
TablePattern = Annotated[str, AfterValidator(_table_pattern)]
SelectionPattern = Annotated[str, AfterValidator(_selection_pattern)]


class Section(BaseModel):
    """Base of every model: frozen, unknown keys refused, input never repeated in errors (it may be
    a secret).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True)

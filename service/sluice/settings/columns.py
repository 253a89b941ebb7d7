"""Column rules as the configuration has them."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from sluice.settings.section import Section

_HOW = "a column rule is include, exclude, {mask: TEXT}, {truncate: CHARACTERS} or {hash: hmac-sha256, key_file: FILE}"


class MaskSettings(Section):
    """A constant text instead of each value."""

    mask: str = Field(description="the text that is stored instead of each value that is not NULL")


class TruncateSettings(Section):
    """The beginning of each value."""

    truncate: int = Field(ge=1, le=1_000_000, description="how many characters of the text are stored")


class HashSettings(Section):
    """The keyed hash of each value."""

    hash: Literal["hmac-sha256"] = Field(description="hmac-sha256: the only hash")
    key_file: str = Field(
        min_length=1, description="file with the key: all of its bytes except a newline at the end, at least 16"
    )


def _kind(value: Any) -> str | None:
    """Which of the forms a value has."""
    if isinstance(value, str):
        return "name"
    given = value if isinstance(value, dict) else type(value).model_fields if isinstance(value, Section) else ()
    return next((name for name in ("hash", "mask", "truncate") if name in given), None)


ColumnSettings = Annotated[
    Annotated[Literal["include", "exclude"], Tag("name")]
    | Annotated[HashSettings, Tag("hash")]
    | Annotated[MaskSettings, Tag("mask")]
    | Annotated[TruncateSettings, Tag("truncate")],
    Discriminator(_kind, custom_error_type="column_rule", custom_error_message=_HOW),
]

"""Column rules as the configuration has them."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from sluice.settings.section import Section

RULE = "column_rule"
"""Of the error that a value is no rule."""
NAMES = ("include", "exclude")
_HOW = (
    "a column has one rule: include, exclude, {mask: TEXT}, {truncate: CHARACTERS} "
    "or {hash: hmac-sha256, key_file: FILE}"
)


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


FORMS: dict[str, type[Section]] = {"hash": HashSettings, "mask": MaskSettings, "truncate": TruncateSettings}
"""By the key that tells them apart."""


def _kind(value: Any) -> str | None:
    """Which of the forms a value has."""
    if isinstance(value, str):
        return "name" if value in NAMES else None
    given = value if isinstance(value, dict) else type(value).model_fields if isinstance(value, Section) else ()
    forms = [name for name in FORMS if name in given]
    return forms[0] if len(forms) == 1 else None


ColumnSettings = Annotated[
    Annotated[Literal["include", "exclude"], Tag("name")]
    | Annotated[HashSettings, Tag("hash")]
    | Annotated[MaskSettings, Tag("mask")]
    | Annotated[TruncateSettings, Tag("truncate")],
    Discriminator(_kind, custom_error_type=RULE, custom_error_message=_HOW),
]

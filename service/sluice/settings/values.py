"""Sizes and durations as people write them: `128MiB`, `2s`.

Invariant: what is shown reads back as the same number. A spelling that could mean two things
(`128M`, `1m30`) is refused, not guessed. Must not know any setting by name.
"""

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")
SIZE_UNITS = {name: 1024**power for power, name in enumerate(_BINARY)} | {
    name: 1000**power for power, name in enumerate(("kB", "MB", "GB", "TB"), 1)
}
DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_AMOUNT = r"(\d+(?:\.\d+)?)"
_SIZE = re.compile(rf"\A{_AMOUNT}\s*([A-Za-z]*)\Z")
_DURATION = re.compile(rf"\A{_AMOUNT}\s*([a-z]+)\Z")
_SIZE_HELP = "a size is a number of bytes, or a number with one of " + ", ".join(SIZE_UNITS) + ", such as 128MiB"
_DURATION_HELP = (
    "a duration is a number of seconds, or a number with one of " + ", ".join(DURATION_UNITS) + ", such as 2s"
)
_FOLDED_UNITS = {name.lower(): factor for name, factor in SIZE_UNITS.items()}


def parse_size(value: Any) -> Any:
    """Bytes for `128MiB` or `134217728`. Raises ValueError with what is allowed."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.match(value.strip()) if isinstance(value, str) else None
    factor = _FOLDED_UNITS.get(match[2].lower() or "b") if match else None
    if match is None or factor is None:
        raise ValueError(_SIZE_HELP)
    count = float(match[1]) * factor
    if not count.is_integer():
        raise ValueError(f"not a whole number of bytes; {_SIZE_HELP}")
    return int(count)


def parse_duration(value: Any) -> Any:
    """Seconds for `2s`, `500ms` or a plain number. Raises ValueError with what is allowed."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    text = value.strip() if isinstance(value, str) else ""
    if re.fullmatch(_AMOUNT, text):
        return float(text)
    match = _DURATION.match(text)
    if match is None or match[2] not in DURATION_UNITS:
        raise ValueError(_DURATION_HELP)
    return float(match[1]) * DURATION_UNITS[match[2]]


def show_size(value: int) -> str:
    """The shortest exact binary spelling."""
    for name in reversed(_BINARY):
        if value and value % SIZE_UNITS[name] == 0:
            return f"{value // SIZE_UNITS[name]}{name}"
    return f"{value}B"


def show_duration(value: float) -> str:
    """The shortest exact spelling in hours, minutes, seconds or milliseconds."""
    for name in ("d", "h", "m", "s"):
        count = value / DURATION_UNITS[name]
        if value and count.is_integer():
            return f"{int(count)}{name}"
    milliseconds = value * 1000
    return f"{int(milliseconds)}ms" if milliseconds.is_integer() else f"{value:g}s"


UNTIL_APPLIED, FOREVER = "until_applied", "forever"
LONGEST_RETENTION = 100 * 365 * 86400.0
_RETENTION_HELP = f"a retention is {UNTIL_APPLIED}, {FOREVER} or a duration such as 7d"


def parse_retention(value: Any) -> Any:
    """Seconds: 0 for `until_applied`, infinity for `forever`. A number needs its unit: who writes 7 may
    mean days. Raises ValueError with what is allowed.
    """
    if value in (UNTIL_APPLIED, FOREVER):
        return 0.0 if value == UNTIL_APPLIED else math.inf
    if not isinstance(value, str) or re.fullmatch(_AMOUNT, value.strip()):
        raise ValueError(_RETENTION_HELP)
    try:
        seconds = float(parse_duration(value))
    except ValueError as error:
        raise ValueError(_RETENTION_HELP) from error
    if seconds > LONGEST_RETENTION:
        raise ValueError(f"longer than a hundred years; {FOREVER} is a retention, too")
    return seconds


def show_retention(value: float) -> str:
    if math.isinf(value):
        return FOREVER
    return show_duration(value) if value else UNTIL_APPLIED


Retention = Annotated[
    float,
    BeforeValidator(parse_retention),
    PlainSerializer(show_retention, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "examples": ["7d", UNTIL_APPLIED, FOREVER]}),
]
"""Seconds, infinity for ever."""

Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(show_size, return_type=str, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}], "examples": ["128MiB"]}),
]
"""Bytes."""

Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(show_duration, return_type=str, when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}], "examples": ["2s"]}),
]
"""Seconds."""

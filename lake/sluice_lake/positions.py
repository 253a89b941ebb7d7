"""Positions in PostgreSQL's log and moments, as people give them."""

import re
from datetime import UTC, datetime

from sluice_lake.errors import UnusableArgument

_LSN = re.compile(r"\A([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})\Z")


def lsn_of(given: str | int) -> int:
    """The LSN that `X/Y` spells, in either of PostgreSQL's spellings, or a number. Raises UnusableArgument."""
    if isinstance(given, int):
        return given
    match = _LSN.match(given.strip())
    if match is None:
        raise UnusableArgument(
            f"not an LSN: {given[:40]!r}", hint="an LSN is two hexadecimal numbers with a slash, such as 16/B374D848"
        )
    return int(match[1], 16) << 32 | int(match[2], 16)


def show(lsn: int) -> str:
    """`lsn` as PostgreSQL 14 to 18 print it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFF_FFFF:X}"


def time_of(given: str | datetime) -> datetime:
    """The moment that `given` names: ISO 8601, or a datetime. Raises UnusableArgument for one without a time zone,
    because it would be another moment on another machine.
    """
    try:
        at = datetime.fromisoformat(given) if isinstance(given, str) else given
    except ValueError:
        raise UnusableArgument(
            f"not a time: {str(given)[:40]!r}", hint="a time is ISO 8601, such as 2026-01-31T12:00:00Z"
        ) from None
    if at.tzinfo is None:
        raise UnusableArgument(
            f"{at.isoformat()} has no time zone", hint="add Z or an offset, such as 2026-01-31T12:00:00Z"
        )
    return at.astimezone(UTC)

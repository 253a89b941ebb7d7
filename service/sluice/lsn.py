"""Log sequence numbers as 64-bit integers.

PostgreSQL prints an LSN as two hexadecimal halves (`16/B374D848`); 19 pads the low half with zeros.
Text is for people: nothing in Sluice compares, sorts or stores LSNs as text except the two
functions here. (PostgreSQL: pg_lsn Type.)
"""

import re

from sluice.errors import UsageError

INVALID = 0
"""PostgreSQL's InvalidXLogRecPtr: no position at all, never a place in the log."""

MAX = 0xFFFF_FFFF_FFFF_FFFF
MAX_STORED = 0x7FFF_FFFF_FFFF_FFFF
"""The greatest LSN that a signed 64-bit column holds: 8 EiB of WAL, centuries away for any server."""

_TEXT = re.compile(r"\A([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})\Z")


def parse(text: str) -> int:
    """The LSN that `X/Y` spells, in either of PostgreSQL's spellings. Raises UsageError."""
    match = _TEXT.match(text.strip())
    if match is None:
        raise UsageError(
            f"not an LSN: {text[:40]!r}", hint="an LSN is two hexadecimal numbers with a slash, such as 16/B374D848"
        )
    return int(match[1], 16) << 32 | int(match[2], 16)


def show(lsn: int) -> str:
    """`lsn` as PostgreSQL 14 to 18 print it. 19 pads its second half, and reads both forms."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFF_FFFF:X}"

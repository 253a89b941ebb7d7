"""Text that may hold names from the source, for terminals, probes and lines of text.

Invariant: what comes out is one line of printable characters: no escape sequence, no change of the
direction of writing, no line that a name made up.
"""

import re

HIDDEN = "-- not shown: it holds characters that no terminal should get; write it to a file instead"
"""In place of SQL that cannot be spelled for a terminal."""
MASK = "********"
"""In place of a secret."""
_QUOTED = re.compile(r'"(?:[^"]|"")*"')


def one_line(text: str) -> str:
    """`text` with `?` for whatever is not printable, line ends among them."""
    return "".join(character if character.isprintable() else "?" for character in text)


def counted(count: int, noun: str, plural: str = "") -> str:
    """`count` of `noun` for people: 1 row, 2,000 rows, 1 entry, 2 entries."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def lines(text: str) -> str:
    """As `one_line`, for text with lines of our own."""
    return "\n".join(one_line(line) for line in text.split("\n"))


def sql(statement: str) -> str | None:
    """`statement` in printable characters and with the same meaning: quoted names that hold others
    are spelled U&"...". None if they stand elsewhere.
    """
    spelled = _QUOTED.sub(lambda found: _escaped(found[0]), statement)
    return spelled if lines(spelled) == spelled else None


def _escaped(quoted: str) -> str:
    if quoted.isprintable():
        return quoted
    return 'U&"' + "".join(_escape(character) for character in quoted[1:-1]) + '"'


def _escape(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if character.isprintable():
        return character
    return f"\\{ord(character):04x}" if ord(character) <= 0xFFFF else f"\\+{ord(character):06x}"

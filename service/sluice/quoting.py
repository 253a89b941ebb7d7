"""Names and texts inside SQL and replication commands: the one place that quotes them.

Invariant: whatever a source calls its things, a quoted name or text is exactly one token that
spells it. Replication commands take no parameters and a replication session runs any SQL, so a name
that escaped its quotes would run with all our rights. Must not: guess, fold case or shorten. What
cannot be spelled is refused. (PostgreSQL: Lexical Structure; Streaming Replication Protocol.)
"""

import re
from collections.abc import Sequence

from sluice.errors import UsageError

MAX_NAME_BYTES = 63
"""NAMEDATALEN - 1, in the server's encoding, which has a byte for each character at least; UTF-8
may need more for the same name. The server silently shortens longer names, and would then mean
another thing. A name that the server itself sent is never too long for it.
"""

_SLOT = re.compile(r"\A[a-z0-9_]{1,63}\Z")


def quote_identifier(name: str) -> str:
    """`name` as one SQL identifier, always in double quotes. Raises UsageError for what PostgreSQL
    cannot have as a name.
    """
    if not name or "\0" in name:
        raise UsageError("a PostgreSQL name can neither be empty nor hold a NUL character")
    if len(name) > MAX_NAME_BYTES:
        raise UsageError(f"the name {name[:63]!r}... is longer than PostgreSQL's {MAX_NAME_BYTES} bytes")
    return '"' + name.replace('"', '""') + '"'


def quote_qualified(schema: str, name: str) -> str:
    """`schema.name`, both quoted."""
    return f"{quote_identifier(schema)}.{quote_identifier(name)}"


def quote_literal(text: str) -> str:
    """`text` as one SQL string constant, whatever standard_conforming_strings says."""
    if "\0" in text:
        raise UsageError("a PostgreSQL text cannot hold a NUL character")
    quoted = text.replace("'", "''")
    if "\\" not in quoted:
        return f"'{quoted}'"
    return " E'" + quoted.replace("\\", "\\\\") + "'"


def quote_replication_literal(text: str) -> str:
    """`text` as one string of the replication grammar, which knows doubled quotes but no
    backslashes and no E''.
    """
    if "\0" in text:
        raise UsageError("a PostgreSQL text cannot hold a NUL character")
    return "'" + text.replace("'", "''") + "'"


def quote_slot(name: str) -> str:
    """A replication slot's name for a replication command. Raises UsageError for names that slots
    cannot have.
    """
    if _SLOT.match(name) is None:
        raise UsageError(f"not a slot name: {name[:63]!r}", hint="slot names are 1 to 63 of a-z, 0-9 and _")
    return f'"{name}"'


def publication_names(names: Sequence[str]) -> str:
    """The value of START_REPLICATION's publication_names: a list of SQL identifiers, inside a
    string of the replication grammar.
    """
    return quote_replication_literal(",".join(quote_identifier(name) for name in names))

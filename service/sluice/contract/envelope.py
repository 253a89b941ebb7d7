"""The envelope: names of the columns that Sluice adds to a segment and to a lake table.

Every name that begins with `_sluice` (in any case) is ours; a source table with such a column is
refused by name.
"""

from functools import lru_cache

RESERVED_PREFIX = "_sluice"
_KNOWN_NAMES = 10_000
"""Each look at the catalog asks about the same names of columns again."""

OP = "_sluice_op"
"""`i`, `u`, `d` or `t`."""
LSN = "_sluice_lsn"
"""End LSN of the commit, int64. Null in a body segment: the manifest supplies it."""
TS = "_sluice_ts"
"""Commit time, microseconds UTC. Null in a body segment: the manifest supplies it."""
ORDINAL = "_sluice_ordinal"
"""Position of the row in its transaction, int64, from 0; with LSN a total order. Gaps are allowed,
repeats are not.
"""
XID = "_sluice_xid"
"""Transaction id, int64; in a streamed body the (sub)transaction that made the change. Never a key:
it wraps.
"""
UNCHANGED = "_sluice_unchanged"
"""attnums (int16 list) of columns whose value was not sent; null when there are none."""
OLD = "_sluice_old"
"""Struct of the identity columns of the old row as sent (all columns for FULL); null when no old
row was sent.
"""
SPECIAL = "_sluice_special"
"""Map of column name to exact text, for values that the column's type cannot hold; null when there
are none.
"""
OLD_SPECIAL = "_sluice_old_special"
"""The same for the values in OLD."""

ORIGIN = "_sluice_origin"
"""Name of the replication origin that the transaction came from, null for one of the source's own.
In changelogs only; the manifest has it.
"""
ORIGIN_LSN = "_sluice_origin_lsn"
"""The transaction's position at its origin, any 64 bits; null when the server did not send it (it
never does for a streamed transaction).
"""

SNAPSHOT = "_sluice_snapshot"
"""Whether the row is one of a snapshot, and no change. In changelogs only."""
DELETED_AT = "_sluice_deleted_at"
"""Commit time of the transaction that deleted the row, null while it lives. In mirrors with soft deletes only."""
VALID_FROM, VALID_TO = "_sluice_valid_from", "_sluice_valid_to"
"""Commit times between which a version of a row was the current one, the second one null while it is. In
histories only, like the next three.
"""
FROM_LSN, TO_LSN = "_sluice_from_lsn", "_sluice_to_lsn"
"""The same as end LSNs of the commits, which alone are in order."""
IS_CURRENT = "_sluice_is_current"
"""Whether the version is the row that the source has."""

LAKE_TYPES = {
    OP: "string",
    LSN: "bigint",
    TS: "timestamp",
    ORDINAL: "bigint",
    XID: "bigint",
    UNCHANGED: "array<smallint>",
    SPECIAL: "map<string,string>",
    OLD_SPECIAL: "map<string,string>",
    ORIGIN: "string",
    ORIGIN_LSN: "decimal(20,0)",
    SNAPSHOT: "boolean",
    DELETED_AT: "timestamp",
    VALID_FROM: "timestamp",
    VALID_TO: "timestamp",
    FROM_LSN: "bigint",
    TO_LSN: "bigint",
    IS_CURRENT: "boolean",
}
"""Spark types of those that a lake table may have, but for OLD, whose type follows the table's own columns."""

OP_INSERT = "i"
OP_UPDATE = "u"
OP_DELETE = "d"
OP_TRUNCATE = "t"
OP_NAMES = {OP_INSERT: "insert", OP_UPDATE: "update", OP_DELETE: "delete", OP_TRUNCATE: "truncate"}
"""The words of PostgreSQL's publications, and of the metrics."""

MARKS = (SPECIAL, OLD_SPECIAL)
SEGMENT_ENVELOPE = (OP, LSN, TS, ORDINAL, XID, UNCHANGED, OLD, SPECIAL, OLD_SPECIAL)
DELTA_RESERVED = frozenset({
    "_change_type", "_commit_version", "_commit_timestamp",
    "_metadata", "_tmp_metadata_row_index", "__delta_internal_is_row_deleted",
    "_source_row_present_", "_target_row_present_", "_row_dropped_", "_row_id_", "_file_name_",
})  # fmt: skip
"""Names that Delta keeps for its change feed, Spark for reading files and Delta's MERGE for itself:
a table with one of them can be made, but not followed.
"""


def is_reserved(name: str) -> bool:
    """Whether a source column of this name would clash with ours or with Delta's."""
    return folded(name).startswith(RESERVED_PREFIX) or folded(name) in DELTA_RESERVED


@lru_cache(_KNOWN_NAMES)
def folded(name: str) -> str:
    """The same text for all names that Delta takes for one column: character by character, as
    Java's equalsIgnoreCase compares (s is \u017f, i is \u0131).
    """
    upper = (character.upper() if len(character.upper()) == 1 else character for character in name)
    return "".join(character.lower()[0] for character in upper)

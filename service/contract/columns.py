"""The envelope: names of the columns that Sluice adds to a segment and to a lake table.

Every name that begins with `_sluice` (in any case) is ours; a source table with such a column is refused by name.
"""

RESERVED_PREFIX = "_sluice"

OP = "_sluice_op"
"""`i`, `u`, `d` or `t`."""
LSN = "_sluice_lsn"
"""End LSN of the commit, int64. Null in a body segment: the manifest supplies it."""
TS = "_sluice_ts"
"""Commit time, microseconds UTC. Null in a body segment: the manifest supplies it."""
ORDINAL = "_sluice_ordinal"
"""Position of the row in its transaction, int64, from 0; with LSN a total order. Gaps are allowed, repeats are not."""
XID = "_sluice_xid"
"""Transaction id, int64; in a streamed body the (sub)transaction that made the change. Never a key: it wraps."""
UNCHANGED = "_sluice_unchanged"
"""attnums (int16 list) of columns whose value was not sent; null when there are none."""
OLD = "_sluice_old"
"""Struct of the identity columns of the old row as sent (all columns for FULL); null when no old row was sent."""
SPECIAL = "_sluice_special"
"""Map of column name to exact text, for values that the column's type cannot hold; null when there are none."""
OLD_SPECIAL = "_sluice_old_special"
"""The same for the values in OLD."""

OP_INSERT = "i"
OP_UPDATE = "u"
OP_DELETE = "d"
OP_TRUNCATE = "t"

SEGMENT_ENVELOPE = (OP, LSN, TS, ORDINAL, XID, UNCHANGED, OLD, SPECIAL, OLD_SPECIAL)
DELTA_RESERVED = ("_change_type", "_commit_version", "_commit_timestamp")
"""Names that Delta keeps for its change feed; refused for the same reason."""


def is_reserved(name: str) -> bool:
    """Whether a source column of this name would clash with ours or with Delta's."""
    return name.lower().startswith(RESERVED_PREFIX) or name.lower() in DELTA_RESERVED

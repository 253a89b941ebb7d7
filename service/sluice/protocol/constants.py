"""The fixed numbers of the replication protocols: tags, header lengths, flags, the epoch.

Every byte that means something on the wire is named here and nowhere else, with PostgreSQL's name
for it. Sizes that PostgreSQL cannot exceed are in `limits`. (PostgreSQL: Streaming Replication
Protocol; Logical Replication Message Formats.)
"""

# Inside CopyData: the first byte of each message (the server sends w and k, the client sends r).

XLOGDATA = ord("w")
PRIMARY_KEEPALIVE = ord("k")
STANDBY_STATUS_UPDATE = ord("r")

XLOGDATA_HEADER_BYTES = 25
"""The tag, the WAL position of the data, the server's end of WAL, the send time. The pgoutput
message follows.
"""
XLOGDATA_WAL_END = slice(9, 17)
"""The server's end of WAL in that header."""
KEEPALIVE_BYTES = 18
"""The tag, the server's end of WAL, the send time, whether a reply is requested."""

POSTGRES_EPOCH_US = 946_684_800_000_000
LAST_TIME_US = 2**63 - 1 - POSTGRES_EPOCH_US
"""What is later on the wire does not fit 64-bit microseconds since 1970."""
"""2000-01-01 UTC in microseconds since 1970: times on the wire count from there."""

# Inside XLogData: the first byte of each pgoutput message (LogicalRepMsgType in PostgreSQL).

BEGIN = ord("B")
COMMIT = ord("C")
ORIGIN = ord("O")
RELATION = ord("R")
TYPE = ord("Y")
INSERT = ord("I")
UPDATE = ord("U")
DELETE = ord("D")
TRUNCATE = ord("T")
MESSAGE = ord("M")
BEGIN_PREPARE = ord("b")
PREPARE = ord("P")
COMMIT_PREPARED = ord("K")
ROLLBACK_PREPARED = ord("r")
STREAM_START = ord("S")
STREAM_STOP = ord("E")
STREAM_COMMIT = ord("c")
STREAM_ABORT = ord("A")
STREAM_PREPARE = ord("p")

ROW_TAGS = frozenset({INSERT, UPDATE, DELETE})
TAGS_WITH_STREAM_XID = ROW_TAGS | {RELATION, TYPE, TRUNCATE, MESSAGE}
"""Between Stream Start and Stream Stop, these carry a transaction id right after the tag."""

# Inside row messages: which tuple follows, and the kind of each column's value in it.

NEW_TUPLE = ord("N")
OLD_KEY = ord("K")
OLD_TUPLE = ord("O")

NULL = ord("n")
UNCHANGED = ord("u")
"""A TOASTed value that did not change and is not sent."""
TEXT = ord("t")
BINARY = ord("b")

# Flags, and the replica identities that Relation can name (pg_class.relreplident).

COLUMN_IS_IDENTITY = 1
MESSAGE_IS_TRANSACTIONAL = 1
TRUNCATE_CASCADE = 1
TRUNCATE_RESTART_IDENTITY = 2
NO_FLAGS = 0
"""Commit, Prepare and their kin have a byte of flags of which none is defined."""

REPLICA_IDENTITIES = "dnfi"

"""The control messages of a logical replication stream as values.

Everything but row messages (Insert, Update, Delete), which stay bytes until `tuples` walks them
column by column. All are immutable. LSNs are integers. Times are microseconds since 1970 UTC.
`stream_xid` is the (sub)transaction id that a message carries inside a stream block, None outside
one. (PostgreSQL: Logical Replication Message Formats; Streaming Replication Protocol.)
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keepalive:
    """`end_lsn` is the end of the last WAL record decoded; it may appear anywhere, also inside a
    transaction.
    """

    end_lsn: int
    sent_time_us: int
    reply_requested: bool


@dataclass(frozen=True, slots=True)
class Begin:
    """`final_lsn` is the start of the commit record."""

    final_lsn: int
    commit_time_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """`end_lsn` is what may be acknowledged once the transaction is durable; `commit_lsn` equals
    Begin.final_lsn.
    """

    commit_lsn: int
    end_lsn: int
    commit_time_us: int


@dataclass(frozen=True, slots=True)
class Origin:
    """The transaction came from replication origin `name`; `lsn` is a position there, 0 inside a
    stream, never one of ours.
    """

    lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str
    type_oid: int
    typmod: int
    identity: bool


@dataclass(frozen=True, slots=True)
class RelationVersion:
    """One shape of one relation. Rows refer to the version in force when they arrived (last on the
    wire wins, by oid).

    `replica_identity` is `d`, `n`, `f` or `i`; `schema` is never empty (the wire's empty name is
    pg_catalog).
    """

    oid: int
    schema: str
    name: str
    replica_identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Relation:
    version: RelationVersion
    stream_xid: int | None


@dataclass(frozen=True, slots=True)
class TypeName:
    """Name of a type that is not built in; for a domain the domain's oid with its base type's name."""

    oid: int
    schema: str
    name: str
    stream_xid: int | None


@dataclass(frozen=True, slots=True)
class Truncate:
    relation_oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool
    stream_xid: int | None


DDL_SIGNAL = "sluice.ddl"
"""The prefix of messages that say that DDL ran. Anybody may emit one."""


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """`content` is bytes as emitted, in no encoding, up to 1 GB; a view of the frame that it came
    in. A transactional one inside a stream carries the top transaction's id, even from a
    rolled-back savepoint.
    """

    transactional: bool
    lsn: int
    prefix: str
    content: bytes | memoryview
    stream_xid: int | None


@dataclass(frozen=True, slots=True)
class StreamStart:
    xid: int
    first: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    pass


@dataclass(frozen=True, slots=True)
class StreamCommit:
    xid: int
    commit_lsn: int
    end_lsn: int
    commit_time_us: int


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """`subxid == xid` drops the whole transaction. `abort_lsn` and `abort_time_us` come with
    `streaming 'parallel'` only.
    """

    xid: int
    subxid: int
    abort_lsn: int | None
    abort_time_us: int | None


@dataclass(frozen=True, slots=True)
class BeginPrepare:
    prepare_lsn: int
    end_lsn: int
    prepare_time_us: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class Prepare:
    prepare_lsn: int
    end_lsn: int
    prepare_time_us: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    commit_lsn: int
    end_lsn: int
    commit_time_us: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    prepare_end_lsn: int
    rollback_end_lsn: int
    prepare_time_us: int
    rollback_time_us: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class StreamPrepare:
    prepare_lsn: int
    end_lsn: int
    prepare_time_us: int
    xid: int
    gid: str


ControlMessage = (
    Keepalive
    | Begin
    | Commit
    | Origin
    | Relation
    | TypeName
    | Truncate
    | LogicalMessage
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | BeginPrepare
    | Prepare
    | CommitPrepared
    | RollbackPrepared
    | StreamPrepare
)

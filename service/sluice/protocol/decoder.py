"""Control messages: the bytes of one frame to one value of `messages`.

Invariant: a message is returned only if every byte of its frame was understood: fields inside the
bounds, strings ended and valid UTF-8, flags and counts as documented, nothing left over. Anything
else is a DecodeError. Row messages are refused; `tuples` walks those. No state is kept between
calls: the assembler decides whether a message may come at this place, and the caller says whether
it carries a transaction id. Keepalives are decoded by `keepalive`. (PostgreSQL: Logical Replication
Message Formats.)
"""

import struct
from collections.abc import Callable

from sluice.errors import DecodeError
from sluice.lsn import INVALID, MAX_STORED, show
from sluice.protocol import constants as c
from sluice.protocol.constants import LAST_TIME_US, POSTGRES_EPOCH_US, XLOGDATA_HEADER_BYTES
from sluice.protocol.frames import FrameTable, frame_name
from sluice.protocol.keepalive import decode_keepalive
from sluice.protocol.limits import MAX_COLUMNS, MAX_GID_CHARACTERS, MAX_NAME_CHARACTERS, MAX_ORIGIN_CHARACTERS
from sluice.protocol.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    ControlMessage,
    LogicalMessage,
    Origin,
    Prepare,
    Relation,
    RelationColumn,
    RelationVersion,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    TypeName,
)


def decode_control(table: FrameTable, index: int, *, in_stream: bool) -> ControlMessage:
    """The control message in frame `index`.

    `in_stream` says whether the frame came between Stream Start and Stream Stop: Relation, Type,
    Truncate and Message then carry a transaction id. Raises DecodeError, and nothing else, for a
    frame that is not exactly one such message; it names the message and its LSN, never its content.
    """
    if int(table.outer[index]) == c.PRIMARY_KEEPALIVE:
        return decode_keepalive(table.raw[int(table.start[index]) : int(table.end[index])])
    reader = _Reader(table, index)
    reader.skip(XLOGDATA_HEADER_BYTES)
    tag = reader.byte()
    decode = _DECODERS.get(tag)
    if decode is None:
        raise reader.refusal("is not a control message of protocol 1 to 4")
    message = decode(reader, reader.xid() if in_stream and tag in c.TAGS_WITH_STREAM_XID else None)
    reader.close()
    return message


class _Reader:
    """A position in one frame. Every read is checked against the frame's end before it happens."""

    def __init__(self, table: FrameTable, index: int) -> None:
        self._table = table
        self._index = index
        self._raw = table.raw
        self._position = int(table.start[index])
        self._end = int(table.end[index])

    def refusal(self, why: str) -> DecodeError:
        return DecodeError(f"{frame_name(self._table, self._index)} {why}")

    @property
    def remaining(self) -> int:
        return self._end - self._position

    def skip(self, count: int) -> int:
        """Moves behind `count` bytes and returns where they begin."""
        if not 0 <= count <= self.remaining:
            raise self.refusal("ends inside a field")
        position = self._position
        self._position += count
        return position

    def close(self) -> None:
        if self.remaining:
            raise self.refusal(f"has {self.remaining} bytes behind its last field")

    def byte(self) -> int:
        return self._raw[self.skip(1)]

    def flags(self, defined: int) -> int:
        """A byte of flags, none of them outside `defined`."""
        flags = self.byte()
        if flags & ~defined:
            raise self.refusal(f"has unknown flags 0x{flags:02x}")
        return flags

    def flag(self, defined: int = 1) -> bool:
        return self.flags(defined) != 0

    def uint16(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def uint32(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def xid(self) -> int:
        xid = self.uint32()
        if xid == 0:
            raise self.refusal("has no transaction id")
        return xid

    def lsn(self) -> int:
        """A position of this server, which may be 0/0 but must fit the signed columns it is stored
        in.
        """
        lsn = int.from_bytes(self.take(8), "big")
        if lsn > MAX_STORED:
            raise self.refusal(f"has the impossible LSN {show(lsn)}")
        return lsn

    def position(self) -> int:
        """An LSN that says where something is, so not 0/0."""
        lsn = self.lsn()
        if lsn == INVALID:
            raise self.refusal("has the LSN 0/0 where a position must be")
        return lsn

    def time_us(self) -> int:
        """Microseconds since 1970. Times that only the wire's epoch can hold (after the year
        294246, infinity) could not be stored: refused.
        """
        time_us: int = struct.unpack(">q", self.take(8))[0]
        if time_us > LAST_TIME_US:
            raise self.refusal("has a time that does not fit 64-bit microseconds since 1970")
        return time_us + POSTGRES_EPOCH_US

    def take(self, count: int) -> bytes:
        position = self.skip(count)
        return self._raw[position : self._position]

    def view(self, count: int) -> memoryview:
        """Like `take`, without a copy: what may be large and is mostly not wanted."""
        position = self.skip(count)
        return memoryview(self._raw)[position : self._position]

    def string(self, limit: int | None = None) -> str:
        """A NUL-terminated string of at most `limit` characters."""
        nul = self._raw.find(b"\0", self._position, self._end)
        if nul < 0:
            raise self.refusal("has a string without an end")
        encoded = self.take(nul - self._position)
        self.skip(1)
        try:
            text = encoded.decode("utf-8")
        except UnicodeDecodeError:
            # Not chained: the cause would carry the bytes, and a message's prefix belongs to
            # whoever wrote it.
            raise self.refusal("has a string that is not UTF-8") from None
        if limit is not None and len(text) > limit:
            raise self.refusal(f"has a name of {len(text)} characters, more than {limit}")
        return text

    def name(self) -> str:
        """A name as PostgreSQL makes them: never empty."""
        text = self.string(MAX_NAME_CHARACTERS)
        if not text:
            raise self.refusal("has an empty name")
        return text

    def schema(self) -> str:
        return self.string(MAX_NAME_CHARACTERS) or "pg_catalog"


def _begin(reader: _Reader, _stream_xid: int | None) -> Begin:
    return Begin(final_lsn=reader.position(), commit_time_us=reader.time_us(), xid=reader.xid())


def _commit(reader: _Reader, _stream_xid: int | None) -> Commit:
    reader.flags(c.NO_FLAGS)
    return Commit(commit_lsn=reader.position(), end_lsn=reader.position(), commit_time_us=reader.time_us())


def _origin(reader: _Reader, _stream_xid: int | None) -> Origin:
    # A position on another server: only carried along, so any 64 bits will do.
    return Origin(lsn=int.from_bytes(reader.take(8), "big"), name=reader.string(MAX_ORIGIN_CHARACTERS))


def _relation(reader: _Reader, stream_xid: int | None) -> Relation:
    oid, schema, name = reader.uint32(), reader.schema(), reader.name()
    replica_identity = chr(reader.byte())
    if replica_identity not in c.REPLICA_IDENTITIES:
        raise reader.refusal("has an unknown replica identity")
    count = reader.uint16()
    if count > MAX_COLUMNS:
        raise reader.refusal(f"has {count} columns, more than {MAX_COLUMNS}")
    columns = tuple(_relation_column(reader) for _ in range(count))
    if len({column.name for column in columns}) != count:
        raise reader.refusal("names two columns alike")
    return Relation(
        RelationVersion(oid=oid, schema=schema, name=name, replica_identity=replica_identity, columns=columns),
        stream_xid,
    )


def _relation_column(reader: _Reader) -> RelationColumn:
    identity = reader.flag(c.COLUMN_IS_IDENTITY)
    return RelationColumn(name=reader.name(), type_oid=reader.uint32(), typmod=reader.int32(), identity=identity)


def _type_name(reader: _Reader, stream_xid: int | None) -> TypeName:
    return TypeName(oid=reader.uint32(), schema=reader.schema(), name=reader.name(), stream_xid=stream_xid)


def _truncate(reader: _Reader, stream_xid: int | None) -> Truncate:
    count = reader.uint32()
    flags = reader.flags(c.TRUNCATE_CASCADE | c.TRUNCATE_RESTART_IDENTITY)
    # Against the bytes that are there, before anything of the announced size is made. The server
    # never sends a Truncate of nothing.
    if not count or count * 4 != reader.remaining:
        raise reader.refusal(f"announces {count} relations in {reader.remaining} bytes")
    oids = struct.unpack(f">{count}I", reader.take(count * 4))
    return Truncate(
        oids,
        cascade=bool(flags & c.TRUNCATE_CASCADE),
        restart_identity=bool(flags & c.TRUNCATE_RESTART_IDENTITY),
        stream_xid=stream_xid,
    )


def _logical_message(reader: _Reader, stream_xid: int | None) -> LogicalMessage:
    transactional, lsn, prefix = reader.flag(c.MESSAGE_IS_TRANSACTIONAL), reader.position(), reader.string()
    return LogicalMessage(transactional, lsn, prefix, reader.view(reader.int32()), stream_xid)


def _stream_start(reader: _Reader, _stream_xid: int | None) -> StreamStart:
    return StreamStart(xid=reader.xid(), first=reader.flag())


def _stream_stop(_reader: _Reader, _stream_xid: int | None) -> StreamStop:
    return StreamStop()


def _stream_commit(reader: _Reader, _stream_xid: int | None) -> StreamCommit:
    xid = reader.xid()
    reader.flags(c.NO_FLAGS)
    return StreamCommit(xid, commit_lsn=reader.position(), end_lsn=reader.position(), commit_time_us=reader.time_us())


def _stream_abort(reader: _Reader, _stream_xid: int | None) -> StreamAbort:
    xid, subxid = reader.xid(), reader.xid()
    if not reader.remaining:
        return StreamAbort(xid, subxid, abort_lsn=None, abort_time_us=None)
    # The LSN is 0/0 when the server found the abort by the absence of its record.
    return StreamAbort(xid, subxid, abort_lsn=reader.lsn(), abort_time_us=reader.time_us())


def _begin_prepare(reader: _Reader, _stream_xid: int | None) -> BeginPrepare:
    return BeginPrepare(
        reader.position(), reader.position(), reader.time_us(), reader.xid(), reader.string(MAX_GID_CHARACTERS)
    )


def _prepare(reader: _Reader, _stream_xid: int | None) -> Prepare:
    reader.flags(c.NO_FLAGS)
    return Prepare(
        reader.position(), reader.position(), reader.time_us(), reader.xid(), reader.string(MAX_GID_CHARACTERS)
    )


def _commit_prepared(reader: _Reader, _stream_xid: int | None) -> CommitPrepared:
    reader.flags(c.NO_FLAGS)
    return CommitPrepared(
        reader.position(), reader.position(), reader.time_us(), reader.xid(), reader.string(MAX_GID_CHARACTERS)
    )


def _rollback_prepared(reader: _Reader, _stream_xid: int | None) -> RollbackPrepared:
    reader.flags(c.NO_FLAGS)
    return RollbackPrepared(
        prepare_end_lsn=reader.position(),
        rollback_end_lsn=reader.position(),
        prepare_time_us=reader.time_us(),
        rollback_time_us=reader.time_us(),
        xid=reader.xid(),
        gid=reader.string(MAX_GID_CHARACTERS),
    )


def _stream_prepare(reader: _Reader, _stream_xid: int | None) -> StreamPrepare:
    reader.flags(c.NO_FLAGS)
    return StreamPrepare(
        reader.position(), reader.position(), reader.time_us(), reader.xid(), reader.string(MAX_GID_CHARACTERS)
    )


_DECODERS: dict[int, Callable[[_Reader, int | None], ControlMessage]] = {
    c.BEGIN: _begin,
    c.COMMIT: _commit,
    c.ORIGIN: _origin,
    c.RELATION: _relation,
    c.TYPE: _type_name,
    c.TRUNCATE: _truncate,
    c.MESSAGE: _logical_message,
    c.STREAM_START: _stream_start,
    c.STREAM_STOP: _stream_stop,
    c.STREAM_COMMIT: _stream_commit,
    c.STREAM_ABORT: _stream_abort,
    c.BEGIN_PREPARE: _begin_prepare,
    c.PREPARE: _prepare,
    c.COMMIT_PREPARED: _commit_prepared,
    c.ROLLBACK_PREPARED: _rollback_prepared,
    c.STREAM_PREPARE: _stream_prepare,
}

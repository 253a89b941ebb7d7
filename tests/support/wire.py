"""Frames put together by hand, for tests: the server's side of the protocol, written from the
manual and sharing nothing with the decoder.
"""

import struct
from collections.abc import Sequence

from sluice.protocol.constants import POSTGRES_EPOCH_US

Value = str | bytes | None
UNCHANGED = b"\x00unchanged"
"""A value that the server says it does not send."""


def frame(payload: bytes, *, lsn: int = 0) -> bytes:
    return b"w" + struct.pack(">QQq", lsn, lsn, 0) + payload


def keepalive(end_lsn: int, *, reply: bool = False) -> bytes:
    return b"k" + struct.pack(">QqB", end_lsn, 0, reply)


def begin(final_lsn: int, xid: int, *, time_us: int = POSTGRES_EPOCH_US) -> bytes:
    return frame(b"B" + struct.pack(">QqI", final_lsn, time_us - POSTGRES_EPOCH_US, xid), lsn=final_lsn)


def commit(commit_lsn: int, end_lsn: int, *, time_us: int = POSTGRES_EPOCH_US) -> bytes:
    return frame(b"C\x00" + struct.pack(">QQq", commit_lsn, end_lsn, time_us - POSTGRES_EPOCH_US), lsn=end_lsn)


def origin(lsn: int, name: str) -> bytes:
    return frame(b"O" + struct.pack(">Q", lsn) + name.encode() + b"\0")


def relation(
    oid: int,
    name: str,
    columns: Sequence[tuple[str, int, int, bool]],
    *,
    schema: str = "public",
    identity: str = "d",
    xid: int | None = None,
) -> bytes:
    """`columns` are (name, type oid, typmod, identity)."""
    body = (
        struct.pack(">I", oid)
        + schema.encode()
        + b"\0"
        + name.encode()
        + b"\0"
        + identity.encode()
        + struct.pack(">H", len(columns))
    )
    for column, type_oid, typmod, key in columns:
        body += struct.pack(">B", key) + column.encode() + b"\0" + struct.pack(">Ii", type_oid, typmod)
    return frame(b"R" + _xid(xid) + body)


def tuple_data(values: Sequence[Value]) -> bytes:
    body = struct.pack(">H", len(values))
    for value in values:
        if value is None:
            body += b"n"
        elif value is UNCHANGED:
            body += b"u"
        else:
            text = value.encode() if isinstance(value, str) else value
            body += b"t" + struct.pack(">i", len(text)) + text
    return body


def insert(oid: int, values: Sequence[Value], *, lsn: int = 0, xid: int | None = None) -> bytes:
    return frame(b"I" + _xid(xid) + struct.pack(">I", oid) + b"N" + tuple_data(values), lsn=lsn)


def update(
    oid: int,
    values: Sequence[Value],
    *,
    old: Sequence[Value] | None = None,
    kind: bytes = b"K",
    lsn: int = 0,
    xid: int | None = None,
) -> bytes:
    before = b"" if old is None else kind + tuple_data(old)
    return frame(b"U" + _xid(xid) + struct.pack(">I", oid) + before + b"N" + tuple_data(values), lsn=lsn)


def delete(oid: int, old: Sequence[Value], *, kind: bytes = b"K", lsn: int = 0, xid: int | None = None) -> bytes:
    return frame(b"D" + _xid(xid) + struct.pack(">I", oid) + kind + tuple_data(old), lsn=lsn)


def truncate(oids: Sequence[int], *, flags: int = 0, xid: int | None = None) -> bytes:
    return frame(
        b"T" + _xid(xid) + struct.pack(">iB", len(oids), flags) + b"".join(struct.pack(">I", oid) for oid in oids)
    )


def message(prefix: str, content: bytes, *, lsn: int, transactional: bool, xid: int | None = None) -> bytes:
    return frame(
        b"M"
        + _xid(xid)
        + struct.pack(">BQ", transactional, lsn)
        + prefix.encode()
        + b"\0"
        + struct.pack(">i", len(content))
        + content,
        lsn=lsn,
    )


def stream_start(xid: int, *, first: bool) -> bytes:
    return frame(b"S" + struct.pack(">IB", xid, first))


def stream_stop() -> bytes:
    return frame(b"E")


def stream_commit(xid: int, commit_lsn: int, end_lsn: int, *, time_us: int = POSTGRES_EPOCH_US) -> bytes:
    return frame(b"c" + struct.pack(">IBQQq", xid, 0, commit_lsn, end_lsn, time_us - POSTGRES_EPOCH_US), lsn=end_lsn)


def stream_abort(xid: int, subxid: int, *, lsn: int | None = None) -> bytes:
    tail = b"" if lsn is None else struct.pack(">Qq", lsn, 0)
    return frame(b"A" + struct.pack(">II", xid, subxid) + tail)


def begin_prepare(prepare_lsn: int, end_lsn: int, xid: int, gid: str, *, time_us: int = POSTGRES_EPOCH_US) -> bytes:
    return frame(
        b"b" + struct.pack(">QQqI", prepare_lsn, end_lsn, time_us - POSTGRES_EPOCH_US, xid) + gid.encode() + b"\0"
    )


def prepare(
    prepare_lsn: int, end_lsn: int, xid: int, gid: str, *, streamed: bool = False, time_us: int = POSTGRES_EPOCH_US
) -> bytes:
    tag = b"p\0" if streamed else b"P\0"
    return frame(
        tag + struct.pack(">QQqI", prepare_lsn, end_lsn, time_us - POSTGRES_EPOCH_US, xid) + gid.encode() + b"\0"
    )


def commit_prepared(commit_lsn: int, end_lsn: int, xid: int, gid: str, *, time_us: int = POSTGRES_EPOCH_US) -> bytes:
    return frame(
        b"K\0" + struct.pack(">QQqI", commit_lsn, end_lsn, time_us - POSTGRES_EPOCH_US, xid) + gid.encode() + b"\0"
    )


def rollback_prepared(prepare_end_lsn: int, rollback_end_lsn: int, xid: int, gid: str) -> bytes:
    return frame(b"r\0" + struct.pack(">QQqqI", prepare_end_lsn, rollback_end_lsn, 0, 0, xid) + gid.encode() + b"\0")


def _xid(xid: int | None) -> bytes:
    return b"" if xid is None else struct.pack(">I", xid)

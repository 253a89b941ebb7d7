"""Frames with the usual values: messages of `pgoutput_bytes` inside XLogData. Times count from 1970."""

from collections.abc import Sequence

from tests.support import pgoutput_bytes as b

Value = str | bytes | None
EPOCH_US = 946_684_800_000_000
"""2000-01-01 UTC in microseconds since 1970."""


def frame(payload: bytes, *, lsn: int = 0) -> bytes:
    return b.xlogdata(payload, lsn=lsn)


def keepalive(end_lsn: int, *, reply: bool = False) -> bytes:
    return b.keepalive(end_lsn, reply=int(reply))


def begin(final_lsn: int, xid: int, *, time_us: int = EPOCH_US) -> bytes:
    return frame(b.begin(final_lsn, time_us - EPOCH_US, xid), lsn=final_lsn)


def commit(commit_lsn: int, end_lsn: int, *, time_us: int = EPOCH_US) -> bytes:
    return frame(b.commit(commit_lsn, end_lsn, time_us - EPOCH_US), lsn=end_lsn)


def origin(lsn: int, name: str) -> bytes:
    return frame(b.origin(lsn, name))


def relation(
    oid: int,
    name: str,
    columns: Sequence[tuple[str, int, int, bool]],
    *,
    identity: str = "d",
    xid: int | None = None,
) -> bytes:
    """`columns` are (name, type oid, typmod, identity)."""
    described = [(int(key), column, type_oid, typmod) for column, type_oid, typmod, key in columns]
    return frame(b.relation(oid, "public", name, described, identity=identity.encode(), xid=xid))


def type_name(oid: int, name: str, *, xid: int | None = None) -> bytes:
    return frame(b.type_name(oid, "public", name, xid=xid))


def insert(oid: int, values: Sequence[Value], *, xid: int | None = None) -> bytes:
    return frame(b.insert(oid, _fields(values), xid=xid))


def update(oid: int, values: Sequence[Value], *, old: Sequence[Value] | None = None, xid: int | None = None) -> bytes:
    before = None if old is None else _fields(old)
    return frame(b.update(oid, _fields(values), old=before, xid=xid))


def delete(oid: int, old: Sequence[Value], *, xid: int | None = None) -> bytes:
    return frame(b.delete(oid, _fields(old), xid=xid))


def truncate(oids: Sequence[int], *, flags: int = 0, xid: int | None = None) -> bytes:
    return frame(b.truncate(oids, flags=flags, xid=xid))


def message(prefix: str, content: bytes, *, lsn: int, transactional: bool, xid: int | None = None) -> bytes:
    return frame(b.message(lsn, prefix, content, flags=int(transactional), xid=xid), lsn=lsn)


def stream_start(xid: int, *, first: bool) -> bytes:
    return frame(b.stream_start(xid, first=int(first)))


def stream_stop() -> bytes:
    return frame(b.stream_stop())


def stream_commit(xid: int, commit_lsn: int, end_lsn: int, *, time_us: int = EPOCH_US) -> bytes:
    return frame(b.stream_commit(xid, commit_lsn, end_lsn, time_us - EPOCH_US), lsn=end_lsn)


def stream_abort(xid: int, subxid: int, *, lsn: int | None = None) -> bytes:
    return frame(b.stream_abort(xid, subxid, at=None if lsn is None else (lsn, 0)))


def begin_prepare(prepare_lsn: int, end_lsn: int, xid: int, gid: str) -> bytes:
    return frame(b.begin_prepare(prepare_lsn, end_lsn, 0, xid, gid))


def prepare(prepare_lsn: int, end_lsn: int, xid: int, gid: str, *, streamed: bool = False) -> bytes:
    return frame(b.prepare(prepare_lsn, end_lsn, 0, xid, gid, tag=b"p" if streamed else b"P"))


def commit_prepared(commit_lsn: int, end_lsn: int, xid: int, gid: str) -> bytes:
    return frame(b.prepare(commit_lsn, end_lsn, 0, xid, gid, tag=b"K"))


def rollback_prepared(prepare_end_lsn: int, rollback_end_lsn: int, xid: int, gid: str) -> bytes:
    return frame(b.rollback_prepared(prepare_end_lsn, rollback_end_lsn, 0, 0, xid, gid))


def _fields(values: Sequence[Value]) -> list[b.Field]:
    return [value.encode() if isinstance(value, str) else value for value in values]

"""Replication bytes field by field, for tests of the decoder: written from the specification,
sharing nothing with it, and able to build what no server sends.

A tuple's field is None for NULL, UNCHANGED for a value that was not sent, bytes for text,
Binary(bytes) for binary. Times count from 2000. (PostgreSQL: Logical Replication Message Formats;
Streaming Replication Protocol; COPY, Binary Format.)
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_TRAILER = b"\xff\xff"


class Unsent(Enum):
    UNCHANGED = "u"


UNCHANGED = Unsent.UNCHANGED


@dataclass(frozen=True)
class Binary:
    content: bytes


Field = bytes | Binary | Unsent | None
Tuple = Sequence[Field]


u8, u16, u32, u64 = (struct.Struct(form).pack for form in (">B", ">H", ">I", ">Q"))
i32, i64 = struct.Struct(">i").pack, struct.Struct(">q").pack


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def xlogdata(message: bytes, *, lsn: int = 0x1_0000_0010, sent: int = 0) -> bytes:
    return b"w" + u64(lsn) + u64(lsn) + i64(sent) + message


def keepalive(end_lsn: int, sent: int = 0, *, reply: int = 0) -> bytes:
    return b"k" + u64(end_lsn) + i64(sent) + u8(reply)


def prefix(xid: int | None) -> bytes:
    return b"" if xid is None else u32(xid)


def field(value: Field) -> bytes:
    if value is None:
        return b"n"
    if isinstance(value, Unsent):
        return b"u"
    if isinstance(value, Binary):
        return b"b" + i32(len(value.content)) + value.content
    return b"t" + i32(len(value)) + value


def tuple_data(fields: Tuple) -> bytes:
    return u16(len(fields)) + b"".join(map(field, fields))


def insert(oid: int, new: Tuple, *, xid: int | None = None) -> bytes:
    return b"I" + prefix(xid) + u32(oid) + b"N" + tuple_data(new)


def update(oid: int, new: Tuple, *, old: Tuple | None = None, marker: bytes = b"K", xid: int | None = None) -> bytes:
    before = b"" if old is None else marker + tuple_data(old)
    return b"U" + prefix(xid) + u32(oid) + before + b"N" + tuple_data(new)


def delete(oid: int, old: Tuple, *, marker: bytes = b"K", xid: int | None = None) -> bytes:
    return b"D" + prefix(xid) + u32(oid) + marker + tuple_data(old)


def begin(final_lsn: int, time: int, xid: int) -> bytes:
    return b"B" + u64(final_lsn) + i64(time) + u32(xid)


def commit(commit_lsn: int, end_lsn: int, time: int, *, flags: int = 0) -> bytes:
    return b"C" + u8(flags) + u64(commit_lsn) + u64(end_lsn) + i64(time)


def origin(lsn: int, name: str) -> bytes:
    return b"O" + u64(lsn) + text(name)


def relation(
    oid: int,
    schema: str,
    name: str,
    columns: Sequence[tuple[int, str, int, int]],
    *,
    identity: bytes = b"d",
    xid: int | None = None,
) -> bytes:
    """`columns` are (flags, name, type oid, typmod)."""
    described = b"".join(
        u8(flags) + text(column) + u32(type_oid) + i32(typmod) for flags, column, type_oid, typmod in columns
    )
    return b"R" + prefix(xid) + u32(oid) + text(schema) + text(name) + identity + u16(len(columns)) + described


def type_name(oid: int, schema: str, name: str, *, xid: int | None = None) -> bytes:
    return b"Y" + prefix(xid) + u32(oid) + text(schema) + text(name)


def truncate(oids: Sequence[int], *, flags: int = 0, xid: int | None = None) -> bytes:
    return b"T" + prefix(xid) + i32(len(oids)) + u8(flags) + b"".join(map(u32, oids))


def message(lsn: int, prefix_text: str, content: bytes, *, flags: int = 0, xid: int | None = None) -> bytes:
    return b"M" + prefix(xid) + u8(flags) + u64(lsn) + text(prefix_text) + i32(len(content)) + content


def stream_start(xid: int, *, first: int = 1) -> bytes:
    return b"S" + u32(xid) + u8(first)


def stream_stop() -> bytes:
    return b"E"


def stream_commit(xid: int, commit_lsn: int, end_lsn: int, time: int, *, flags: int = 0) -> bytes:
    return b"c" + u32(xid) + u8(flags) + u64(commit_lsn) + u64(end_lsn) + i64(time)


def stream_abort(xid: int, subxid: int, *, at: tuple[int, int] | None = None) -> bytes:
    """`at` is (LSN, time): the long form."""
    return b"A" + u32(xid) + u32(subxid) + (b"" if at is None else u64(at[0]) + i64(at[1]))


def begin_prepare(prepare_lsn: int, end_lsn: int, time: int, xid: int, gid: str) -> bytes:
    return b"b" + u64(prepare_lsn) + u64(end_lsn) + i64(time) + u32(xid) + text(gid)


def prepare(
    prepare_lsn: int, end_lsn: int, time: int, xid: int, gid: str, *, flags: int = 0, tag: bytes = b"P"
) -> bytes:
    """Prepare; with another `tag` the messages of the same form: K (commit prepared) and p (stream prepare)."""
    return tag + u8(flags) + u64(prepare_lsn) + u64(end_lsn) + i64(time) + u32(xid) + text(gid)


def rollback_prepared(
    prepare_end: int, rollback_end: int, prepared: int, rolled_back: int, xid: int, gid: str, *, flags: int = 0
) -> bytes:
    return b"r" + struct.pack(">BQQqqI", flags, prepare_end, rollback_end, prepared, rolled_back, xid) + text(gid)


def copy_row(fields: Sequence[bytes | None]) -> bytes:
    return u16(len(fields)) + b"".join(i32(-1) if value is None else i32(len(value)) + value for value in fields)

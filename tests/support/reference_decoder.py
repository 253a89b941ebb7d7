"""Messages decoded one by one with struct: slow, plain, and sharing nothing with sluice.protocol,
which is compared with it.

`decode_row` reads one pgoutput row message (no XLogData header) and raises Malformed for anything
that is not exactly an Insert, Update or Delete. `readable` turns a recorded, well-formed stream
into what people can check by eye. (PostgreSQL: Logical Replication Message Formats; Streaming
Replication Protocol.)
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


class Malformed(Exception):
    """Not a row message of that many columns."""


Value = tuple[str, bytes]
"""Kind (n, u, t, b) and content."""


@dataclass(frozen=True)
class ReferenceRow:
    op: str
    xid: int | None
    oid: int
    old_kind: str
    old: tuple[Value, ...] | None
    new: tuple[Value, ...] | None


def decode_row(message: bytes, column_count: int, *, in_stream: bool) -> ReferenceRow:
    try:
        return _row(message, column_count, in_stream=in_stream)
    except (struct.error, IndexError) as error:
        raise Malformed("too short") from error


def _row(message: bytes, column_count: int, *, in_stream: bool) -> ReferenceRow:
    op, xid, at = chr(message[0]), None, 1
    if in_stream:
        (xid,) = struct.unpack_from(">I", message, at)
        at += 4
    (oid,) = struct.unpack_from(">I", message, at)
    at += 4
    old_kind, old, new = "", None, None
    if op in "UD" and message[at] in b"KO":
        old_kind = chr(message[at])
        old, at = _tuple(message, at + 1, column_count)
    if op in "IU":
        if message[at] != ord("N"):
            raise Malformed("no new tuple")
        new, at = _tuple(message, at + 1, column_count)
    if op not in "IUD" or (op == "D" and old is None):
        raise Malformed("not a row message")
    if at != len(message):
        raise Malformed("bytes left over")
    return ReferenceRow(op, xid, oid, old_kind, old, new)


def _tuple(message: bytes, at: int, column_count: int) -> tuple[tuple[Value, ...], int]:
    (count,) = struct.unpack_from(">H", message, at)
    if count != column_count:
        raise Malformed("another number of columns")
    at += 2
    values: list[Value] = []
    for _ in range(count):
        kind = chr(message[at])
        at += 1
        content = b""
        if kind in "tb":
            (length,) = struct.unpack_from(">i", message, at)
            at += 4
            if length < 0 or at + length > len(message):
                raise Malformed("a length outside the message")
            content = message[at : at + length]
            at += length
        elif kind not in "nu":
            raise Malformed("an unknown kind")
        values.append((kind, content))
    return tuple(values), at


_EPOCH_US = 946_684_800_000_000
_PREPARED = "flags:none prepare_lsn:lsn end_lsn:lsn prepare_time_us:time xid:u32 gid:str"
_FORMS: dict[str, tuple[str, str]] = {
    "B": ("Begin", "final_lsn:lsn commit_time_us:time xid:u32"),
    "C": ("Commit", "flags:none commit_lsn:lsn end_lsn:lsn commit_time_us:time"),
    "O": ("Origin", "lsn:lsn name:str"),
    "R": ("Relation", "stream_xid:xid oid:u32 schema:str name:str replica_identity:char columns:columns"),
    "Y": ("TypeName", "stream_xid:xid oid:u32 schema:str name:str"),
    "T": ("Truncate", "stream_xid:xid relations:truncate"),
    "M": ("LogicalMessage", "stream_xid:xid transactional:bool lsn:lsn prefix:str content:bytes"),
    "S": ("StreamStart", "xid:u32 first:bool"),
    "E": ("StreamStop", ""),
    "c": ("StreamCommit", "xid:u32 flags:none commit_lsn:lsn end_lsn:lsn commit_time_us:time"),
    "A": ("StreamAbort", "xid:u32 subxid:u32 abort_lsn:rest-lsn abort_time_us:rest-time"),
    "b": ("BeginPrepare", "prepare_lsn:lsn end_lsn:lsn prepare_time_us:time xid:u32 gid:str"),
    "P": ("Prepare", _PREPARED),
    "K": ("CommitPrepared", _PREPARED.replace("prepare_", "commit_")),
    "r": (
        "RollbackPrepared",
        (
            "flags:none prepare_end_lsn:lsn rollback_end_lsn:lsn prepare_time_us:time "
            "rollback_time_us:time xid:u32 gid:str"
        ),
    ),
    "p": ("StreamPrepare", _PREPARED),
}


def readable(frames: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Each frame as a dictionary; times in microseconds since 1970, a field of a row as [kind] or [kind, text]."""
    in_stream, widths = False, dict[int, int]()
    for frame in frames:
        if frame[:1] == b"k":
            end_lsn, sent, reply = struct.unpack(">QqB", frame[1:])
            yield {
                "message": "Keepalive",
                "end_lsn": end_lsn,
                "sent_time_us": sent + _EPOCH_US,
                "reply_requested": bool(reply),
            }
            continue
        message = frame[25:]
        tag = chr(message[0])
        if tag in "IUD":
            (oid,) = struct.unpack_from(">I", message, 5 if in_stream else 1)
            yield _readable_row(decode_row(message, widths[oid], in_stream=in_stream))
            continue
        found = _Fields(message, in_stream=in_stream).read(tag)
        if tag == "R":
            widths[found["oid"]] = len(found["columns"])
        in_stream = tag == "S" or (in_stream and tag != "E")
        yield found


def _readable_row(row: ReferenceRow) -> dict[str, Any]:
    def shown(values: tuple[Value, ...] | None) -> list[list[str]] | None:
        return (
            None
            if values is None
            else [
                [kind] if kind in "nu" else [kind, content.decode() if kind == "t" else content.hex()]
                for kind, content in values
            ]
        )

    return {
        "message": row.op,
        "oid": row.oid,
        "stream_xid": row.xid,
        "old_kind": row.old_kind,
        "old": shown(row.old),
        "new": shown(row.new),
    }


class _Fields:
    def __init__(self, message: bytes, *, in_stream: bool) -> None:
        self._message, self._at, self._in_stream = message, 1, in_stream

    def read(self, tag: str) -> dict[str, Any]:
        name, form = _FORMS[tag]
        found: dict[str, Any] = {"message": name}
        for part in form.split():
            field, _, kind = part.partition(":")
            value = self._field(kind)
            if kind == "truncate":
                found |= value
            elif kind != "none":
                found[field] = value
        if "schema" in found:
            found["schema"] = found["schema"] or "pg_catalog"
        if self._at != len(self._message):
            raise Malformed(f"{name} has bytes left over")
        return found

    def _take(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self._message, self._at)
        self._at += struct.calcsize(form)
        return value

    def _field(self, kind: str) -> Any:
        if kind in {"rest-lsn", "rest-time"}:
            return self._field(kind.removeprefix("rest-")) if self._at < len(self._message) else None
        match kind:
            case "xid":
                return self._take(">I") if self._in_stream else None
            case "u32":
                return self._take(">I")
            case "lsn":
                return self._take(">Q")
            case "time":
                return self._take(">q") + _EPOCH_US
            case "none":
                return self._take(">B")
            case "bool":
                return self._take(">?")
            case "char":
                return self._take(">c").decode()
            case "str":
                end = self._message.index(b"\0", self._at)
                text, self._at = self._message[self._at : end].decode(), end + 1
                return text
            case "bytes":
                return self._take(f">{self._take('>i')}s").hex()
            case "columns":
                return [self._column() for _ in range(self._take(">H"))]
            case _:
                return self._truncate()

    def _column(self) -> dict[str, Any]:
        identity, name = self._take(">?"), self._field("str")
        return {"name": name, "type_oid": self._take(">I"), "typmod": self._take(">i"), "identity": identity}

    def _truncate(self) -> dict[str, Any]:
        count, flags = self._take(">i"), self._take(">B")
        return {
            "relation_oids": [self._take(">I") for _ in range(count)],
            "cascade": bool(flags & 1),
            "restart_identity": bool(flags & 2),
        }

"""One replication connection of the model: what walsender makes of the log, as bytes.

What it keeps of the real one: transactions come whole and in the order of their commit records, or in blocks while
they are open; changes of rolled-back subtransactions do not come, unless they were sent before; what ended before
the position at which the connection began does not come; a relation is announced before its first row on the
connection, and again after each command that was about it, once the log has come to it, and once more behind the
transaction of that command. What was announced in a block counts for its own transaction until that commits.
(PostgreSQL: pgoutput, get_rel_sync_entry, maybe_send_schema, cleanup_rel_sync_cache; reorderbuffer,
ReorderBufferProcessTXN.)
"""

import json
from dataclasses import dataclass, field

from sluice.protocol.messages import DDL_SIGNAL
from tests.simulation.catalog import KEY, Row, Table, value_of
from tests.simulation.server import Record, Server, is_large
from tests.support import pgoutput_bytes as b
from tests.support import wire


@dataclass(slots=True)
class _Announced:
    """Whether the relation was announced for transactions that come whole, and in blocks of which ones."""

    plain: bool = False
    blocks: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Decoded:
    """A transaction as far as the log was read."""

    changes: list[Record] = field(default_factory=list)
    streamed: bool = False
    streamed_subxids: set[int] = field(default_factory=set)
    reshaped: set[int] = field(default_factory=set)


class Walsender:
    """Sends what ended after `start_lsn`. `take` gives the frames that were made since the last call."""

    def __init__(self, server: Server, start_lsn: int, *, streaming: bool, two_phase: bool) -> None:
        self._server = server
        self._start_lsn = start_lsn
        self._streaming = streaming
        self._two_phase = two_phase
        self._at = _first_needed(server, start_lsn)
        self._read_lsn = server.log[self._at].lsn if self._at < len(server.log) else server.now
        self._open: dict[int, _Decoded] = {}
        self._announced: dict[int, _Announced] = {}
        self._frames: list[bytes] = []
        self.sent_lsn = start_lsn

    @property
    def behind(self) -> bool:
        """Whether the log goes on."""
        return self._at < len(self._server.log)

    @property
    def has_sent(self) -> bool:
        """Whether there is something to take."""
        return bool(self._frames)

    def take(self) -> list[bytes]:
        frames, self._frames = self._frames, []
        return frames

    def keepalive(self) -> None:
        self.sent_lsn = max(self.sent_lsn, self._read_lsn)
        self._frames.append(wire.keepalive(self.sent_lsn))

    def forget(self) -> None:
        """Every relation is announced again: the server's cache was emptied for another reason."""
        self._announced.clear()

    def step(self, *, stream: bool) -> None:
        """Reads one record; with `stream` its transaction is larger than the memory allows."""
        record = self._server.log[self._at]
        self._at += 1
        self._read_lsn = record.end_lsn
        one = self._open.setdefault(record.xid, _Decoded())
        match record.kind:
            case "row" | "truncate" | "shape" | "message":
                one.changes.append(record)
                if stream and self._streaming and record.lsn >= self._start_lsn and record.kind != "shape":
                    self._block(record.xid, one)
            case "subabort":
                gone = set(record.xids)
                # A message of a savepoint is no change of a row, and goes with it all the same.
                one.changes = [change for change in one.changes if change.subxid not in gone or change.kind == "shape"]
                self._abort_in_block(record, one, gone)
            case "prepare":
                self._prepare(record, one)
            case "commit" | "commit_prepared":
                self._commit(record, one)
            case "abort" | "rollback_prepared":
                self._abort(record, one)

    def _commit(self, record: Record, one: _Decoded) -> None:
        del self._open[record.xid]
        if record.lsn < self._start_lsn:
            self._invalidate(one)
            return
        if record.kind == "commit_prepared" and self._two_phase:
            self._frames.append(wire.commit_prepared(record.lsn, record.end_lsn, record.xid, record.gid))
        elif one.streamed:
            self._block(record.xid, one)
            self._frames.append(
                wire.stream_commit(record.xid, record.lsn, record.end_lsn, time_us=time_of(record.end_lsn))
            )
            self._settle(record.xid, committed=True)
        else:
            before = len(self._frames)
            self._changes(one, 0)
            if len(self._frames) > before:
                self._frames.insert(before, wire.begin(record.lsn, record.xid, time_us=time_of(record.end_lsn)))
                self._frames.append(wire.commit(record.lsn, record.end_lsn, time_us=time_of(record.end_lsn)))
        self.sent_lsn = record.end_lsn
        self._invalidate(one)

    def _abort(self, record: Record, one: _Decoded) -> None:
        del self._open[record.xid]
        if record.kind == "rollback_prepared" and self._two_phase:
            if record.lsn >= self._start_lsn:
                self._frames.append(wire.rollback_prepared(_prepared(self._server, record), record.end_lsn, record.xid,
                                                           record.gid))  # fmt: skip
                self.sent_lsn = record.end_lsn
        elif one.streamed:
            self._frames.append(wire.stream_abort(record.xid, record.xid))
            self._settle(record.xid, committed=False)
        self._invalidate(one)

    def _abort_in_block(self, record: Record, one: _Decoded, gone: set[int]) -> None:
        for subxid in sorted(gone & one.streamed_subxids):
            self._frames.append(wire.stream_abort(record.xid, subxid))
            # What was announced in the blocks of the transaction is forgotten with it.
            self._settle(record.xid, committed=False)

    def _prepare(self, record: Record, one: _Decoded) -> None:
        if not self._two_phase:
            return
        if record.lsn >= self._start_lsn:
            if one.streamed:
                if one.changes:
                    self._block(record.xid, one)
            else:
                self._frames.append(wire.begin_prepare(record.lsn, record.end_lsn, record.xid, record.gid))
                self._changes(one, 0)
            self._frames.append(wire.prepare(record.lsn, record.end_lsn, record.xid, record.gid, streamed=one.streamed))
            self.sent_lsn = record.end_lsn
        one.changes.clear()
        self._invalidate(one)

    def _block(self, xid: int, one: _Decoded) -> None:
        self._frames.append(wire.stream_start(xid, first=not one.streamed))
        one.streamed = True
        one.streamed_subxids |= {change.subxid for change in one.changes}
        self._changes(one, xid)
        self._frames.append(wire.stream_stop())
        self._invalidate(one)

    def _changes(self, one: _Decoded, block_xid: int) -> None:
        for change in one.changes:
            if change.kind == "shape":
                assert change.table is not None
                one.reshaped.add(change.table.oid)
                self._forget(change.table.oid)
                continue
            xid = change.subxid if block_xid else None
            if change.kind == "message":
                assert change.table is not None
                oid, own = change.table.oid, [one for one in change.table.columns if one.xmin >= change.xid]
                left = [
                    ["table", oid, "p", change.table.identity],
                    *(["column", oid, one.attnum, one.type_oid, one.typmod] for one in own),
                ]
                self._frames.append(
                    wire.message(DDL_SIGNAL, json.dumps({"left": left}).encode(), lsn=change.lsn, transactional=True,
                                 xid=block_xid or None)
                )  # fmt: skip
                continue
            if change.kind == "truncate":
                sent = [table for table in change.tables if table.membership]
                for table in sent:
                    self._announce(table, block_xid, xid)
                if sent:
                    self._frames.append(wire.truncate([table.oid for table in sent], xid=xid))
            elif change.table is not None and change.table.membership:
                self._announce(change.table, block_xid, xid)
                self._frames.append(_row(change, change.table, xid))
        one.changes = []

    def _announce(self, table: Table, block_xid: int, xid: int | None) -> None:
        known = self._announced.setdefault(table.oid, _Announced())
        if block_xid in known.blocks if block_xid else known.plain:
            return
        columns = [(column.name, column.type_oid, column.typmod, table.identifies(column)) for column in table.columns]
        self._frames.append(wire.relation(table.oid, table.name, columns, identity=table.identity, xid=xid))
        if block_xid:
            known.blocks.add(block_xid)
        else:
            known.plain = True

    def _forget(self, oid: int) -> None:
        self._announced.pop(oid, None)

    def _invalidate(self, one: _Decoded) -> None:
        """What the transaction did to the catalog is known from here on, whatever became of it."""
        for oid in one.reshaped | {
            change.table.oid for change in one.changes if change.kind == "shape" and change.table
        }:
            self._forget(oid)

    def _settle(self, xid: int, *, committed: bool) -> None:
        for known in self._announced.values():
            if xid in known.blocks:
                known.plain = known.plain or committed
                known.blocks.discard(xid)


def time_of(lsn: int) -> int:
    """The commit time of a transaction that ended at `lsn`."""
    return wire.EPOCH_US + lsn


def _first_needed(server: Server, start_lsn: int) -> int:
    """Where in the log the first record of a transaction is that ended at or after `start_lsn`."""
    ended = {
        record.xid
        for record in server.log
        if record.kind in ("commit", "abort", "commit_prepared", "rollback_prepared") and record.lsn < start_lsn
    }
    return next((at for at, record in enumerate(server.log) if record.xid not in ended), len(server.log))


def _prepared(server: Server, end: Record) -> int:
    return next(one.end_lsn for one in server.log if one.kind == "prepare" and one.xid == end.xid)


def _row(change: Record, table: Table, xid: int | None) -> bytes:
    old, new = change.old, change.new
    if new is None:
        assert old is not None
        kind, values = _old(table, old)
        return wire.frame(b.delete(table.oid, values, marker=kind, xid=xid), lsn=change.lsn)
    fields = [_sent(column_value, unchanged) for column_value, unchanged in _values(table, old, new)]
    if old is None:
        return wire.frame(b.insert(table.oid, fields, xid=xid), lsn=change.lsn)
    kind, before = _old(table, old)
    sends_old = table.identity == "f" or (table.identity == "d" and old[KEY] != new[KEY])
    return wire.frame(
        b.update(table.oid, fields, old=before if sends_old else None, marker=kind, xid=xid), lsn=change.lsn
    )


def _values(table: Table, old: Row | None, new: Row) -> list[tuple[str | None, bool]]:
    """Each value, and whether it is stored out of line and not changed."""
    found = []
    for column in table.columns:
        value = value_of(new, column)
        found.append((value, old is not None and is_large(value) and value_of(old, column) == value))
    return found


def _sent(value: str | None, unchanged: bool) -> b.Field:
    return b.UNCHANGED if unchanged else None if value is None else value.encode()


def _old(table: Table, row: Row) -> tuple[bytes, list[b.Field]]:
    """The old row: all of it, or its key with NULL in all other columns."""
    whole = table.identity == "f"
    values = [value_of(row, column) if whole or column.attnum == KEY else None for column in table.columns]
    return (b"O" if whole else b"K"), [None if value is None else value.encode() for value in values]

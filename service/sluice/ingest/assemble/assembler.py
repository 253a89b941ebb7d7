"""Messages to transactions: a state machine over batches of frames.

Invariants: every row goes to exactly one transaction and to the relation version in force when it
arrived; a transaction is handed over as permanent only when its commit was read; `through_lsn` only
moves at the end of a transaction or at a keepalive between transactions. State lives in this object
and dies with the connection: after a reconnect the server begins again, and so does a new
Assembler.

It must not look at values, read a clock or do I/O. Transitions:

    message            allowed in            leads to
    Begin              between               transaction
    Commit             transaction           between
    BeginPrepare       between               transaction
    Prepare            transaction           between    keeps its body for CommitPrepared
    rows, Truncate     transaction, stream   same
    StreamStart        between               stream
    StreamStop         stream                between
    StreamCommit       between               between    publishes the stream's body
    StreamPrepare      between               between    keeps the stream's body for CommitPrepared
    StreamAbort        between               between    drops it, or one subtransaction of it
    CommitPrepared     between               between    publishes what was prepared, in this session or before
    RollbackPrepared   between               between    drops it; one never heard of was prepared before the slot
    Origin             transaction, stream   same       once, before any row
    Relation, TypeName anywhere              same
    LogicalMessage     anywhere              same       one outside transactions moves through_lsn
    Keepalive          anywhere              same       moves through_lsn except inside a transaction

(PostgreSQL: Logical Streaming Replication Protocol.)
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sluice.contract.entries import Commits, Prepared
from sluice.contract.xids import NO_XIDS, XidIntervals
from sluice.errors import LimitReached, ProtocolViolation
from sluice.ingest.assemble.aborted import AbortedXids
from sluice.ingest.assemble.assembly import (
    Assembly,
    Discarded,
    Ending,
    MessageRun,
    PreparedBody,
    PreparedCommitted,
    PreparedRolledBack,
    Published,
    RowRun,
    TruncateRun,
)
from sluice.ingest.assemble.sizes import SizeBook
from sluice.lsn import show
from sluice.protocol.boundaries import begins, commit_ends
from sluice.protocol.constants import BEGIN, COMMIT
from sluice.protocol.decoder import decode_control
from sluice.protocol.frames import FrameTable, control_positions, relation_oids, stream_xids
from sluice.protocol.messages import (
    BeginPrepare,
    CommitPrepared,
    Keepalive,
    LogicalMessage,
    Origin,
    Prepare,
    Relation,
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

_NO_BODY = -1
_UNKNOWN_LSN = -1
_DROPPED_LSN = -2


@dataclass(slots=True)
class _Open:
    """A transaction whose end has not been read. `body` is set once its rows outlive a batch;
    `position_lsn` is where its commit record begins (of a stream: what had been seen when it
    began).

    `gid` is None unless it will end with Prepare.
    """

    xid: int
    position_lsn: int
    commit_time_us: int
    body: int = _NO_BODY
    ordinal: int = 0
    origin: tuple[str, int] | None = None
    aborted: AbortedXids | None = None
    doubt_until: int = 0
    gid: str | None = None

    @property
    def aborted_xids(self) -> XidIntervals:
        return NO_XIDS if self.aborted is None else self.aborted.intervals()


@dataclass(frozen=True, slots=True)
class AssemblerLimits:
    """What streamed transactions that have not ended may take up here, all of them together."""

    open_streams: int = 4096
    aborted_intervals: int = 1_000_000


DEFAULT_LIMITS = AssemblerLimits()


def _every(_prefix: str) -> bool:
    return True


@dataclass(slots=True)
class _Draft:
    """One batch while it is being sorted out: parallel lists that become arrays at the end."""

    slot_xid: list[int] = field(default_factory=list)
    slot_position: list[int] = field(default_factory=list)
    slot_lsn: list[int] = field(default_factory=list)
    slot_time: list[int] = field(default_factory=list)
    slot_body: list[int] = field(default_factory=list)
    slot_stream: list[bool] = field(default_factory=list)
    slot_undecided: list[bool] = field(default_factory=list)
    piece_slot: list[int] = field(default_factory=list)
    piece_rows: list[int] = field(default_factory=list)
    piece_ordinal: list[int] = field(default_factory=list)
    shape_changes: list[tuple[int, int]] = field(default_factory=list)
    truncates: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(slot, ordinal, shape, xid); in a stream the xid is the subtransaction's, whose rollback
    undoes the truncate alone.
    """
    messages: list[tuple[int, int, LogicalMessage]] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    end_lsn: list[int] = field(default_factory=list)
    end_time: list[int] = field(default_factory=list)
    end_xid: list[int] = field(default_factory=list)
    origins: dict[int, tuple[str, int]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1


class Assembler:
    """One connection's transactions.

    `start_lsn` is where streaming began: what committed at or before it is already durable and is
    dropped. `prepared` are the transactions whose rows are durable already and whose end is still
    to come. `keeps_message` says by its prefix whether a logical message is wanted; of others
    nothing is kept but their position.
    """

    def __init__(
        self,
        *,
        start_lsn: int,
        prepared: Iterable[Prepared] = (),
        limits: AssemblerLimits = DEFAULT_LIMITS,
        keeps_message: Callable[[str], bool] = _every,
    ) -> None:
        self.through_lsn = start_lsn
        self._limits = limits
        self._keeps_message = keeps_message
        self._start_lsn = start_lsn
        self._relations: dict[int, RelationVersion] = {}
        self._shapes: dict[int, int] = {}
        self._versions: list[RelationVersion] = []
        self.type_names: dict[int, TypeName] = {}
        self._transaction: _Open | None = None
        self._stream: _Open | None = None
        self._streams: dict[int, _Open] = {}
        self._prepared = {one.gid: one for one in prepared}
        self._slot = _NO_BODY
        self._bodies = 0
        self._sizes = SizeBook()
        self._draft = _Draft()

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    @property
    def in_transaction(self) -> bool:
        """Whether the last batch ended inside an ordinary transaction or a stream block."""
        return self._transaction is not None or self._stream is not None

    def feed(self, table: FrameTable) -> Assembly:
        """Takes the next frames. Raises DecodeError, ProtocolViolation or LimitReached, after which
        this object must not be used again.
        """
        draft = self._draft = _Draft()
        initial_shapes = dict(self._shapes)
        if self._transaction is not None:
            self._open_slot(self._transaction, in_stream=False)
        elif self._stream is not None:
            self._open_slot(self._stream, in_stream=True)
        self._read_controls(table)
        if self._transaction is not None:
            self._carry(self._transaction)
        arrays = _Arrays(draft)
        assembly = Assembly(
            table=table,
            runs=_runs(table, draft, initial_shapes, self._versions, arrays),
            truncates=[
                _truncate(draft, self._versions, *item)
                for item in draft.truncates
                if draft.slot_lsn[item[0]] != _DROPPED_LSN
            ],
            messages=[run for item in draft.messages if (run := self._message(draft, *item))],
            endings=draft.endings,
            commits=Commits(draft.end_lsn, draft.end_time, draft.end_xid, draft.origins),
            through_lsn=self.through_lsn,
            counts=draft.counts,
            sizes=self._sizes.take(
                table,
                piece_slot=arrays.piece_slot,
                piece_rows=arrays.piece_rows,
                slot_body=arrays.slot_body,
                slot_kept=arrays.slot_lsn != _DROPPED_LSN,
                endings=draft.endings,
            ),
        )
        self._draft = _Draft()
        return assembly

    def _read_controls(self, table: FrameTable) -> None:
        controls = control_positions(table)
        tags = table.tag[controls]
        starts = begins(table, controls[tags == BEGIN])
        ends = commit_ends(table, controls[tags == COMMIT])
        next_begin = next_commit = cursor = 0
        for position, tag in zip(controls.tolist(), tags.tolist(), strict=True):
            if position != cursor:
                self._rows(position - cursor)
            cursor = position + 1
            if tag == BEGIN:
                self._begin(starts.final_lsn[next_begin], starts.commit_time_us[next_begin], starts.xid[next_begin])
                next_begin += 1
            elif tag == COMMIT:
                self._commit(ends.commit_lsn[next_commit], ends.end_lsn[next_commit], ends.commit_time_us[next_commit])
                next_commit += 1
            else:
                message = decode_control(table, position, in_stream=self._stream is not None)
                self._HANDLERS[type(message)](self, message, position)
        if len(table) != cursor:
            self._rows(len(table) - cursor)

    # rows and slots

    def _open_slot(self, owner: _Open, *, in_stream: bool) -> None:
        draft = self._draft
        self._slot = len(draft.slot_xid)
        draft.slot_xid.append(owner.xid)
        draft.slot_position.append(owner.position_lsn)
        draft.slot_lsn.append(_UNKNOWN_LSN)
        draft.slot_time.append(0)
        draft.slot_body.append(owner.body)
        draft.slot_stream.append(in_stream)
        draft.slot_undecided.append(in_stream or owner.gid is not None)

    def _owner(self) -> _Open:
        owner = self._transaction or self._stream
        if owner is None:
            raise ProtocolViolation("a row came outside any transaction")
        return owner

    def _rows(self, row_count: int) -> None:
        owner = self._owner()
        draft = self._draft
        draft.piece_slot.append(self._slot)
        draft.piece_rows.append(row_count)
        draft.piece_ordinal.append(owner.ordinal)
        owner.ordinal += row_count

    def _carry(self, owner: _Open) -> None:
        if owner.body == _NO_BODY:
            owner.body = self._new_body()
        self._draft.slot_body[self._slot] = owner.body

    def _new_body(self) -> int:
        self._bodies += 1
        return self._bodies

    # ordinary transactions

    def _begin(self, final_lsn: int, commit_time_us: int, xid: int) -> None:
        if self._transaction is not None or self._stream is not None:
            raise ProtocolViolation(f"Begin at {show(final_lsn)} came inside another transaction")
        self._transaction = _Open(xid, final_lsn, commit_time_us)
        self._open_slot(self._transaction, in_stream=False)

    def _commit(self, commit_lsn: int, end_lsn: int, commit_time_us: int) -> None:
        owner = self._transaction
        if owner is None or owner.gid is not None:
            raise ProtocolViolation(f"Commit at {show(commit_lsn)} came without Begin")
        if commit_lsn != owner.position_lsn or end_lsn <= commit_lsn:
            raise ProtocolViolation(
                f"Commit at {show(commit_lsn)} does not belong to the Begin for {show(owner.position_lsn)}"
            )
        draft = self._draft
        self._transaction = None
        if end_lsn <= self._start_lsn:
            draft.slot_lsn[self._slot] = _DROPPED_LSN
            draft.count("skipped")
            if owner.body != _NO_BODY:
                draft.endings.append(Discarded(owner.body))
            return
        draft.slot_lsn[self._slot] = end_lsn
        draft.slot_time[self._slot] = commit_time_us
        if owner.body != _NO_BODY:
            draft.endings.append(Published(owner.body, commit_lsn, end_lsn, commit_time_us, owner.xid))
        self._ended(owner, end_lsn, commit_time_us)

    def _ended(self, owner: _Open, end_lsn: int, commit_time_us: int) -> None:
        if end_lsn <= self.through_lsn:
            raise ProtocolViolation(f"the commit that ended at {show(end_lsn)} came after {show(self.through_lsn)}")
        self.through_lsn = end_lsn
        if owner.ordinal:
            self._committed(end_lsn, commit_time_us, owner.xid, owner.origin)

    def _committed(self, end_lsn: int, commit_time_us: int, xid: int, origin: tuple[str, int] | None) -> None:
        draft = self._draft
        if origin is not None:
            draft.origins[len(draft.end_lsn)] = origin
        draft.end_lsn.append(end_lsn)
        draft.end_time.append(commit_time_us)
        draft.end_xid.append(xid)

    # streams

    def _stream_start(self, message: StreamStart, _position: int) -> None:
        if self._transaction is not None or self._stream is not None:
            raise ProtocolViolation(f"a stream block of transaction {message.xid} began inside another transaction")
        known = self._streams.get(message.xid)
        if message.first == (known is not None):
            raise ProtocolViolation(
                f"a stream block of transaction {message.xid} is {'its first again' if known else 'not its first'}"
            )
        if known is None and len(self._streams) >= self._limits.open_streams:
            raise LimitReached(
                f"{self._limits.open_streams} streamed transactions are open (limits.open_streams), "
                f"and transaction {message.xid} would be one more",
                hint="raise the limit, or end old transactions at the source (pg_stat_activity, "
                "xact_start); nothing is lost, it is all sent again",
            )
        owner = known or _Open(message.xid, self.through_lsn, 0, self._new_body())
        self._streams[message.xid] = self._stream = owner
        self._open_slot(owner, in_stream=True)

    def _stream_stop(self, _message: StreamStop, _position: int) -> None:
        if self._stream is None:
            raise ProtocolViolation("a stream block ended that had not begun")
        self._stream = None

    def _stream_commit(self, message: StreamCommit, _position: int) -> None:
        owner = self._streams.get(message.xid)
        if owner is None or self.in_transaction:
            raise ProtocolViolation(
                f"the commit of stream {message.xid} came {'inside a transaction' if owner else 'without its rows'}"
            )
        del self._streams[message.xid]
        if message.end_lsn <= self._start_lsn:
            self._draft.count("skipped")
            self._draft.endings.append(Discarded(owner.body))
            return
        ended = Published(
            owner.body,
            message.commit_lsn,
            message.end_lsn,
            message.commit_time_us,
            owner.xid,
            owner.aborted_xids,
            owner.doubt_until,
        )
        self._draft.endings.append(ended)
        self._ended(owner, message.end_lsn, message.commit_time_us)

    def _stream_abort(self, message: StreamAbort, _position: int) -> None:
        if self.in_transaction:
            raise ProtocolViolation(f"the abort of stream {message.xid} came inside a transaction")
        owner = self._streams.get(message.xid)
        if owner is None:
            self._draft.count("unknown_aborts")
        elif message.subxid == message.xid:
            del self._streams[message.xid]
            self._draft.endings.append(Discarded(owner.body))
            self._draft.count("aborted")
        else:
            owner.doubt_until = owner.ordinal
            if owner.aborted is None:
                owner.aborted = AbortedXids()
            if owner.aborted.add(message.subxid):
                self._check_aborted(owner)

    def _check_aborted(self, owner: _Open) -> None:
        held = sum(len(stream.aborted) for stream in self._streams.values() if stream.aborted is not None)
        if held > self._limits.aborted_intervals:
            raise LimitReached(
                f"the rolled-back subtransactions of open transactions take {held} intervals of ids, "
                "more than limits.aborted_intervals "
                f"({self._limits.aborted_intervals}); the last of them belong to transaction {owner.xid}",
                hint="raise the limit (an interval takes 8 bytes), or use fewer savepoints in one "
                "transaction; nothing is lost, it is all sent again",
            )

    # prepared transactions

    def _begin_prepare(self, message: BeginPrepare, _position: int) -> None:
        if self.in_transaction:
            raise ProtocolViolation(f"BeginPrepare at {show(message.prepare_lsn)} came inside another transaction")
        self._transaction = _Open(message.xid, message.prepare_lsn, 0, self._new_body(), gid=message.gid)
        self._open_slot(self._transaction, in_stream=False)

    def _prepare(self, message: Prepare, _position: int) -> None:
        owner = self._transaction
        if owner is None or (owner.gid, owner.xid, owner.position_lsn) != (
            message.gid,
            message.xid,
            message.prepare_lsn,
        ):
            raise ProtocolViolation(f"Prepare at {show(message.prepare_lsn)} does not belong to a BeginPrepare")
        self._transaction = None
        self._keep_prepared(owner, message)

    def _stream_prepare(self, message: StreamPrepare, _position: int) -> None:
        owner = self._streams.get(message.xid)
        if owner is None or self.in_transaction:
            raise ProtocolViolation(
                f"the prepare of stream {message.xid} came {'inside a transaction' if owner else 'without its rows'}"
            )
        del self._streams[message.xid]
        self._keep_prepared(owner, message)

    def _keep_prepared(self, owner: _Open, message: Prepare | StreamPrepare) -> None:
        """A position before `start_lsn` is no reason to drop it: a slot that began to decode at
        PREPARE sends older ones late, right before their commit.
        """
        draft = self._draft
        self.through_lsn = max(self.through_lsn, message.end_lsn)
        known = self._prepared.get(message.gid)
        if known is not None and (known.xid, known.end_lsn) == (message.xid, message.end_lsn):
            draft.count("skipped")
            draft.endings.append(Discarded(owner.body))
            return
        if known is not None:
            raise ProtocolViolation(
                f"a transaction was prepared at {show(message.end_lsn)} under the gid of one prepared "
                f"at {show(known.end_lsn)}"
            )
        fact = self._prepared[message.gid] = Prepared(
            gid=message.gid,
            xid=message.xid,
            end_lsn=message.end_lsn,
            prepare_time_us=message.prepare_time_us,
            rows=owner.ordinal,
            aborted_xids=owner.aborted_xids,
            origin=owner.origin,
        )
        draft.endings.append(PreparedBody(owner.body, fact, owner.doubt_until))

    def _commit_prepared(self, message: CommitPrepared, _position: int) -> None:
        if self.in_transaction:
            raise ProtocolViolation(f"CommitPrepared at {show(message.commit_lsn)} came inside a transaction")
        if message.end_lsn <= self._start_lsn:
            self._draft.count("skipped")
            return
        known = self._prepared.pop(message.gid, None)
        if known is None or known.xid != message.xid:
            raise ProtocolViolation(
                f"the prepared transaction {message.xid} committed at {show(message.commit_lsn)}, and "
                "its rows never came"
            )
        if message.end_lsn <= self.through_lsn:
            raise ProtocolViolation(
                f"the commit that ended at {show(message.end_lsn)} came after {show(self.through_lsn)}"
            )
        self.through_lsn = message.end_lsn
        self._draft.endings.append(
            PreparedCommitted(message.gid, message.commit_lsn, message.end_lsn, message.commit_time_us, message.xid)
        )
        if known.rows:
            self._committed(message.end_lsn, message.commit_time_us, message.xid, known.origin)

    def _rollback_prepared(self, message: RollbackPrepared, _position: int) -> None:
        if self.in_transaction:
            raise ProtocolViolation(f"RollbackPrepared at {show(message.rollback_end_lsn)} came inside a transaction")
        self.through_lsn = max(self.through_lsn, message.rollback_end_lsn)
        known = self._prepared.get(message.gid)
        if known is None or known.end_lsn != message.prepare_end_lsn:
            self._draft.count("unknown_rollbacks")
            return
        del self._prepared[message.gid]
        self._draft.count("aborted")
        self._draft.endings.append(PreparedRolledBack(message.gid))

    # the rest

    def _origin(self, message: Origin, _position: int) -> None:
        owner = self._owner()
        if owner.ordinal or owner.origin is not None:
            raise ProtocolViolation("an Origin message came after the transaction's first row")
        owner.origin = (message.name, message.lsn)

    def _relation(self, message: Relation, position: int) -> None:
        version = message.version
        if self._relations.get(version.oid) == version:
            return
        self._relations[version.oid] = version
        self._shapes[version.oid] = len(self._versions)
        self._versions.append(version)
        self._draft.shape_changes.append((position, version.oid))

    def _type_name(self, message: TypeName, _position: int) -> None:
        self.type_names[message.oid] = message

    def _truncate(self, message: Truncate, _position: int) -> None:
        owner = self._owner()
        xid = owner.xid if message.stream_xid is None else message.stream_xid
        for oid in message.relation_oids:
            shape = self._shapes.get(oid)
            if shape is None:
                raise ProtocolViolation(f"a Truncate names relation {oid}, which was not announced")
            self._draft.truncates.append((self._slot, owner.ordinal, shape, xid))
        owner.ordinal += 1

    def _logical_message(self, message: LogicalMessage, _position: int) -> None:
        if not message.transactional:
            if self._transaction is not None:
                raise ProtocolViolation(f"a message outside transactions came inside one at {show(message.lsn)}")
            self.through_lsn = max(self.through_lsn, message.lsn)
            if self._keeps_message(message.prefix):
                self._draft.messages.append((_NO_BODY, 0, message))
            return
        owner = self._owner()
        if not self._keeps_message(message.prefix):
            return
        self._draft.messages.append((self._slot, owner.ordinal, message))
        owner.ordinal += 1

    def _message(self, draft: _Draft, slot: int, ordinal: int, message: LogicalMessage) -> MessageRun | None:
        if slot == _NO_BODY:
            return MessageRun(message, 0, 0, message.lsn, None, None) if message.lsn > self._start_lsn else None
        lsn, body = draft.slot_lsn[slot], draft.slot_body[slot]
        if lsn == _DROPPED_LSN:
            return None
        if body == _NO_BODY:
            return MessageRun(message, ordinal, draft.slot_xid[slot], lsn, draft.slot_time[slot], None)
        return MessageRun(message, ordinal, draft.slot_xid[slot], None, None, body, in_doubt=draft.slot_stream[slot])

    def _keepalive(self, message: Keepalive, _position: int) -> None:
        if self._transaction is None and message.end_lsn > self.through_lsn:
            self.through_lsn = message.end_lsn

    _HANDLERS: ClassVar[dict[type, Callable[["Assembler", Any, int], None]]] = {
        Keepalive: _keepalive,
        Relation: _relation,
        TypeName: _type_name,
        Origin: _origin,
        Truncate: _truncate,
        LogicalMessage: _logical_message,
        StreamStart: _stream_start,
        StreamStop: _stream_stop,
        StreamCommit: _stream_commit,
        StreamAbort: _stream_abort,
        BeginPrepare: _begin_prepare,
        Prepare: _prepare,
        StreamPrepare: _stream_prepare,
        CommitPrepared: _commit_prepared,
        RollbackPrepared: _rollback_prepared,
    }


def _truncate(
    draft: _Draft, versions: list[RelationVersion], slot: int, ordinal: int, shape: int, xid: int
) -> TruncateRun:
    body = draft.slot_body[slot]
    closed = body == _NO_BODY
    return TruncateRun(
        versions[shape],
        shape,
        ordinal,
        xid,
        draft.slot_lsn[slot] if closed else None,
        draft.slot_time[slot] if closed else None,
        None if closed else body,
        draft.slot_undecided[slot],
        draft.slot_position[slot],
    )


class _Arrays:
    """The draft's lists that are needed twice as arrays."""

    __slots__ = ("piece_rows", "piece_slot", "slot_body", "slot_lsn")

    def __init__(self, draft: _Draft) -> None:
        self.piece_slot = np.asarray(draft.piece_slot, np.int64)
        self.piece_rows = np.asarray(draft.piece_rows, np.int64)
        self.slot_lsn = np.asarray(draft.slot_lsn, np.int64)
        self.slot_body = np.asarray(draft.slot_body, np.int64)


def _runs(
    table: FrameTable, draft: _Draft, shapes: dict[int, int], versions: list[RelationVersion], arrays: _Arrays
) -> list[RowRun]:
    """Groups the batch's rows by relation version and by body, with array steps only."""
    if not draft.piece_rows:
        return []
    lengths = arrays.piece_rows
    slot = np.repeat(arrays.piece_slot, lengths)
    before = np.cumsum(lengths) - lengths
    ordinal = np.arange(len(slot)) + np.repeat(np.asarray(draft.piece_ordinal, np.int64) - before, lengths)
    control = np.zeros(len(table), np.bool_)
    control[control_positions(table)] = True
    rows = np.flatnonzero(~control).astype(np.int64)
    stream_of_slot = np.asarray(draft.slot_stream, np.bool_)
    xid = np.asarray(draft.slot_xid, np.int64)[slot]
    streamed = stream_of_slot[slot]
    oids = _oids_and_xids(table, rows, streamed, xid)
    version = _versions_of(rows, oids, shapes, draft.shape_changes, versions)
    slot_lsn, slot_body = arrays.slot_lsn, arrays.slot_body
    slot_time = np.asarray(draft.slot_time, np.int64)
    slot_position = np.asarray(draft.slot_position, np.int64)
    used = np.unique(arrays.piece_slot)
    kept = slot_lsn[used] != _DROPPED_LSN
    owners = _distinct(slot_body[used])
    runs = []
    for owner in owners:
        mine = used[kept & (slot_body[used] == owner)]
        of_owner = np.isin(slot, mine) if len(mine) < len(used) else np.ones(len(slot), np.bool_)
        for shape in _distinct(version[of_owner]):
            chosen = np.flatnonzero(of_owner & (version == shape))
            slots = slot[chosen]
            closed = owner == _NO_BODY
            runs.append(
                RowRun(
                    relation=versions[shape],
                    shape=shape,
                    rows=rows[chosen],
                    ordinal=ordinal[chosen],
                    xid=xid[chosen],
                    lsn=slot_lsn[slots] if closed else None,
                    commit_time_us=slot_time[slots] if closed else None,
                    body=None if closed else owner,
                    in_stream=bool(streamed[chosen[0]]),
                    undecided=draft.slot_undecided[int(slots[0])],
                    position_lsn=int(slot_position[slots].min()),
                )
            )
    return runs


def _distinct(values: NDArray[np.int64]) -> list[int]:
    """The distinct values, ascending. Nearly always there is one, which two passes show for less
    than a sort.
    """
    if not len(values):
        return []
    low = int(values.min())
    return [low] if low == int(values.max()) else [int(value) for value in np.unique(values)]


def _oids_and_xids(
    table: FrameTable, rows: NDArray[np.int64], streamed: NDArray[np.bool_], xid: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Relation oid of each row; writes the subtransaction ids of streamed rows into `xid`."""
    oids = np.empty(len(rows), np.int64)
    plain = ~streamed
    if plain.any():
        oids[plain] = relation_oids(table, rows[plain], in_stream=False)
    if streamed.any():
        oids[streamed] = relation_oids(table, rows[streamed], in_stream=True)
        xid[streamed] = stream_xids(table, rows[streamed])
    return oids


def _versions_of(
    rows: NDArray[np.int64],
    oids: NDArray[np.int64],
    shapes: dict[int, int],
    changes: list[tuple[int, int]],
    versions: list[RelationVersion],
) -> NDArray[np.int64]:
    """The relation version in force at each row. `changes` are (frame position, oid) in wire order;
    their versions are the last ones of `versions`.
    """
    result = np.empty(len(rows), np.int64)
    first_new = len(versions) - len(changes)
    cuts = np.searchsorted(rows, np.asarray([position for position, _ in changes], np.int64))
    bounds = [0, *cuts.tolist(), len(rows)]
    for number, (low, high) in enumerate(pairwise(bounds)):
        if number:
            shapes[changes[number - 1][1]] = first_new + number - 1
        if low == high:
            continue
        part = oids[low:high]
        for oid in _distinct(part):
            shape = shapes.get(oid)
            if shape is None:
                raise ProtocolViolation(f"a row names relation {oid}, which was not announced")
            result[low:high][part == oid] = shape
    return result

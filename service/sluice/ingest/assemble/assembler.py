"""Messages to transactions: the actions of a state machine over batches of frames.

Invariants: every row goes to exactly one transaction and to the relation version in force when it
arrived. A transaction is handed over as permanent only when its commit was read. `through_lsn` only
moves at the end of a transaction or at a keepalive between transactions. State lives in this object
and ends with the connection: after a reconnect the server sends everything again, to a new
Assembler.

Which message may come when is in `transitions`. Must not look at values, read a clock or do I/O.
(PostgreSQL: Logical Streaming Replication Protocol.)
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sluice.contract.entries import Commits, Prepared
from sluice.errors import LimitReached, ProtocolViolation
from sluice.ingest.assemble.aborted_xids import AbortedXids
from sluice.ingest.assemble.assembly import (
    Assembly,
    Discarded,
    PreparedBody,
    PreparedCommitted,
    PreparedRolledBack,
    Published,
)
from sluice.ingest.assemble.fragments import DROPPED_LSN, NO_BODY, NO_FRAGMENT, Draft, OpenTransaction
from sluice.ingest.assemble.runs import message_runs, row_runs, truncate_runs
from sluice.ingest.assemble.shape_cuts import ShapeCuts
from sluice.ingest.assemble.sizes import TransactionSizes
from sluice.ingest.assemble.transitions import TRANSITIONS, MessageKind, State, kind_of, refusal
from sluice.lsn import show
from sluice.protocol.begin_commit import begins, commit_ends
from sluice.protocol.constants import BEGIN, COMMIT
from sluice.protocol.decoder import decode_control
from sluice.protocol.frames import FrameTable, control_positions
from sluice.protocol.messages import (
    DDL_SIGNAL,
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

# Looking up a member of an enum takes longer than the transition itself, and these three come for
# every small transaction.
_BEGIN, _COMMIT, _ROW = MessageKind.BEGIN, MessageKind.COMMIT, MessageKind.ROW


@dataclass(frozen=True, slots=True)
class AssemblerLimits:
    """What streamed transactions that have not ended may take up here, all of them together."""

    open_streams: int = 4096
    aborted_intervals: int = 1_000_000


DEFAULT_LIMITS = AssemblerLimits()


def _every(_prefix: str) -> bool:
    return True


_SPARE_SHAPES = 256


class Assembler:
    """One connection's transactions.

    `start_lsn` is where streaming began: what committed at or before it is already durable and is
    dropped. `prepared` are the transactions whose rows are durable already and whose end is still
    to come. `keeps_message` says by its prefix whether a logical message is wanted; of others
    nothing is kept but their position.

    `state` says which messages may come next.
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
        self.state = State.BETWEEN
        self.limits = limits
        self._keeps_message = keeps_message
        self._start_lsn = start_lsn
        self._shapes: dict[int, int] = {}
        self._versions: list[RelationVersion] = []
        self._current: OpenTransaction | None = None
        self._streams: dict[int, OpenTransaction] = {}
        self._prepared = {one.gid: one for one in prepared}
        self._fragment = NO_FRAGMENT
        self._bodies = 0
        self._sizes = TransactionSizes()
        self._cuts = ShapeCuts()
        self._draft = Draft()
        self._position = 0
        """The frame whose message is acted on."""

    def parts(self, table: FrameTable) -> list[FrameTable]:
        """What to feed, part by part: a unit ends before each but the first, which may be empty."""
        return self._cuts.parts(table)

    def feed(self, table: FrameTable) -> Assembly:
        """Takes the next frames. Raises DecodeError, ProtocolViolation or LimitReached, after which
        this object must not be used again.
        """
        draft = self._draft = Draft()
        self._forget_old_shapes()
        initial_shapes = dict(self._shapes)
        if self._current is not None:
            self._open_fragment(self._current, in_stream=self.state is State.STREAM)
        self._read(table)
        if self._current is not None:
            self._outlive_batch(self._current)
        fragments = draft.fragments()
        assembly = Assembly(
            table=table,
            runs=row_runs(table, draft, fragments, initial_shapes, self._versions),
            truncates=truncate_runs(draft, self._versions),
            messages=message_runs(draft, draft.messages),
            signals=message_runs(draft, draft.signals),
            endings=draft.endings,
            commits=Commits(draft.end_lsn, draft.end_time, draft.end_xid, draft.origins),
            through_lsn=self.through_lsn,
            counts=draft.counts,
            sizes=self._sizes.take(table, fragments, draft.endings),
        )
        self._draft = Draft()
        return assembly

    def _forget_old_shapes(self) -> None:
        """Rows of an earlier batch have their relation with them."""
        if len(self._versions) > 2 * len(self._shapes) + _SPARE_SHAPES:
            in_force = sorted(self._shapes.items(), key=lambda shape: shape[1])
            self._versions = [self._versions[number] for _, number in in_force]
            self._shapes = {oid: place for place, (oid, _) in enumerate(in_force)}

    def _read(self, table: FrameTable) -> None:
        controls = control_positions(table)
        tags = table.tag[controls]
        starts = begins(table, controls[tags == BEGIN]).each()
        ends = commit_ends(table, controls[tags == COMMIT]).each()
        cursor = 0
        for position, tag in zip(controls.tolist(), tags.tolist(), strict=True):
            if position != cursor:
                self._rows(table, cursor, position - cursor)
            cursor = position + 1
            if tag == BEGIN:
                self._enter(_BEGIN, table, position)
                final_lsn, xid = next(starts)
                self._begin(final_lsn, xid)
            elif tag == COMMIT:
                self._enter(_COMMIT, table, position)
                commit_lsn, end_lsn, commit_time_us = next(ends)
                self._commit(commit_lsn, end_lsn, commit_time_us)
            else:
                message = decode_control(table, position, in_stream=self.state is State.STREAM)
                kind = kind_of(message)
                self._enter(kind, table, position)
                self._position = position
                self._ACTIONS[kind](self, message)
        if len(table) != cursor:
            self._rows(table, cursor, len(table) - cursor)

    def _enter(self, kind: MessageKind, table: FrameTable, position: int) -> None:
        """The transition that a message causes; its action comes after."""
        try:
            self.state = TRANSITIONS[self.state][kind]
        except KeyError:
            raise refusal(self.state, kind, table, position) from None

    # fragments and their rows

    def _owner(self) -> OpenTransaction:
        """The transaction whose content comes now. In the states that admit content there is one."""
        assert self._current is not None
        return self._current

    def _open_fragment(self, owner: OpenTransaction, *, in_stream: bool = False) -> None:
        self._current = owner
        self._fragment = self._draft.open_fragment(owner)
        if in_stream:
            self._draft.streamed.add(self._fragment)

    def _rows(self, table: FrameTable, position: int, row_count: int) -> None:
        self._enter(_ROW, table, position)
        owner = self._current
        assert owner is not None
        draft = self._draft
        draft.span_fragment.append(self._fragment)
        draft.span_rows.append(row_count)
        draft.span_ordinal.append(owner.ordinal)
        owner.ordinal += row_count

    def _outlive_batch(self, owner: OpenTransaction) -> None:
        if owner.body == NO_BODY:
            owner.body = self._new_body()
        self._draft.body[self._fragment] = owner.body

    def _new_body(self) -> int:
        self._bodies += 1
        return self._bodies

    # ordinary transactions

    def _begin(self, final_lsn: int, xid: int) -> None:
        owner = self._current = OpenTransaction(xid, final_lsn)
        self._fragment = self._draft.open_fragment(owner)

    def _commit(self, commit_lsn: int, end_lsn: int, commit_time_us: int) -> None:
        owner = self._current
        assert owner is not None
        if commit_lsn != owner.position_lsn or end_lsn <= commit_lsn:
            raise ProtocolViolation(
                f"Commit at {show(commit_lsn)} does not belong to the Begin for {show(owner.position_lsn)}"
            )
        draft = self._draft
        self._current = None
        if end_lsn <= self._start_lsn:
            draft.lsn[self._fragment] = DROPPED_LSN
            self._skip(owner)
            return
        draft.lsn[self._fragment] = end_lsn
        draft.time_us[self._fragment] = commit_time_us
        if owner.body != NO_BODY:
            draft.endings.append(Published(owner.body, commit_lsn, end_lsn, commit_time_us, owner.xid))
        self._advance(end_lsn)
        if owner.ordinal:
            draft.add_commit(end_lsn, commit_time_us, owner.xid, owner.origin)

    def _skip(self, owner: OpenTransaction) -> None:
        """The transaction is durable already: the server sent it again."""
        self._draft.count("skipped")
        if owner.body != NO_BODY:
            self._draft.endings.append(Discarded(owner.body))

    def _advance(self, end_lsn: int) -> None:
        if end_lsn <= self.through_lsn:
            raise ProtocolViolation(f"the commit that ended at {show(end_lsn)} came after {show(self.through_lsn)}")
        self.through_lsn = end_lsn

    # streamed transactions

    def _stream_start(self, message: StreamStart) -> None:
        owner = self._streams.get(message.xid)
        if message.first == (owner is not None):
            raise ProtocolViolation(
                f"a stream block of transaction {message.xid} is {'its first again' if owner else 'not its first'}"
            )
        if owner is None:
            self._check_open_streams(message.xid)
            owner = OpenTransaction(message.xid, self.through_lsn, self._new_body())
            self._streams[message.xid] = owner
        self._open_fragment(owner, in_stream=True)

    def _check_open_streams(self, xid: int) -> None:
        if len(self._streams) >= self.limits.open_streams:
            raise LimitReached(
                f"{self.limits.open_streams} streamed transactions are open (limits.open_streams), "
                f"and transaction {xid} would be one more",
                hint="raise the limit, or end old transactions at the source (pg_stat_activity, "
                "xact_start); nothing is lost, it is all sent again",
            )

    def _stream_stop(self, _message: StreamStop) -> None:
        self._current = None

    def _take_stream(self, xid: int, *, ended_by: MessageKind) -> OpenTransaction:
        owner = self._streams.pop(xid, None)
        if owner is None:
            raise ProtocolViolation(f"{ended_by} came for transaction {xid}, of which no stream block came")
        return owner

    def _stream_commit(self, message: StreamCommit) -> None:
        owner = self._take_stream(message.xid, ended_by=MessageKind.STREAM_COMMIT)
        if message.end_lsn <= self._start_lsn:
            self._skip(owner)
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
        self._advance(message.end_lsn)
        if owner.ordinal:
            self._draft.add_commit(message.end_lsn, message.commit_time_us, owner.xid, owner.origin)

    def _stream_abort(self, message: StreamAbort) -> None:
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

    def _check_aborted(self, owner: OpenTransaction) -> None:
        held = sum(len(stream.aborted) for stream in self._streams.values() if stream.aborted is not None)
        if held > self.limits.aborted_intervals:
            raise LimitReached(
                f"the rolled-back subtransactions of open transactions take {held} intervals of ids, "
                "more than limits.aborted_intervals "
                f"({self.limits.aborted_intervals}); the newest of them belong to transaction {owner.xid}",
                hint="raise the limit (an interval takes 8 bytes), or use fewer savepoints in one "
                "transaction; nothing is lost, it is all sent again",
            )

    # prepared transactions

    def _begin_prepare(self, message: BeginPrepare) -> None:
        self._open_fragment(OpenTransaction(message.xid, message.prepare_lsn, self._new_body(), gid=message.gid))

    def _prepare(self, message: Prepare) -> None:
        owner = self._owner()
        if (owner.gid, owner.xid, owner.position_lsn) != (message.gid, message.xid, message.prepare_lsn):
            raise ProtocolViolation(
                f"Prepare at {show(message.prepare_lsn)} does not belong to the Begin Prepare for "
                f"{show(owner.position_lsn)}"
            )
        self._current = None
        self._keep_prepared(owner, message)

    def _stream_prepare(self, message: StreamPrepare) -> None:
        self._keep_prepared(self._take_stream(message.xid, ended_by=MessageKind.STREAM_PREPARE), message)

    def _keep_prepared(self, owner: OpenTransaction, message: Prepare | StreamPrepare) -> None:
        """A position before `start_lsn` is no reason to drop it: a slot that began to decode at
        PREPARE sends older ones late, right before their commit.
        """
        self.through_lsn = max(self.through_lsn, message.end_lsn)
        earlier = self._prepared.get(message.gid)
        if earlier is not None:
            if (earlier.xid, earlier.end_lsn) == (message.xid, message.end_lsn):
                self._skip(owner)
                return
            raise ProtocolViolation(
                f"a transaction was prepared at {show(message.end_lsn)} under the gid of one prepared "
                f"at {show(earlier.end_lsn)}"
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
        self._draft.endings.append(PreparedBody(owner.body, fact, owner.doubt_until))

    def _commit_prepared(self, message: CommitPrepared) -> None:
        if message.end_lsn <= self._start_lsn:
            self._draft.count("skipped")
            return
        prepared = self._prepared.pop(message.gid, None)
        if prepared is None or prepared.xid != message.xid:
            raise ProtocolViolation(
                f"the prepared transaction {message.xid} committed at {show(message.commit_lsn)}, and "
                "its rows never came"
            )
        self._advance(message.end_lsn)
        self._draft.endings.append(
            PreparedCommitted(message.gid, message.commit_lsn, message.end_lsn, message.commit_time_us, message.xid)
        )
        if prepared.rows:
            self._draft.add_commit(message.end_lsn, message.commit_time_us, message.xid, prepared.origin)

    def _rollback_prepared(self, message: RollbackPrepared) -> None:
        """One whose Prepare never came was prepared before the replication slot began."""
        self.through_lsn = max(self.through_lsn, message.rollback_end_lsn)
        prepared = self._prepared.get(message.gid)
        if prepared is None or prepared.end_lsn != message.prepare_end_lsn:
            self._draft.count("unknown_rollbacks")
            return
        del self._prepared[message.gid]
        self._draft.count("aborted")
        self._draft.endings.append(PreparedRolledBack(message.gid))

    # content other than rows

    def _origin(self, message: Origin) -> None:
        owner = self._owner()
        if owner.ordinal or owner.origin is not None:
            raise ProtocolViolation("an Origin message came after the transaction's first row")
        owner.origin = (message.name, message.lsn)

    def _truncate(self, message: Truncate) -> None:
        owner = self._owner()
        xid = owner.xid if message.stream_xid is None else message.stream_xid
        for oid in message.relation_oids:
            shape = self._shapes.get(oid)
            if shape is None:
                raise ProtocolViolation(f"a Truncate names relation {oid}, which was not announced")
            self._draft.truncates.append((self._fragment, owner.ordinal, shape, xid))
        owner.ordinal += 1

    def _transactional_message(self, message: LogicalMessage) -> None:
        owner = self._owner()
        if message.prefix == DDL_SIGNAL:
            self._draft.signals.append((self._fragment, owner.ordinal, message))
        if self._keeps_message(message.prefix):
            self._draft.messages.append((self._fragment, owner.ordinal, message))
            owner.ordinal += 1

    # what belongs to no transaction

    def _plain_message(self, message: LogicalMessage) -> None:
        self.through_lsn = max(self.through_lsn, message.lsn)
        if self._keeps_message(message.prefix) and message.lsn > self._start_lsn:
            self._draft.messages.append((NO_FRAGMENT, 0, message))

    def _relation(self, message: Relation) -> None:
        """Also one that says nothing new: it may follow a change that only the catalog shows, and
        those who ask it need to know which rows came before.
        """
        version = message.version
        self._shapes[version.oid] = len(self._versions)
        self._versions.append(version)
        self._draft.shape_changes.append((self._position, version.oid))

    def _type(self, _message: TypeName) -> None:
        """Columns are read by the type that the catalog has for them, so nothing is kept."""

    def _keepalive(self, message: Keepalive) -> None:
        if self.state in (State.BETWEEN, State.STREAM):
            self.through_lsn = max(self.through_lsn, message.end_lsn)

    _ACTIONS: ClassVar[Mapping[MessageKind, Callable[["Assembler", Any], None]]] = {
        MessageKind.BEGIN_PREPARE: _begin_prepare,
        MessageKind.PREPARE: _prepare,
        MessageKind.STREAM_START: _stream_start,
        MessageKind.STREAM_STOP: _stream_stop,
        MessageKind.STREAM_COMMIT: _stream_commit,
        MessageKind.STREAM_PREPARE: _stream_prepare,
        MessageKind.STREAM_ABORT: _stream_abort,
        MessageKind.COMMIT_PREPARED: _commit_prepared,
        MessageKind.ROLLBACK_PREPARED: _rollback_prepared,
        MessageKind.TRUNCATE: _truncate,
        MessageKind.ORIGIN: _origin,
        MessageKind.MESSAGE: _transactional_message,
        MessageKind.PLAIN_MESSAGE: _plain_message,
        MessageKind.RELATION: _relation,
        MessageKind.TYPE: _type,
        MessageKind.KEEPALIVE: _keepalive,
    }

"""Which message may come when: the grammar of the stream as a table.

Invariant: what the table does not list is a ProtocolViolation, so an action of the assembler runs
only in a state that admits its message. What depends on more than the state (does this Commit
belong to that Begin, was this stream announced) is checked by the action. Pure.
(PostgreSQL: Logical Streaming Replication Protocol, Logical Replication Protocol Message Flow.)
"""

from collections.abc import Mapping
from enum import StrEnum

from sluice.errors import ProtocolViolation
from sluice.protocol import messages as m
from sluice.protocol.frames import FrameTable, frame_name


class State(StrEnum):
    """Where in the stream the next message stands."""

    BETWEEN = "between transactions"
    TRANSACTION = "inside a transaction"
    PREPARED = "inside a prepared transaction"
    STREAM = "inside a stream block"


class MessageKind(StrEnum):
    """Messages that the grammar distinguishes, under PostgreSQL's names."""

    BEGIN = "Begin"
    COMMIT = "Commit"
    BEGIN_PREPARE = "Begin Prepare"
    PREPARE = "Prepare"
    STREAM_START = "Stream Start"
    STREAM_STOP = "Stream Stop"
    STREAM_COMMIT = "Stream Commit"
    STREAM_PREPARE = "Stream Prepare"
    STREAM_ABORT = "Stream Abort"
    COMMIT_PREPARED = "Commit Prepared"
    ROLLBACK_PREPARED = "Rollback Prepared"
    ROW = "Insert, Update or Delete"
    TRUNCATE = "Truncate"
    ORIGIN = "Origin"
    MESSAGE = "Message (transactional)"
    PLAIN_MESSAGE = "Message (not transactional)"
    RELATION = "Relation"
    TYPE = "Type"
    KEEPALIVE = "Primary keepalive message"


_K = MessageKind

_ANYWHERE = (_K.RELATION, _K.TYPE, _K.KEEPALIVE)
_CONTENT = (_K.ROW, _K.TRUNCATE, _K.ORIGIN, _K.MESSAGE)


def _stay(state: State, *kinds: MessageKind) -> dict[MessageKind, State]:
    return dict.fromkeys(kinds, state)


TRANSITIONS: Mapping[State, Mapping[MessageKind, State]] = {
    State.BETWEEN: {
        _K.BEGIN: State.TRANSACTION,
        _K.BEGIN_PREPARE: State.PREPARED,
        _K.STREAM_START: State.STREAM,
        **_stay(State.BETWEEN, _K.STREAM_COMMIT, _K.STREAM_PREPARE, _K.STREAM_ABORT),
        **_stay(State.BETWEEN, _K.COMMIT_PREPARED, _K.ROLLBACK_PREPARED),
        **_stay(State.BETWEEN, _K.PLAIN_MESSAGE, *_ANYWHERE),
    },
    State.TRANSACTION: {
        _K.COMMIT: State.BETWEEN,
        **_stay(State.TRANSACTION, *_CONTENT, *_ANYWHERE),
    },
    State.PREPARED: {
        _K.PREPARE: State.BETWEEN,
        **_stay(State.PREPARED, *_CONTENT, *_ANYWHERE),
    },
    State.STREAM: {
        _K.STREAM_STOP: State.BETWEEN,
        **_stay(State.STREAM, *_CONTENT, _K.PLAIN_MESSAGE, *_ANYWHERE),
    },
}

_KINDS: Mapping[type[m.ControlMessage], MessageKind] = {
    m.Begin: _K.BEGIN,
    m.Commit: _K.COMMIT,
    m.BeginPrepare: _K.BEGIN_PREPARE,
    m.Prepare: _K.PREPARE,
    m.StreamStart: _K.STREAM_START,
    m.StreamStop: _K.STREAM_STOP,
    m.StreamCommit: _K.STREAM_COMMIT,
    m.StreamPrepare: _K.STREAM_PREPARE,
    m.StreamAbort: _K.STREAM_ABORT,
    m.CommitPrepared: _K.COMMIT_PREPARED,
    m.RollbackPrepared: _K.ROLLBACK_PREPARED,
    m.Truncate: _K.TRUNCATE,
    m.Origin: _K.ORIGIN,
    m.LogicalMessage: _K.MESSAGE,
    m.Relation: _K.RELATION,
    m.TypeName: _K.TYPE,
    m.Keepalive: _K.KEEPALIVE,
}


def kind_of(message: m.ControlMessage) -> MessageKind:
    if isinstance(message, m.LogicalMessage) and not message.transactional:
        return MessageKind.PLAIN_MESSAGE
    return _KINDS[type(message)]


def refusal(state: State, kind: MessageKind, table: FrameTable, position: int) -> ProtocolViolation:
    """The error for a message that has no entry in TRANSITIONS; `position` is its frame's."""
    return ProtocolViolation(
        f"{kind} ({frame_name(table, position)}) came {state}, where the protocol does not allow it"
    )

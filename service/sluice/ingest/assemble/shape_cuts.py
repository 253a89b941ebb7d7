"""Where a batch is cut because rows are identified by other columns from a transaction on.

Invariant: no unit has rows of a table from before and from behind a transaction in which the server
announced another shape of it: the unit ends before that transaction. The lake folds the rows of one entry
together, and rows that other columns identify cannot be. The wire has no attnum, so any other shape may
be another identity; a cut too many costs an entry and nothing else. What a batch says that no server
would is left to the assembler, which refuses it. No I/O. (PostgreSQL: Logical Replication Message Formats,
Relation; ALTER TABLE, REPLICA IDENTITY.)
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from sluice.protocol import constants as c
from sluice.protocol.decoder import decode_control
from sluice.protocol.frames import FrameTable
from sluice.protocol.messages import (
    BeginPrepare,
    CommitPrepared,
    ControlMessage,
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
)

_Shape = tuple[str, tuple[RelationColumn, ...]]
_Announced = dict[int, list[_Shape]]
"""By oid, what one transaction announced, in order."""

_READ = np.zeros(256, np.bool_)
_READ[
    [
        c.RELATION,
        c.BEGIN_PREPARE,
        c.PREPARE,
        c.COMMIT_PREPARED,
        c.ROLLBACK_PREPARED,
        c.STREAM_START,
        c.STREAM_STOP,
        c.STREAM_COMMIT,
        c.STREAM_ABORT,
        c.STREAM_PREPARE,
    ]
] = True
"""Messages that say something of it. Ordinary transactions without a Relation message cost nothing."""


class ShapeCuts:
    """For one connection, from its first frame on."""

    def __init__(self) -> None:
        self._last: dict[int, _Shape | None] = {}
        """By oid, as announced last for rows that come when their transaction ends, and for those that come without an
        announcement. None where that is not known: of a transaction's shapes some may be rolled back, and what was
        announced in one that did is not said again.
        """
        self._streams: dict[int, _Announced] = {}
        self._prepared: dict[str, _Announced] = {}
        self._open: _Announced | None = None
        """Of the transaction whose content comes now and whose rows wait for its end."""
        self._in_stream = False

    def parts(self, table: FrameTable) -> list[FrameTable]:
        """The frames of `table`, in order. A unit ends before each part but the first. The first and the last may be
        empty.
        """
        read = np.flatnonzero(_READ[table.tag])
        if not len(read):
            return [table]
        begins = np.flatnonzero(table.tag == c.BEGIN)
        cuts: set[int] = set()
        for position in read.tolist():
            message = decode_control(table, position, in_stream=self._in_stream)
            if isinstance(message, Relation):
                if self._announces(message.version):
                    # Rows of an ordinary transaction come when it has committed, in this batch or a later one.
                    before = int(np.searchsorted(begins, position))
                    cuts.add(int(begins[before - 1]) if before else 0)
            elif isinstance(message, StreamCommit):
                if self._changes(self._streams.pop(message.xid, {})):
                    cuts.add(position)
            elif isinstance(message, CommitPrepared):
                announced = self._prepared.pop(message.gid, None)
                if announced is None:
                    # Prepared on an earlier connection: its rows are alone.
                    cuts |= {position, position + 1}
                elif self._changes(announced):
                    cuts.add(position)
            elif isinstance(message, Prepare):
                self._prepared[message.gid], self._open = self._open or {}, None
                if self._changes(self._prepared[message.gid]):
                    # Rows of others have these shapes from here on, and the server does not announce them again.
                    cuts.add(position + 1)
            else:
                self._follow(message)
        return _cut(table, sorted(cuts))

    def _announces(self, version: RelationVersion) -> bool:
        """Whether rows that are published as they come have another shape from here on."""
        if self._open is None:
            return self._changes({version.oid: [_shape(version)]})
        self._open.setdefault(version.oid, []).append(_shape(version))
        return False

    def _follow(self, message: ControlMessage) -> None:
        """Whose content comes next."""
        match message:
            case StreamStart():
                self._in_stream, self._open = True, self._streams.setdefault(message.xid, {})
            case StreamStop():
                self._in_stream, self._open = False, None
            case BeginPrepare():
                self._open = {}
            case StreamPrepare():
                self._prepared[message.gid] = self._streams.pop(message.xid, {})
            case StreamAbort() if message.xid == message.subxid:
                self._streams.pop(message.xid, None)
            case RollbackPrepared():
                for oid in self._prepared.pop(message.gid, {}):
                    self._last.setdefault(oid, None)

    def _changes(self, announced: _Announced) -> bool:
        """Takes what was announced for the rows that come next. Whether it is another shape than that of
        earlier rows; before the first of a connection there are none.
        """
        changed = False
        for oid, shapes in announced.items():
            changed = changed or any(shape != self._last.get(oid, shape) for shape in shapes)
            self._last[oid] = shapes[0] if len(set(shapes)) == 1 else None
        return changed


def _shape(version: RelationVersion) -> _Shape:
    return version.replica_identity, version.columns


def _cut(table: FrameTable, cuts: Sequence[int]) -> list[FrameTable]:
    bounds = [0, *cuts, len(table)]
    return [
        FrameTable(
            table.raw,
            table.buffer,
            table.start[first:end],
            table.end[first:end],
            outer=table.outer[first:end],
            tag=table.tag[first:end],
            nulls_at=table.nulls_at,
        )
        for first, end in pairwise(bounds)
    ]

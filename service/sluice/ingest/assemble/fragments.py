"""The fragments of one batch while the assembler reads it: parallel lists that become arrays at the end.

A *fragment* is the part of one transaction that lies in this batch (of a streamed transaction: in
one stream block of it). A *span* is an unbroken run of row frames within a fragment, in wire order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sluice.contract.xids import NO_XIDS, XidIntervals
from sluice.ingest.assemble.aborted_xids import AbortedXids
from sluice.ingest.assemble.assembly import Ending
from sluice.protocol.messages import LogicalMessage

NO_BODY = -1
"""The body of a transaction that began and ended in one batch."""
NO_FRAGMENT = -1
"""The fragment of a logical message that belongs to no transaction."""
UNKNOWN_LSN = -1
"""The transaction has not ended in this batch."""
DROPPED_LSN = -2
"""The transaction ended at or before the start of the stream: it is durable already."""


@dataclass(slots=True)
class OpenTransaction:
    """A transaction whose end has not been read. `body` is set once its rows outlive a batch;
    `position_lsn` is where its commit record begins (of a stream: what had been seen when it
    began).

    `gid` is None unless it will end with Prepare.
    """

    xid: int
    position_lsn: int
    body: int = NO_BODY
    ordinal: int = 0
    origin: tuple[str, int] | None = None
    aborted: AbortedXids | None = None
    doubt_until: int = 0
    gid: str | None = None

    @property
    def aborted_xids(self) -> XidIntervals:
        return NO_XIDS if self.aborted is None else self.aborted.intervals()


@dataclass(frozen=True, slots=True, eq=False)
class Fragments:
    """The fragments and spans of a finished draft; parallel arrays, one element per fragment or per
    span.
    """

    xid: NDArray[np.int64]
    position_lsn: NDArray[np.int64]
    lsn: NDArray[np.int64]
    time_us: NDArray[np.int64]
    body: NDArray[np.int64]
    in_stream: NDArray[np.bool_]
    span_fragment: NDArray[np.int64]
    span_rows: NDArray[np.int64]
    span_ordinal: NDArray[np.int64]

    @property
    def kept(self) -> NDArray[np.bool_]:
        kept: NDArray[np.bool_] = self.lsn != DROPPED_LSN
        return kept


@dataclass(slots=True)
class Draft:
    xid: list[int] = field(default_factory=list)
    position_lsn: list[int] = field(default_factory=list)
    lsn: list[int] = field(default_factory=list)
    time_us: list[int] = field(default_factory=list)
    body: list[int] = field(default_factory=list)
    """Up to here one element per fragment."""
    streamed: set[int] = field(default_factory=set)
    """The fragments that are stream blocks."""
    to_prepare: set[int] = field(default_factory=set)
    """The fragments of transactions that will end with Prepare."""
    span_fragment: list[int] = field(default_factory=list)
    span_rows: list[int] = field(default_factory=list)
    span_ordinal: list[int] = field(default_factory=list)
    """The last three have one element per span."""
    shape_changes: list[tuple[int, int]] = field(default_factory=list)
    """(frame position, relation oid), in wire order."""
    truncates: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(fragment, ordinal, shape, xid); in a stream the xid is the subtransaction's, whose rollback
    undoes the truncate alone.
    """
    messages: list[tuple[int, int, LogicalMessage]] = field(default_factory=list)
    """(fragment, ordinal, message)."""
    signals: list[tuple[int, int, LogicalMessage]] = field(default_factory=list)
    """Likewise, those that say that DDL ran."""
    endings: list[Ending] = field(default_factory=list)
    end_lsn: list[int] = field(default_factory=list)
    end_time: list[int] = field(default_factory=list)
    end_xid: list[int] = field(default_factory=list)
    origins: dict[int, tuple[str, int]] = field(default_factory=dict)
    """By index into the three before it, which list the commits of transactions with rows."""
    counts: dict[str, int] = field(default_factory=dict)

    def open_fragment(self, owner: OpenTransaction) -> int:
        fragment = len(self.xid)
        self.xid.append(owner.xid)
        self.position_lsn.append(owner.position_lsn)
        self.lsn.append(UNKNOWN_LSN)
        self.time_us.append(0)
        self.body.append(owner.body)
        if owner.gid is not None:
            self.to_prepare.add(fragment)
        return fragment

    def add_commit(self, end_lsn: int, commit_time_us: int, xid: int, origin: tuple[str, int] | None) -> None:
        if origin is not None:
            self.origins[len(self.end_lsn)] = origin
        self.end_lsn.append(end_lsn)
        self.end_time.append(commit_time_us)
        self.end_xid.append(xid)

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def undecided(self, fragment: int) -> bool:
        """Whether the fragment's transaction may still roll back."""
        return fragment in self.streamed or fragment in self.to_prepare

    def fragments(self) -> Fragments:
        in_stream = np.zeros(len(self.xid), np.bool_)
        in_stream[list(self.streamed)] = True
        return Fragments(
            xid=_integers(self.xid),
            position_lsn=_integers(self.position_lsn),
            lsn=_integers(self.lsn),
            time_us=_integers(self.time_us),
            body=_integers(self.body),
            in_stream=in_stream,
            span_fragment=_integers(self.span_fragment),
            span_rows=_integers(self.span_rows),
            span_ordinal=_integers(self.span_ordinal),
        )


def _integers(values: Sequence[int]) -> NDArray[np.int64]:
    return np.asarray(values, np.int64)

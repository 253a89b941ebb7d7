"""What the assembler makes of one batch of frames: rows grouped by shape, and what became of the
transactions they belong to.

Immutable once returned. Rows are still bytes in the batch's frame table; nothing here has looked at
a value.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sluice.contract.entries import Commits, Prepared
from sluice.contract.xids import NO_XIDS, XidIntervals
from sluice.protocol.frames import FrameTable
from sluice.protocol.messages import LogicalMessage, RelationVersion

Sizes = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Row changes and bytes, one element per transaction."""
NO_SIZES: Sizes = (np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class RowRun:
    """Row messages of one relation version.

    `rows` indexes frames of the table, ascending; the other arrays are parallel to it. Rows of
    transactions that ended in this very batch have `lsn` (commit end) and `commit_time_us` and no
    `body`. The others belong to one `body`, whose end comes in this batch or later; their LSN is
    not known yet. `undecided` rows belong to a transaction that may still roll back. For the others
    `position_lsn` is where the record of the first commit concerned begins. `shape` numbers
    relation versions as they came on this connection.
    """

    relation: RelationVersion
    shape: int
    rows: NDArray[np.int64]
    ordinal: NDArray[np.int64]
    xid: NDArray[np.int64]
    lsn: NDArray[np.int64] | None
    commit_time_us: NDArray[np.int64] | None
    body: int | None
    in_stream: bool
    undecided: bool
    position_lsn: int

    @property
    def reaches_lsn(self) -> int:
        """A position within the record of the last commit concerned."""
        return self.position_lsn + 1 if self.lsn is None else int(self.lsn[-1])


@dataclass(frozen=True, slots=True)
class TruncateRun:
    """One TRUNCATE of one relation, at its place among the transaction's rows. The fields are
    RowRun's.
    """

    relation: RelationVersion
    shape: int
    ordinal: int
    xid: int
    lsn: int | None
    commit_time_us: int | None
    body: int | None
    undecided: bool
    position_lsn: int

    @property
    def reaches_lsn(self) -> int:
        """See RowRun."""
        return self.position_lsn + 1


@dataclass(frozen=True, slots=True)
class MessageRun:
    """One logical message. A non-transactional one stands alone: `lsn` is its own position, `xid`
    is 0.

    `in_doubt`: it came inside a stream, where the server says which transaction a message belongs
    to but not which subtransaction.
    """

    message: LogicalMessage
    ordinal: int
    xid: int
    lsn: int | None
    commit_time_us: int | None
    body: int | None
    in_doubt: bool = False


@dataclass(frozen=True, slots=True)
class Published:
    """The transaction that owns `body` committed, by a record from `commit_lsn` to `end_lsn`. Rows
    of `aborted_xids` never existed.

    Messages with an ordinal of `doubt_until` or more are certain: no subtransaction was rolled back
    after them.
    """

    body: int
    commit_lsn: int
    end_lsn: int
    commit_time_us: int
    xid: int
    aborted_xids: XidIntervals = NO_XIDS
    doubt_until: int = 0


@dataclass(frozen=True, slots=True)
class Discarded:
    """The transaction that owns `body` rolled back, or was stored before this session began."""

    body: int


@dataclass(frozen=True, slots=True)
class PreparedBody:
    """The transaction that owns `body` was prepared. Its rows must be durable before the end of its
    PREPARE is acknowledged, and stay invisible until it ends.

    `fact` names no files yet.
    """

    body: int
    fact: Prepared
    doubt_until: int = 0


@dataclass(frozen=True, slots=True)
class PreparedCommitted:
    """The transaction prepared under `gid`, in this session or an earlier one, committed."""

    gid: str
    commit_lsn: int
    end_lsn: int
    commit_time_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class PreparedRolledBack:
    """The transaction prepared under `gid` rolled back: its rows never existed."""

    gid: str


Ending = Published | Discarded | PreparedBody | PreparedCommitted | PreparedRolledBack


@dataclass(frozen=True, slots=True, eq=False)
class Assembly:
    """One batch, sorted out.

    `runs`, `truncates` and `messages` come before `endings` take effect. `commits` lists the
    transactions with rows that ended here, in commit order. `through_lsn`: every transaction that
    ended at or before it has been seen and its rows handed out. `sizes` are row changes and bytes
    of each transaction whose last row came here. `signals` are messages that say that DDL ran.
    """

    table: FrameTable
    runs: list[RowRun]
    truncates: list[TruncateRun]
    messages: list[MessageRun]
    endings: list[Ending]
    commits: Commits
    through_lsn: int
    counts: dict[str, int] = field(default_factory=dict)
    sizes: Sizes = NO_SIZES
    signals: list[MessageRun] = field(default_factory=list)

"""How large transactions were, found with array steps from what the assembler noted of a batch.

Invariant: a transaction is counted once, when its last row has been received: at its commit, at its
PREPARE, and not at all when it rolls back. Costs nothing per transaction or row but array steps,
except for transactions that span batches. Must not look at values. Pure.
"""

from collections.abc import Sequence

import numpy as np

from sluice.ingest.assemble.assembly import NO_SIZES, Discarded, Ending, PreparedBody, Published, Sizes
from sluice.ingest.assemble.fragments import NO_BODY, Fragments
from sluice.protocol.frames import FrameTable, control_positions


class TransactionSizes:
    """What has come so far of the transactions that have not ended, by body."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[int, int]] = {}

    def take(self, table: FrameTable, fragments: Fragments, endings: Sequence[Ending]) -> Sizes:
        """The transactions that ended in this batch. A fragment without a body is a whole
        transaction; one with a body is some of what belongs to the body.
        """
        if not len(fragments.span_rows) and not self._open:
            return NO_SIZES
        rows, nbytes = _by_fragment(table, fragments)
        some = rows > 0
        for fragment in np.flatnonzero((fragments.body != NO_BODY) & some).tolist():
            body = int(fragments.body[fragment])
            before = self._open.get(body, (0, 0))
            self._open[body] = (before[0] + int(rows[fragment]), before[1] + int(nbytes[fragment]))
        spanning = []
        for ending in endings:
            if isinstance(ending, Published | PreparedBody | Discarded):
                size = self._open.pop(ending.body, None)
                if size is not None and not isinstance(ending, Discarded):
                    spanning.append(size)
        whole = (fragments.body == NO_BODY) & fragments.kept & some
        ended = np.asarray(spanning, np.int64).reshape(-1, 2)
        return np.concatenate((rows[whole], ended[:, 0])), np.concatenate((nbytes[whole], ended[:, 1]))


def _by_fragment(table: FrameTable, fragments: Fragments) -> Sizes:
    count, span_rows = len(fragments.body), fragments.span_rows
    if not len(span_rows):
        return np.zeros(count, np.int64), np.zeros(count, np.int64)
    is_row = np.ones(len(table), np.bool_)
    is_row[control_positions(table)] = False
    length = (table.end - table.start)[is_row]
    span_bytes = np.add.reduceat(length, np.cumsum(span_rows) - span_rows)
    # bincount adds as float64, exact far beyond what a batch can hold.
    rows = np.bincount(fragments.span_fragment, span_rows, count)
    nbytes = np.bincount(fragments.span_fragment, span_bytes, count)
    return rows.astype(np.int64), nbytes.astype(np.int64)

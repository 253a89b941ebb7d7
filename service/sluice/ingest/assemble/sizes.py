"""How large transactions were, found with array steps from what the assembler noted of a batch.

Invariant: a transaction is counted once, when its last row has been received: at its commit, at its
PREPARE, and not at all when it rolls back. Costs nothing per transaction or row but array steps,
except for transactions that span batches. Must not look at values. Pure.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sluice.ingest.assemble.assembly import NO_SIZES, Discarded, Ending, PreparedBody, Published, Sizes
from sluice.protocol.frames import FrameTable, control_positions

_NO_BODY = -1


class SizeBook:
    """What has come so far of the transactions that have not ended, by body."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[int, int]] = {}

    def take(
        self,
        table: FrameTable,
        *,
        piece_slot: NDArray[np.int64],
        piece_rows: NDArray[np.int64],
        slot_body: NDArray[np.int64],
        slot_kept: NDArray[np.bool_],
        endings: Sequence[Ending],
    ) -> Sizes:
        """The transactions that ended in this batch. A piece is a run of row frames, in wire order,
        of one slot. A slot is one transaction's part of a batch: all of it if it has no body
        (and nothing to count if it is not kept), else some of what belongs to the body.
        """
        if not len(piece_rows) and not self._open:
            return NO_SIZES
        rows, nbytes = _by_slot(table, piece_slot, piece_rows, slots=len(slot_body))
        some = rows > 0
        for slot in np.flatnonzero((slot_body != _NO_BODY) & some).tolist():
            body = int(slot_body[slot])
            before = self._open.get(body, (0, 0))
            self._open[body] = (before[0] + int(rows[slot]), before[1] + int(nbytes[slot]))
        spanning = []
        for ending in endings:
            if isinstance(ending, Published | PreparedBody | Discarded):
                size = self._open.pop(ending.body, None)
                if size is not None and not isinstance(ending, Discarded):
                    spanning.append(size)
        whole = (slot_body == _NO_BODY) & slot_kept & some
        ended = np.asarray(spanning, np.int64).reshape(-1, 2)
        return np.concatenate((rows[whole], ended[:, 0])), np.concatenate((nbytes[whole], ended[:, 1]))


def _by_slot(table: FrameTable, piece_slot: NDArray[np.int64], piece_rows: NDArray[np.int64], *, slots: int) -> Sizes:
    if not len(piece_rows):
        return np.zeros(slots, np.int64), np.zeros(slots, np.int64)
    is_row = np.ones(len(table), np.bool_)
    is_row[control_positions(table)] = False
    length = (table.end - table.start)[is_row]
    piece_bytes = np.add.reduceat(length, np.cumsum(piece_rows) - piece_rows)
    # bincount adds as float64, exact far beyond what a batch can hold.
    return np.bincount(piece_slot, piece_rows, slots).astype(np.int64), np.bincount(
        piece_slot, piece_bytes, slots
    ).astype(np.int64)

"""The subtransactions of one streamed transaction that rolled back, collected one by one.

Invariant: as in XidIntervals: exactly the ids that were added. What is held grows with the number
of intervals, not of ids: new ids wait in a list that is merged into the intervals whenever it has
become as long as they are, so a merge costs each id a constant number of steps.
"""

from array import array

import numpy as np
from numpy.typing import NDArray

from sluice.contract.xids import XidIntervals

MERGE_AT = 4096
"""Ids that wait before the first merge."""


class AbortedXids:
    """A growing set of ids."""

    def __init__(self) -> None:
        self._firsts: NDArray[np.uint32] = np.zeros(0, np.uint32)
        self._lasts: NDArray[np.uint32] = np.zeros(0, np.uint32)
        self._waiting = array("I")

    def __len__(self) -> int:
        """The number of intervals as of the last merge."""
        return len(self._firsts)

    def add(self, xid: int) -> bool:
        """Whether this one led to a merge, after which the number of intervals is worth a look."""
        self._waiting.append(xid)
        due = len(self._waiting) >= max(MERGE_AT, len(self._firsts))
        if due:
            self._merge()
        return due

    def intervals(self) -> XidIntervals:
        self._merge()
        return XidIntervals(array("I", self._firsts.tobytes()), array("I", self._lasts.tobytes()))

    def _merge(self) -> None:
        if not self._waiting:
            return
        fresh = np.frombuffer(self._waiting, np.uint32)
        # One bit wider than an id, so that the neighbour of the last one has a number.
        firsts = np.concatenate([self._firsts, fresh]).astype(np.int64)
        lasts = np.concatenate([self._lasts, fresh]).astype(np.int64)
        order = np.argsort(firsts, kind="stable")
        firsts, lasts = firsts[order], np.maximum.accumulate(lasts[order])
        apart = firsts[1:] > lasts[:-1] + 1
        self._firsts = firsts[np.concatenate([[True], apart])].astype(np.uint32)
        self._lasts = lasts[np.concatenate([apart, [True]])].astype(np.uint32)
        self._waiting = array("I")

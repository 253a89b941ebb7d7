"""Sets of transaction ids, kept as intervals: what a hundred thousand rolled-back savepoints cost
in memory and in a manifest entry.

Invariant: exactly the ids that were put in are in it. Only neighbours (n, n + 1) share an interval;
a gap is never bridged, because the ids in it may be subtransactions that committed. Ids are 32 bits
wide and wrap, so a set that spans the wrap is two runs at both ends of the number line, and its
order says nothing about time. (PostgreSQL: Transactions and Identifiers.)
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

MAX_XID = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class XidIntervals:
    """`firsts[i]` to `lasts[i]`, both included, ascending, with at least one id between neighbours.
    The arrays (unsigned, 32 bits) are never changed.
    """

    firsts: "array[int]"
    lasts: "array[int]"

    @staticmethod
    def of(xids: Iterable[int]) -> "XidIntervals":
        """The set of `xids`, which come in any order and may repeat. Raises ValueError for what is
        no transaction id.
        """
        firsts: list[int] = []
        lasts: list[int] = []
        for xid in sorted(xids):
            if lasts and xid <= lasts[-1] + 1:
                lasts[-1] = xid
            else:
                firsts.append(xid)
                lasts.append(xid)
        return XidIntervals(_array(firsts), _array(lasts))

    def __len__(self) -> int:
        """The number of intervals."""
        return len(self.firsts)

    def __contains__(self, xid: int) -> bool:
        at = bisect_right(self.firsts, xid) - 1
        return at >= 0 and xid <= self.lasts[at]

    def __iter__(self) -> Iterator[int]:
        """Every id, ascending."""
        return chain.from_iterable(range(first, last + 1) for first, last in zip(self.firsts, self.lasts, strict=True))

    def to_json(self) -> list[int]:
        """Distances, because they are short: from the end of the interval before (at first from 0)
        to the first id, from there to the last, and so on.
        """
        steps: list[int] = []
        previous = 0
        for first, last in zip(self.firsts, self.lasts, strict=True):
            steps += (first - previous, last - first)
            previous = last
        return steps

    @staticmethod
    def from_json(steps: Any) -> "XidIntervals":
        """Raises ValueError or TypeError for anything but what `to_json` gives."""
        if not isinstance(steps, list) or len(steps) % 2 or any(type(step) is not int for step in steps):
            raise ValueError("a set of transaction ids is a list of pairs of numbers")
        bounds: list[int] = []
        at = 0
        for step in steps:
            at += step
            bounds.append(at)
        if any(step < 0 for step in steps) or any(step < 2 for step in steps[2::2]):
            raise ValueError("intervals of transaction ids must ascend and must not touch")
        return XidIntervals(_array(bounds[::2]), _array(bounds[1::2]))


def _array(xids: Sequence[int]) -> "array[int]":
    if xids and not 0 <= xids[0] <= xids[-1] <= MAX_XID:
        raise ValueError("a transaction id has 32 bits")
    return array("I", xids)


NO_XIDS = XidIntervals(array("I"), array("I"))

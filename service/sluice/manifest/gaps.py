"""Changes of a table that are lost to the stream, and how the lake table gets past them. Pure.

A lake table goes on as usual up to its gap and stands still there. Its rows are compared with the
source as of a later snapshot S; the rows that differ, read at S, are what a Repair brings. Put in
front of the changes behind the gap, they make the table that of S, and of the changes behind the gap
those that ended after S remain. So it does not matter what was lost, when the comparison was made,
or what changed meanwhile.

Invariant: a gap is closed only by rows from behind all that was lost, in the shape that the table had
at the gap; a gap that is open when more is lost stays one gap.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sluice.contract.entries import Repair, Segment
from sluice.lsn import show


@dataclass(frozen=True, slots=True)
class Gap:
    """The entry `seq` begins it. The changes that ended after `from_lsn` and at or before `to_lsn` are lost,
    though not all of them when the slot was lost more than once. `segments` are the rows as of
    `as_of_lsn` that differed, once it is closed.
    """

    seq: int
    schema_version: int
    from_lsn: int
    to_lsn: int
    as_of_lsn: int = 0
    segments: tuple[Segment, ...] = ()

    @property
    def closed(self) -> bool:
        return self.as_of_lsn > 0


Gaps = tuple[Gap, ...]
"""Of one generation, in order. All but the last are closed."""


def gap_at(gaps: Gaps, seq: int) -> Gap | None:
    """The one that begins with entry `seq`."""
    return next((gap for gap in gaps if gap.seq == seq), None)


def widened(gaps: Gaps, *, seq: int, schema_version: int, from_lsn: int, to_lsn: int) -> Gaps:
    """With what entry `seq` says is lost."""
    if gaps and not gaps[-1].closed:
        return (*gaps[:-1], replace(gaps[-1], to_lsn=to_lsn))
    return (*gaps, Gap(seq, schema_version, from_lsn, to_lsn))


def with_last_closed(gaps: Gaps, repair: Repair) -> Gaps:
    """With the last one closed. Raises ValueError for a repair that does not close it."""
    last = gaps[-1] if gaps else None
    if last is None or last.closed or last.seq != repair.gap_seq:
        raise ValueError("it closes a gap that is not open")
    if repair.schema_version != last.schema_version:
        raise ValueError("the table's columns have changed since the gap")
    if repair.as_of_lsn < last.to_lsn:
        raise ValueError(f"its rows are from before {show(last.to_lsn)}, up to where changes are lost")
    return (*gaps[:-1], replace(last, as_of_lsn=repair.as_of_lsn, segments=repair.segments))


def after_lsn(gaps: Iterable[Gap], *, seq: int) -> int:
    """Changes in entry `seq` that ended at or before this position are in what closed the gap before it;
    0 without one.
    """
    return max((gap.as_of_lsn for gap in gaps if gap.seq < seq), default=0)

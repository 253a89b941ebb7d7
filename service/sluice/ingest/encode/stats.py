"""What a segment's manifest entry says about its rows, so that the applier can plan without opening
the file.

Invariant: a number here is exact or absent. A key range covers every key, new and old, that the
rows carry; where one key value is not known, no range is given for its column.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract.schema import ColumnSchema
from sluice.ingest.encode.views import Mask, Texts

MAX_RANGE_TEXT_BYTES = 64
"""Longer text keys get no range: a manifest entry is read by every reader."""

KeyRange = tuple[int, int] | tuple[str, str]


@dataclass(frozen=True, slots=True)
class SegmentStats:
    """Counts of some rows. The fields are those of `sluice.contract.entries.Segment`; LSNs are 0
    while the commit is not known.

    `unranged` names key columns that hold a key without a usable range: they never get one back.
    """

    rows: int
    ops: dict[str, int] = field(default_factory=dict)
    unchanged: dict[str, int] = field(default_factory=dict)
    key_changes: int = 0
    key_ranges: dict[str, KeyRange] = field(default_factory=dict)
    unranged: frozenset[str] = frozenset()
    first_lsn: int = 0
    last_lsn: int = 0

    def with_commit(self, lsn: int) -> "SegmentStats":
        """The same rows once their transaction has ended at `lsn`."""
        return replace(self, first_lsn=self.first_lsn or lsn, last_lsn=self.last_lsn or lsn)


def total(parts: Iterable[SegmentStats]) -> SegmentStats:
    """The statistics of all parts together."""
    return reduce(_add, parts, SegmentStats(0))


def _add(one: SegmentStats, other: SegmentStats) -> SegmentStats:
    unranged = one.unranged | other.unranged
    names = dict.fromkeys((*one.key_ranges, *other.key_ranges))
    ranges = {
        name: _cover(one.key_ranges.get(name), other.key_ranges.get(name)) for name in names if name not in unranged
    }
    known = [stats.first_lsn for stats in (one, other) if stats.first_lsn]
    return SegmentStats(
        rows=one.rows + other.rows,
        ops=_sum(one.ops, other.ops),
        unchanged=_sum(one.unchanged, other.unchanged),
        key_changes=one.key_changes + other.key_changes,
        key_ranges=ranges,
        unranged=unranged,
        first_lsn=min(known, default=0),
        last_lsn=max(one.last_lsn, other.last_lsn),
    )


def _sum(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in dict.fromkeys((*one, *other))}


def _cover(one: KeyRange | None, other: KeyRange | None) -> KeyRange:
    ranges = [range_ for range_ in (one, other) if range_ is not None]
    covered: KeyRange = (min(low for low, _ in ranges), max(high for _, high in ranges))  # type: ignore[assignment]
    return covered


def key_range(column: ColumnSchema, values: Iterable[pa.Array]) -> KeyRange | None:
    """The smallest and greatest of a key column's values, None for types and lengths that get no
    range and where there are no values.
    """
    if column.lake.family != "integer" and column.lake.sql != "string":
        return None
    found = [array for array in values if array.null_count < len(array)]
    if not found or (column.lake.sql == "string" and any(_longest(array) > MAX_RANGE_TEXT_BYTES for array in found)):
        return None
    bounds = [pc.min_max(array) for array in found]
    return min(bound["min"].as_py() for bound in bounds), max(bound["max"].as_py() for bound in bounds)


def _longest(array: pa.Array) -> int:
    length: int = pc.max(pc.binary_length(array)).as_py()
    return length


def differs(new: Texts, old: Texts) -> Mask:
    """Where two columns of equal length hold different bytes, a value and no value being different."""
    unequal: Mask = pc.not_equal(new.binary(), old.binary()).fill_null(False).to_numpy(zero_copy_only=False)  # noqa: FBT003 - Arrow's signature
    different: Mask = unequal | (new.present != old.present)
    return different


def count_ops(codes: npt.NDArray[np.int8], names: tuple[str, ...]) -> dict[str, int]:
    """How often each operation occurs, those that occur only."""
    return {
        name: int(count) for name, count in zip(names, np.bincount(codes, minlength=len(names)), strict=True) if count
    }

"""The keys that a window touches, as a few ranges, so that Delta skips the files without them.

Owns that every key of the window is in a range. A range that is too wide costs time; one that is
too narrow would lose changes. Columns whose values may be marked, and types other than integers and
a leading text, get none. Pure.
"""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.contract.schema import TableSchema
from sluice_spark.fold.fold import KEY
from sluice_spark.fold.row_identity import Numbers, whole

MAX_RANGES = 12
"""Each is compared with the statistics of every file, and with every key of the files that remain."""
MAX_TEXT_BYTES = 64
SOME_FILES = 12
MANY_FILES = 64
CLOSE = 64
"""Keys are close together when their ranges are at most so many times as wide as there are keys."""
_INTEGERS = ("smallint", "int", "bigint")


@dataclass(frozen=True, slots=True)
class KeyRanges:
    """By key column: ranges of integers as (starts, ends), both ascending, or the smallest and
    greatest text by bytes.

    Bytes are what Spark and Delta's statistics compare texts by.
    """

    integers: dict[str, tuple[Numbers, Numbers]] = field(default_factory=dict)
    texts: dict[str, tuple[str, str]] = field(default_factory=dict)
    close: bool = False

    def __bool__(self) -> bool:
        return bool(self.integers or self.texts)

    def worth_their_cost(self, *, files: int) -> bool:
        """Whether a statement on a table of so many files should have them.

        With ranges the text of each statement differs, so Spark compiles each one: half a second or
        more. Keys that are spread over a few files save less than that.
        """
        return files >= MANY_FILES or (self.close and files >= SOME_FILES)

    @staticmethod
    def of(rows: pa.Table, schema: TableSchema) -> "KeyRanges":
        """The ranges of the origin keys in folded `rows`, of which there is at least one."""
        integers, texts = {}, {}
        close = False
        for position, column in enumerate(schema.key_columns):
            if column.lake.special:
                continue
            values = whole(rows[f"{KEY}{position}"])
            if column.lake.sql in _INTEGERS:
                distinct = np.unique(values.to_numpy(zero_copy_only=False).astype(np.int64))
                starts, ends = integers[column.name] = _fewer(distinct, distinct)
                close = close or int((ends.view(np.uint64) - starts.view(np.uint64)).sum()) <= CLOSE * len(distinct)
            elif column.lake.sql == "string" and position == 0:
                ends = pc.min_max(values).as_py()
                if all(len(end.encode()) <= MAX_TEXT_BYTES for end in ends.values()):
                    texts[column.name] = (ends["min"], ends["max"])
        return KeyRanges(integers, texts, close)

    def plus(self, other: "KeyRanges") -> "KeyRanges":
        """Ranges that hold the keys of both."""
        integers = {}
        for name in self.integers.keys() & other.integers.keys():
            starts, ends = (
                np.concatenate(pair) for pair in zip(self.integers[name], other.integers[name], strict=True)
            )
            order = np.argsort(starts)
            integers[name] = _fewer(starts[order], np.maximum.accumulate(ends[order]))
        texts = {name: _wider(self.texts[name], other.texts[name]) for name in self.texts.keys() & other.texts.keys()}
        return KeyRanges(integers, texts, self.close and other.close)


def _fewer(starts: Numbers, ends: Numbers) -> tuple[Numbers, Numbers]:
    # Differences as unsigned numbers: the distance of the two ends of bigint does not fit a signed
    # one. Ranges that overlap have no gap.
    gaps = np.where(starts[1:] > ends[:-1], starts[1:].view(np.uint64) - ends[:-1].view(np.uint64), np.uint64(0))
    cuts = (
        np.sort(np.argsort(gaps, kind="stable")[::-1][: MAX_RANGES - 1]) if len(gaps) else np.array([], dtype=np.int64)
    )
    cuts = cuts[gaps[cuts] > 1]
    return starts[np.concatenate([[0], cuts + 1])], ends[np.concatenate([cuts, [len(ends) - 1]])]


def _wider(one: tuple[str, str], other: tuple[str, str]) -> tuple[str, str]:
    low, _ = sorted((one[0].encode(), other[0].encode()))
    _, high = sorted((one[1].encode(), other[1].encode()))
    return low.decode(), high.decode()

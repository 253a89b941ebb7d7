"""What the tasks of one scan found, and the rows that the spool adds to it."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from sluice_spark.verify.scan import Listed, ScanTask, Sums


class ScanResult:
    """What the tasks found, and what is added to it."""

    def __init__(self, task: ScanTask, found: list[tuple[str, Any]] | None = None) -> None:
        self._task = task
        self.sums = Sums(task.bits)
        self.changed: list[pa.Table] = []
        self._rows: list[Listed] = []
        self._taken: dict[tuple[int, int], int] = {}
        for kind, value in found or []:
            if kind == "sums":
                self.sums.plus(value)
            elif kind == "changed":
                self.changed.append(value)
            else:
                self._rows += value

    def add(self, rows: pa.Table, *, times: Any = None) -> None:
        """Rows that the version does not have, each so many `times` (below 0: fewer of them)."""
        if not len(rows):
            return
        keys, whole = self._task.hashes(rows)
        numbers = (keys & np.uint64((1 << self._task.bits) - 1)).astype(np.int64)
        if not self._task.ranges:
            self.sums.add(numbers, whole, times=times)
            return
        found = self._task.found(rows, keys, whole)
        assert isinstance(found, list)
        if times is None:
            self._rows += found
            return
        chosen = np.flatnonzero(np.isin(numbers, np.array(self._task.ranges, np.int64)))
        for row, count in zip(found, np.asarray(times)[chosen].tolist(), strict=True):
            self._rows += [row] * max(count, 0)
            if count < 0:
                self._taken[row[0], row[1]] = self._taken.get((row[0], row[1]), 0) - count

    def listed(self) -> Iterator[Listed]:
        """The rows, without those that were taken away."""
        taken = dict(self._taken)
        for row in self._rows:
            if taken.get((row[0], row[1]), 0) > 0:
                taken[row[0], row[1]] -= 1
            else:
                yield row

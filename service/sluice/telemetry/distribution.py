"""How values are spread over the buckets of a histogram, counted where they come up and read when
somebody asks.

Invariant: a total never falls. One lock, taken once per value or once per batch of values, never
per row.
"""

import threading
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray


class Distribution:
    """Counts by upper bound (inclusive). All methods may be called from any thread."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._counts = [0] * (len(self.bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def add(self, value: float) -> None:
        with self._lock:
            self._counts[bisect_left(self.bounds, value)] += 1
            self._sum += value

    def add_all(self, values: NDArray[np.int64]) -> None:
        """A batch of values, in two array steps."""
        if not len(values):
            return
        found = np.bincount(np.searchsorted(self.bounds, values), minlength=len(self._counts)).tolist()
        total = float(values.sum())
        with self._lock:
            self._counts = [before + new for before, new in zip(self._counts, found, strict=True)]
            self._sum += total

    def cumulative(self) -> tuple[list[int], float]:
        """How many values are at most each bound, the last one being all of them; and their sum."""
        with self._lock:
            return list(accumulate(self._counts)), self._sum

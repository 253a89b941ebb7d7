"""Whether something that is measured again and again grows. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """How far the second half of a series may lie above the first: `share` of it, and `slack` in its own unit for
    what is small.
    """

    share: float
    slack: float


@dataclass(frozen=True)
class Halves:
    """The medians of both halves. One high value, or a few, moves neither."""

    first: float
    second: float
    most: float

    @property
    def grows(self) -> bool:
        return self.second > self.most


def halves(values: Sequence[float], bound: Bound) -> Halves | None:
    """None when there are fewer than four values, of which nothing can be said."""
    if len(values) < 4:
        return None
    middle = len(values) // 2
    first, second = statistics.median(values[:middle]), statistics.median(values[middle:])
    return Halves(first, second, first * (1 + bound.share) + bound.slack)

"""Errors counted by where they came up, what they are and whether the process tries again by
itself.

Invariant: labels come from the closed sets of the catalogue; nothing of an error's text is kept.
"""

import threading
from collections import Counter
from collections.abc import Iterable
from itertools import product

from sluice import errors
from sluice.errors import may_pass
from sluice.telemetry import catalogue
from sluice.telemetry.metrics import Metrics

OTHER = "Other"


class ErrorCounts:
    """`note` may be called from any thread, `export` from one."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.Lock()

    def note(self, component: str, error: BaseException) -> None:
        """`error` came up in `component`, one of the catalogue's. Errors of the same kind add up."""
        retryable = may_pass(error)
        with self._lock:
            self._counts[component, class_of(error), str(retryable).lower()] += 1

    def announce(self, metrics: Metrics, components: Iterable[str]) -> None:
        """Exports every error that may come up in `components` as not seen yet: a counter that appears
        with its first event hides that one from `increase`.
        """
        for component, name in product(components, catalogue.ERROR_CLASSES):
            known = getattr(errors, name, None)
            retryable = known is not None and known.disposition is errors.Disposition.RETRY
            metrics.advance_to(
                catalogue.ERRORS, 0, **{"component": component, "class": name, "retryable": str(retryable).lower()}
            )

    def export(self, metrics: Metrics) -> None:
        with self._lock:
            counts = dict(self._counts)
        for (component, name, retryable), count in counts.items():
            metrics.advance_to(
                catalogue.ERRORS, count, **{"component": component, "class": name, "retryable": retryable}
            )


def class_of(error: BaseException) -> str:
    """The nearest class of service/sluice/errors.py, `Other` for an error that is not ours."""
    return next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in catalogue.ERROR_CLASSES), OTHER)

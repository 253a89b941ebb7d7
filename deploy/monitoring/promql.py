"""PromQL from the catalogue: selectors whose metric, labels and label values exist.

Must not know alerts or dashboards. (Prometheus: Querying basics.)
"""

from dataclasses import dataclass

from sluice.telemetry.catalogue import Histogram, Metric


@dataclass(frozen=True, slots=True)
class Not:
    """Any value of a label but these."""

    values: tuple[str, ...]


Wanted = str | tuple[str, ...] | Not
"""What a label must be: one value, one of several, or none of several."""


@dataclass(frozen=True, slots=True)
class Selector:
    """Makes selectors that all carry one matcher, `scope`: which pipelines are meant."""

    scope: str

    def __call__(self, metric: Metric, **labels: Wanted) -> str:
        """`metric` where each label is what is wanted. Raises ValueError for what the catalogue
        does not know.
        """
        if isinstance(metric, Histogram):
            raise ValueError(f"{metric.name} is a histogram: choose buckets, count or sum")
        return self._selector(metric, "", labels)

    def buckets(self, metric: Histogram, **labels: Wanted) -> str:
        return self._selector(metric, "_bucket", labels)

    def count(self, metric: Histogram, **labels: Wanted) -> str:
        return self._selector(metric, "_count", labels)

    def total(self, metric: Histogram, **labels: Wanted) -> str:
        return self._selector(metric, "_sum", labels)

    def _selector(self, metric: Metric, suffix: str, labels: dict[str, Wanted]) -> str:
        matchers = [self.scope]
        for label, wanted in labels.items():
            values = (wanted,) if isinstance(wanted, str) else wanted.values if isinstance(wanted, Not) else wanted
            known = metric.labels.get(label)
            if known is None or (known and not set(values) <= set(known)):
                raise ValueError(f"{metric.name} has no {label} {' or '.join(values)}")
            operator = "=" if isinstance(wanted, str) else "!~" if isinstance(wanted, Not) else "=~"
            matchers.append(f'{label}{operator}"{"|".join(values)}"')
        return f"{metric.name}{suffix}{{{','.join(matchers)}}}"


def over(function: str, selector: str, window: str) -> str:
    """`function` of what the series were in `window`."""
    return f"{function}({selector}[{window}])"


def worst(expression: str, *labels: str) -> str:
    """The greatest value per pipeline (and `labels`): no instance, pod or version is left in it, so
    that a replaced pod does not start an alert anew.
    """
    return f"max by ({', '.join(('pipeline', *labels))}) ({expression})"


def least(expression: str, *labels: str) -> str:
    """The smallest value per pipeline (and `labels`)."""
    return f"min by ({', '.join(('pipeline', *labels))}) ({expression})"


def total(expression: str, *labels: str) -> str:
    """The sum per pipeline (and `labels`)."""
    return f"sum by ({', '.join(('pipeline', *labels))}) ({expression})"


def missing(selector: str, where: str) -> str:
    """1 for each pipeline that has the series `where` and none of `selector`."""
    return f"group by (pipeline) ({where}) unless on (pipeline) group by (pipeline) ({selector})"


def risen(counter: str, window: str) -> str:
    """How much a counter rose in `window`, for those that did; one that was born in it counts from
    zero, which `increase` leaves out.
    """
    return f"increase({counter}[{window}]) > 0 or {counter} > 0 unless {counter} offset {window}"

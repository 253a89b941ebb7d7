"""The catalogue made real: one registry per pipeline, and the few ways to change it.

Invariants: a metric that is not in the catalogue cannot be touched, a label value outside its closed set is refused, and no more than `max_tables` tables
have series of their own. Nothing here is called per row: callers add up plain numbers and hand them over once per flush.
All methods may be called from any thread.
"""

import platform
import threading
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version

import prometheus_client
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from service.telemetry import catalogue
from service.telemetry.catalogue import CATALOGUE, ROWS, Counter, Gauge, Histogram, Metric

OTHER = "_other"
MAX_TABLES = 500
"""Tables with series of their own. Rendering holds the interpreter: 500 tables with four operations cost a scrape about 10 ms."""
_CACHE_SECONDS = 1.0

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of one pipeline."""

    def __init__(self, pipeline: str, *, max_tables: int = MAX_TABLES, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.pipeline = pipeline
        self._registry = CollectorRegistry()
        self._families: dict[Metric, MetricWrapperBase] = {metric: _family(metric, self._registry) for metric in CATALOGUE}
        self._children: dict[tuple[str, ...], MetricWrapperBase] = {}
        self._totals: dict[tuple[str, ...], float] = {}
        self._tables: set[tuple[str, str]] = set()
        self._refused: set[tuple[str, str]] = set()
        self._max_tables = max_tables
        self._monotonic = monotonic
        self._rendered: tuple[float, bytes] | None = None
        self._lock = threading.Lock()

    def add(self, metric: Counter, amount: float, **labels: str) -> None:
        """Adds `amount` to a counter."""
        child = self._child(metric, labels)
        assert isinstance(child, prometheus_client.Counter)
        child.inc(amount)

    def advance_to(self, metric: Counter, total: float, **labels: str) -> None:
        """Brings a counter up to a total that is kept elsewhere. A total that fell was reset there, and counts from zero."""
        key = (metric.name, *labels.values())
        with self._lock:
            before = self._totals.get(key, 0.0)
            self._totals[key] = total
        self.add(metric, total - before if total >= before else total, **labels)

    def set(self, metric: Gauge, value: float, **labels: str) -> None:
        """Sets a gauge."""
        child = self._child(metric, labels)
        assert isinstance(child, prometheus_client.Gauge)
        child.set(value)

    def choose(self, metric: Gauge, label: str, chosen: str) -> None:
        """Sets the gauge to 1 for the value `chosen` of its only label and to 0 for all others."""
        values = metric.labels[label]
        if chosen not in values:
            raise ValueError(f"{metric.name} has no {label} {chosen!r}")
        for value in values:
            self.set(metric, float(value == chosen), **{label: value})

    def withdraw(self, metric: Gauge) -> None:
        """Takes a gauge out of the exposition until it is set again: a quantity that is not known must not show an old value."""
        with self._lock:
            self._families[metric].clear()
            self._children = {key: child for key, child in self._children.items() if key[0] != metric.name}

    def observe(self, metric: Histogram, value: float, **labels: str) -> None:
        """Counts one observation in a histogram."""
        child = self._child(metric, labels)
        assert isinstance(child, prometheus_client.Histogram)
        child.observe(value)

    def add_rows(self, schema: str, table: str, counts: Mapping[str, int]) -> None:
        """Adds one flush of a table: `counts` by insert, update, delete, truncate. Past the cap a table is counted as `_other`."""
        name = self._named(schema, table)
        for op, count in counts.items():
            if count:
                self.add(ROWS, count, schema=name[0], table=name[1], op=op)

    def forget_table(self, schema: str, table: str) -> None:
        """Takes the series of a table that left out of the exposition."""
        with self._lock:
            self._tables.discard((schema, table))
            self._refused.discard((schema, table))
            for op in ROWS.labels["op"]:
                child = self._children.pop((ROWS.name, schema, table, op), None)
                if child is not None:
                    self._families[ROWS].remove(self.pipeline, schema, table, op)

    def render(self) -> bytes:
        """The exposition, at most a second old: rendering holds the interpreter, and two scrapers must not cost twice."""
        with self._lock:
            now = self._monotonic()
            if self._rendered is not None and now - self._rendered[0] < _CACHE_SECONDS:
                return self._rendered[1]
        text = generate_latest(self._registry)
        self.set(catalogue.SCRAPE_DURATION, self._monotonic() - now)
        with self._lock:
            self._rendered = (now, text)
        return text

    def _named(self, schema: str, table: str) -> tuple[str, str]:
        with self._lock:
            if (schema, table) in self._tables:
                return schema, table
            if len(self._tables) < self._max_tables:
                self._tables.add((schema, table))
                return schema, table
            self._refused.add((schema, table))
            refused = len(self._refused)
        self.set(catalogue.TABLES_DROPPED, refused)
        return OTHER, OTHER

    def _child(self, metric: Metric, labels: Mapping[str, str]) -> MetricWrapperBase:
        key = (metric.name, *(labels.get(name, "") for name in metric.labels))
        child = self._children.get(key)
        if child is not None and len(labels) == len(metric.labels):
            return child
        if labels.keys() != metric.labels.keys():
            raise ValueError(f"{metric.name} takes the labels {sorted(metric.labels)}")
        for name, value in labels.items():
            if metric.labels[name] and value not in metric.labels[name]:
                raise ValueError(f"{metric.name} has no {name} {value!r}")
        with self._lock:
            child = self._children[key] = self._families[metric].labels(pipeline=self.pipeline, **labels)
        return child


def identify(metrics: Metrics, *, component: str) -> None:
    """Sets the build information of this process."""
    metrics.set(catalogue.BUILD_INFO, 1, version=version("sluice-cdc"), python=platform.python_version(), component=component)


def _family(metric: Metric, registry: CollectorRegistry) -> MetricWrapperBase:
    names = ("pipeline", *metric.labels)
    if isinstance(metric, Counter):
        return prometheus_client.Counter(metric.name, metric.help, names, registry=registry)
    if isinstance(metric, Histogram):
        return prometheus_client.Histogram(metric.name, metric.help, names, registry=registry, buckets=metric.buckets)
    return prometheus_client.Gauge(metric.name, metric.help, names, registry=registry)

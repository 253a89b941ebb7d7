"""The catalogue made real: one registry per process, and the few ways to change it.

Invariants: a metric that is not in the catalogue, or not served by this kind of process, cannot be
touched, a label value outside its closed set is refused, and no more than `max_tables` tables have
series of their own. Nothing here is called per row: callers add up plain numbers and hand them over
once per flush. All methods may be called from any thread.
"""

import platform
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version

import prometheus_client
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from sluice.telemetry import catalogue
from sluice.telemetry.catalogue import ROWS, Counter, Gauge, Histogram, Metric
from sluice.telemetry.distribution import Distribution

OTHER = "_other"
MAX_TABLES = 500
"""Tables with series of their own. Rendering holds the interpreter: 500 tables with five series
each cost a scrape about 20 ms; they have six.
"""
_CACHE_SECONDS = 1.0

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of one process of one pipeline. `component` is the kind of process: ingest or
    apply.
    """

    def __init__(
        self,
        pipeline: str,
        *,
        component: str = "ingest",
        max_tables: int = MAX_TABLES,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pipeline = pipeline
        self.component = component
        served = catalogue.served_by(component)
        self._registry = CollectorRegistry()
        self._families = {
            metric: _family(metric, self._registry) for metric in served if not isinstance(metric, Histogram)
        }
        self._histograms = _Histograms(pipeline, (metric for metric in served if isinstance(metric, Histogram)))
        self._registry.register(self._histograms)
        self._children: dict[tuple[str, ...], MetricWrapperBase] = {}
        self._totals: dict[tuple[str, ...], float] = {}
        self._tables: set[tuple[str, str]] = set()
        self._refused: set[tuple[str, str]] = set()
        self._max_tables = max_tables
        self._monotonic = monotonic
        self._rendered: tuple[float, bytes] | None = None
        self._before_render: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def add(self, metric: Counter, amount: float, **labels: str) -> None:
        """Adds `amount` to a counter."""
        child = self._child(metric, labels)
        assert isinstance(child, prometheus_client.Counter)
        child.inc(amount)

    def advance_to(self, metric: Counter, total: float, **labels: str) -> None:
        """Brings a counter up to a total that is kept elsewhere. A total that fell was reset there,
        and counts from zero.
        """
        key = _key(metric, labels)
        with self._lock:
            before = self._totals.get(key, 0.0)
            self._totals[key] = total
        self.add(metric, total - before if total >= before else total, **labels)

    def set(self, metric: Gauge, value: float, **labels: str) -> None:
        """Sets a gauge."""
        child = self._child(metric, labels)
        assert isinstance(child, prometheus_client.Gauge)
        child.set(value)

    def show(self, metric: Gauge, value: float | None, **labels: str) -> None:
        """Sets a gauge, or takes this one series out when the value is not known: a quantity that
        is not known must not show an old value.
        """
        if value is not None:
            self.set(metric, value, **labels)
            return
        with self._lock:
            if self._children.pop(_key(metric, labels), None) is not None:
                self._families[metric].remove(self.pipeline, *(labels[name] for name in metric.labels))

    def choose(self, metric: Gauge, label: str, chosen: str) -> None:
        """Sets the gauge to 1 for the value `chosen` of its only label and to 0 for all others."""
        values = metric.labels[label]
        if chosen not in values:
            raise ValueError(f"{metric.name} has no {label} {chosen!r}")
        for value in values:
            self.set(metric, float(value == chosen), **{label: value})

    def inform(self, metric: Gauge, **labels: str) -> None:
        """Sets a gauge whose labels say everything to 1, and takes the one with other labels out."""
        self.set(metric, 1, **labels)
        own = _key(metric, labels)
        with self._lock:
            others = [key for key in self._children if key[0] == metric.name and key != own]
        for key in others:
            self.show(metric, None, **dict(zip(metric.labels, key[1:], strict=True)))

    def withdraw(self, metric: Gauge) -> None:
        """Takes all series of a gauge out of the exposition until it is set again."""
        with self._lock:
            self._families[metric].clear()
            self._children = {key: child for key, child in self._children.items() if key[0] != metric.name}

    def observe(self, metric: Histogram, value: float, **labels: str) -> None:
        """Counts one observation in a histogram."""
        self._histograms.of(metric, labels).add(value)

    def attach(self, metric: Histogram, distribution: Distribution, **labels: str) -> None:
        """From now on the histogram is what `distribution` counts. Its bounds must be the metric's."""
        if distribution.bounds != metric.buckets:
            raise ValueError(f"{metric.name} has other buckets")
        self._histograms.attach(metric, distribution, labels)

    def add_rows(self, schema: str, table: str, counts: Mapping[str, int]) -> None:
        """Adds one flush of a table: `counts` by insert, update, delete, truncate. Past the cap a
        table is counted as `_other`.
        """
        name = (schema, table) if self._admit(schema, table) else (OTHER, OTHER)
        for op, count in counts.items():
            if count:
                self.add(ROWS, count, schema=name[0], table=name[1], op=op)

    def show_table(self, metric: Gauge, value: float | None, *, schema: str, table: str) -> None:
        """As `show`, for one table. Past the cap a table has no series: of a gauge there is no
        sensible `_other`.
        """
        if value is None or self._admit(schema, table):
            self.show(metric, value, schema=schema, table=table)

    def forget_table(self, schema: str, table: str) -> None:
        """Takes the series of a table that left out of the exposition."""
        with self._lock:
            self._tables.discard((schema, table))
            self._refused.discard((schema, table))
            refused = len(self._refused)
            for metric, family in self._families.items():
                if "table" not in metric.labels:
                    continue
                for key in [key for key in self._children if key[:3] == (metric.name, schema, table)]:
                    del self._children[key]
                    family.remove(self.pipeline, *key[1:])
        self.set(catalogue.TABLES_DROPPED, refused)

    def before_render(self, bring_up_to_date: Callable[[], None]) -> None:
        """Called before each rendering, in the thread that asks for it: for what must be true now,
        whatever the other threads do. It must be cheap.
        """
        self._before_render = bring_up_to_date

    def render(self) -> bytes:
        """The exposition, at most a second old: rendering holds the interpreter, and two scrapers
        must not cost twice.
        """
        with self._lock:
            now = self._monotonic()
            if self._rendered is not None and now - self._rendered[0] < _CACHE_SECONDS:
                return self._rendered[1]
        if self._before_render is not None:
            self._before_render()
        text = generate_latest(self._registry)
        self.set(catalogue.SCRAPE_DURATION, self._monotonic() - now)
        with self._lock:
            self._rendered = (now, text)
        return text

    def _admit(self, schema: str, table: str) -> bool:
        """Whether the table has series of its own; places are given in the order of asking."""
        with self._lock:
            if (schema, table) in self._tables:
                return True
            if len(self._tables) < self._max_tables:
                self._tables.add((schema, table))
                return True
            self._refused.add((schema, table))
            refused = len(self._refused)
        self.set(catalogue.TABLES_DROPPED, refused)
        return False

    def _child(self, metric: Metric, labels: Mapping[str, str]) -> MetricWrapperBase:
        key = _key(metric, labels)
        child = self._children.get(key)
        if child is not None and len(labels) == len(metric.labels):
            return child
        _check(metric, labels)
        with self._lock:
            child = self._children[key] = self._families[metric].labels(pipeline=self.pipeline, **labels)
        return child


class _Histograms(Collector):
    """All histograms of one registry. Their values are counted elsewhere in batches, for which
    prometheus_client's own class has no way in.
    """

    def __init__(self, pipeline: str, metrics: Iterable[Histogram]) -> None:
        self._pipeline = pipeline
        self._known: dict[Histogram, dict[tuple[str, ...], Distribution]] = {metric: {} for metric in metrics}

    def of(self, metric: Histogram, labels: Mapping[str, str]) -> Distribution:
        found = self._known[metric].get(_key(metric, labels))
        if found is None or len(labels) != len(metric.labels):
            _check(metric, labels)
            found = self._known[metric].setdefault(_key(metric, labels), Distribution(metric.buckets))
        return found

    def attach(self, metric: Histogram, distribution: Distribution, labels: Mapping[str, str]) -> None:
        _check(metric, labels)
        self._known[metric][_key(metric, labels)] = distribution

    def collect(self) -> Iterable[HistogramMetricFamily]:
        for metric, known in self._known.items():
            family = HistogramMetricFamily(metric.name, metric.help, labels=("pipeline", *metric.labels))
            bounds = [floatToGoString(bound) for bound in (*metric.buckets, float("inf"))]  # type: ignore[no-untyped-call]
            for key, distribution in list(known.items()):
                counts, total = distribution.cumulative()
                family.add_metric((self._pipeline, *key[1:]), list(zip(bounds, counts, strict=True)), total)
            yield family


def identify(metrics: Metrics, *, config_hash: int | None = None) -> None:
    """Sets what this process is. `config_hash` is the fingerprint of the settings that it runs
    with.
    """
    metrics.set(
        catalogue.BUILD_INFO,
        1,
        version=version("sluice-cdc"),
        python=platform.python_version(),
        component=metrics.component,
    )
    metrics.show(catalogue.CONFIG_HASH, config_hash)


def _key(metric: Metric, labels: Mapping[str, str]) -> tuple[str, ...]:
    return (metric.name, *(labels.get(name, "") for name in metric.labels))


def _check(metric: Metric, labels: Mapping[str, str]) -> None:
    if labels.keys() != metric.labels.keys():
        raise ValueError(f"{metric.name} takes the labels {sorted(metric.labels)}")
    for name, value in labels.items():
        if metric.labels[name] and value not in metric.labels[name]:
            raise ValueError(f"{metric.name} has no {name} {value!r}")


def _family(metric: Metric, registry: CollectorRegistry) -> MetricWrapperBase:
    names = ("pipeline", *metric.labels)
    kind = prometheus_client.Counter if isinstance(metric, Counter) else prometheus_client.Gauge
    return kind(metric.name, metric.help, names, registry=registry)

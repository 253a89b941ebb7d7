"""What a metric is: its name, what it means, and the labels that it may have."""

from collections.abc import Mapping
from dataclasses import dataclass, field

OPEN: tuple[str, ...] = ()
"""A label whose values are not listed."""

INGEST = ("ingest",)
APPLY = ("apply",)
BOTH = ("ingest", "apply")
FLEET = ("fleet",)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family. `labels` maps each label to the values it may have, or to OPEN. `group` is
    the heading in the documentation.

    `components` are the processes that serve it: ingest on telemetry.listen, the applier on
    telemetry.apply_listen, a fleet on its own address.
    """

    name: str
    help: str
    group: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    components: tuple[str, ...] = INGEST

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True, slots=True, eq=False)
class Counter(Metric):
    __hash__ = Metric.__hash__


@dataclass(frozen=True, slots=True, eq=False)
class Gauge(Metric):
    __hash__ = Metric.__hash__


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Histogram(Metric):
    buckets: tuple[float, ...]
    __hash__ = Metric.__hash__

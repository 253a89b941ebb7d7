"""What others learn of this applier besides its reports: OpenTelemetry spans and OpenLineage events, where they are
configured.

Invariant: watches and changes nothing. An observer that fails is left alone from then on, and the log says so; the
work goes on, and so does the other observer. Costs nothing where nothing is configured.
"""

from collections.abc import Callable

import structlog

from sluice.contract.entries import Entry
from sluice.store.base import ObjectStore
from sluice.telemetry.catalogue import LINEAGE_EVENTS
from sluice.telemetry.metrics import Metrics
from sluice.tracing.tracer import Tracer, tracer_for
from sluice_spark.options import ApplyOptions
from sluice_spark.progress.ledger import Ledger
from sluice_spark.progress.lineage import Lineage
from sluice_spark.progress.visible_entries import VisibleEntries


class Observers:
    """Of one applier, for its loop."""

    def __init__(self, options: ApplyOptions, store: ObjectStore, *, metrics: Metrics) -> None:
        self._options, self._store, self._metrics = options, store, metrics
        self._tracer: Tracer | None = None
        self._visible: VisibleEntries | None = None
        self._lineage: Lineage | None = None
        self._error = ""

    def begin(self, ledger: Ledger) -> None:
        """The applier works on `ledger` from now on. Raises UsageError when a library that the options ask for is not
        there.
        """
        options = self._options
        self._tracer = tracer_for(
            options.traces, options.traces_headers, store=self._store, metrics=self._metrics, pipeline=options.pipeline
        )
        if self._tracer is not None:
            self._visible = VisibleEntries(ledger, self._tracer)
        for outcome in LINEAGE_EVENTS.labels["outcome"]:
            self._metrics.add(LINEAGE_EVENTS, 0, outcome=outcome)
        if options.lineage:
            self._lineage = Lineage(options, ledger, self._metrics)
            self._watch_lineage(self._lineage.begin)

    def take_in(self, entry: Entry, sha256: str) -> None:
        """The ledger took in `entry`."""
        if self._visible is not None:
            visible = self._visible
            self._watch_visible(lambda: visible.take_in(entry, sha256))

    def look(self) -> None:
        """The loop goes round."""
        if self._visible is not None:
            self._watch_visible(self._visible.look)
        if self._lineage is not None:
            self._watch_lineage(self._lineage.look)

    def failed(self, error: str) -> None:
        """The applier ends with `error`, which has no value of a row."""
        self._error = error

    def close(self) -> None:
        """The applier ends. Returns within a few seconds."""
        if self._visible is not None:
            self._watch_visible(self._visible.look)
        if self._tracer is not None:
            self._tracer.close()
        if self._lineage is not None:
            lineage = self._lineage
            self._watch_lineage(lambda: lineage.close(self._error))

    def _watch_visible(self, observe: Callable[[], None]) -> None:
        if not _succeeds(observe):
            self._visible = None

    def _watch_lineage(self, observe: Callable[[], None]) -> None:
        if not _succeeds(observe):
            self._lineage = None


def _succeeds(observe: Callable[[], None]) -> bool:
    try:
        observe()
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the work
        structlog.get_logger("telemetry").error("an observer failed and watches no more", exc_info=error)
        return False
    return True

"""What others learn of this applier besides its reports: OpenTelemetry spans, where they are configured.

Invariant: watches and changes nothing, and no error here fails the work. Costs nothing where nothing is configured.
"""

from sluice.contract.entries import Entry
from sluice.store.base import ObjectStore
from sluice.telemetry.metrics import Metrics
from sluice.tracing.tracer import Tracer, tracer_for
from sluice_spark.options import ApplyOptions
from sluice_spark.progress.ledger import Ledger
from sluice_spark.progress.visible_entries import VisibleEntries


class Observers:
    """Of one applier, for its loop."""

    def __init__(self, options: ApplyOptions, store: ObjectStore, *, metrics: Metrics) -> None:
        self._options, self._store, self._metrics = options, store, metrics
        self._tracer: Tracer | None = None
        self._visible: VisibleEntries | None = None

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

    def take_in(self, entry: Entry, sha256: str) -> None:
        """The ledger took in `entry`."""
        if self._visible is not None:
            self._visible.take_in(entry, sha256)

    def look(self) -> None:
        """The loop goes round."""
        if self._visible is not None:
            self._visible.look()

    def close(self) -> None:
        """The applier ends. Returns within a few seconds."""
        if self._visible is not None:
            self._visible.look()
        if self._tracer is not None:
            self._tracer.close()

"""What a look at the server says of WAL and slot, brought to metrics, and for how long each stage has been behind.

Invariant: a quantity that could not be read is withdrawn, never left at its old value; a failing question is counted and disturbs nothing.
"""

from service.errors import ServiceError
from service.runtime.forecast import SlotForecast
from service.runtime.ingestview import IngestView
from service.runtime.report import Report
from service.runtime.sourceclock import SourceClock
from service.source.slot import SlotFacts
from service.source.slotprobe import SlotProbe, SlotProbeFacts
from service.telemetry import catalogue
from service.telemetry.catalogue import Gauge
from service.telemetry.metrics import Metrics
from service.telemetry.tally import ErrorTally

_NEEDS_SERVER = (catalogue.SOURCE_WAL_LSN, catalogue.LAG_BYTES)
_NEEDS_SLOT = (
    catalogue.SLOT_ACTIVE,
    catalogue.CONFIRMED_FLUSH_LSN,
    catalogue.SLOT_RETAINED,
    catalogue.SLOT_SAFE,
    catalogue.SLOT_SECONDS_LEFT,
    catalogue.SLOT_XMIN_AGE,
)


class SourceExport:
    """`look` belongs to one thread; `behind_seconds` and `complete_at` may be called from any."""

    def __init__(self, metrics: Metrics, probe: SlotProbe | None, errors: ErrorTally) -> None:
        self.forecast = SlotForecast()
        self._metrics = metrics
        self._probe = probe
        self._errors = errors
        self._clock = SourceClock()
        self._reached = False
        metrics.add(catalogue.PROBE_ERRORS, 0)

    def look(self, report: Report, view: IngestView) -> None:
        """Exports what `report` says of the server, and what the side query adds."""
        probed = self._ask()
        self._reached = report.server is not None
        self._metrics.set(catalogue.SOURCE_CONNECTED, float(self._reached and probed is not None), role="query")
        if report.unreachable:
            self._metrics.add(catalogue.PROBE_ERRORS, 1)
        if report.server is None:
            for gauge in _NEEDS_SERVER:
                self._metrics.withdraw(gauge)
        else:
            self._export_server(report, report.server.wal_end_lsn, view)
        self._export_slot(report, report.slot)
        self._export_probed(probed)

    def behind_seconds(self, lsn: int, *, now: float) -> float | None:
        """For how long at least the source has had more than `lsn`, 0 when it has not; None before the first look. While the server cannot be asked: the time
        since it was last known to have no more."""
        if self._reached:
            since = self._clock.behind_since(lsn)
            return 0.0 if since is None else max(0.0, now - since)
        known = self._clock.complete_at(lsn)
        return None if known is None else max(0.0, now - known)

    def complete_at(self, lsn: int) -> float | None:
        """The latest time at which the source certainly had no more than `lsn`."""
        return self._clock.complete_at(lsn)

    def close(self) -> None:
        if self._probe is not None:
            self._probe.close()

    def _ask(self) -> SlotProbeFacts | None:
        try:
            return self._probe.ask() if self._probe is not None else None
        except ServiceError as error:
            self._errors.note("probe", error)
            self._metrics.add(catalogue.PROBE_ERRORS, 1)
            return None

    def _export_server(self, report: Report, wal_end_lsn: int, view: IngestView) -> None:
        at = report.taken_at.timestamp()
        self._clock.note(at, wal_end_lsn)
        self.forecast.note(at, wal_end_lsn)
        self._metrics.set(catalogue.SOURCE_WAL_LSN, wal_end_lsn)
        flushed_lsn = max(report.manifest.through_lsn, view.complete_lsn)
        for stage, lsn in (("receive", max(view.received_lsn, flushed_lsn)), ("flush", flushed_lsn), ("apply", report.complete_lsn)):
            self._metrics.show(catalogue.LAG_BYTES, max(0, wal_end_lsn - lsn) if lsn else None, stage=stage)
        opened = report.manifest.opened
        if opened is not None and report.server is not None:
            self._metrics.inform(
                catalogue.PIPELINE_INFO,
                slot=opened.slot,
                publication=opened.publication,
                database=opened.database,
                server_version=str(report.server.server_version // 10000),
            )

    def _export_slot(self, report: Report, slot: SlotFacts | None) -> None:
        metrics = self._metrics
        if slot is None or report.server is None:
            for gauge in _NEEDS_SLOT:
                metrics.withdraw(gauge)
            if report.server is not None and report.manifest.opened is not None:
                metrics.choose(catalogue.SLOT_STATUS, "status", "lost")
            else:
                metrics.withdraw(catalogue.SLOT_STATUS)
            return
        known = slot.wal_status in catalogue.SLOT_STATUS.labels["status"] and not slot.invalidated
        metrics.choose(catalogue.SLOT_STATUS, "status", slot.wal_status if known else "lost")
        facts: dict[Gauge, float | None] = {
            catalogue.SLOT_ACTIVE: float(slot.active_pid is not None),
            catalogue.CONFIRMED_FLUSH_LSN: slot.confirmed_flush_lsn,
            catalogue.SLOT_RETAINED: max(0, report.server.wal_end_lsn - slot.restart_lsn) if slot.restart_lsn is not None else None,
            catalogue.SLOT_SAFE: slot.safe_wal_size,
            catalogue.SLOT_SECONDS_LEFT: self.forecast.seconds_until_lost(slot.safe_wal_size),
            catalogue.SLOT_XMIN_AGE: slot.catalog_xmin_age,
        }
        for gauge, value in facts.items():
            metrics.show(gauge, value)

    def _export_probed(self, probed: SlotProbeFacts | None) -> None:
        metrics = self._metrics
        metrics.show(catalogue.SLOT_KEEP_LIMIT, probed.keep_limit_bytes if probed else None)
        # Not from safe_wal_size, which a lost slot lacks too.
        metrics.show(catalogue.SLOT_UNBOUNDED, float(probed.keep_limit_bytes is None) if probed else None)
        metrics.show(catalogue.SLOT_INACTIVE_SINCE, probed.inactive_since if probed else None)
        decoder = probed.decoder if probed else None
        if decoder is None:
            return
        totals = {
            catalogue.DECODER_SPILL_BYTES: decoder.spill_bytes,
            catalogue.DECODER_SPILL_TRANSACTIONS: decoder.spill_transactions,
            catalogue.DECODER_STREAMED_BYTES: decoder.streamed_bytes,
            catalogue.DECODER_STREAMED_TRANSACTIONS: decoder.streamed_transactions,
            catalogue.DECODER_BYTES: decoder.decoded_bytes,
            catalogue.DECODER_TRANSACTIONS: decoder.decoded_transactions,
        }
        for counter, total in totals.items():
            metrics.advance_to(counter, total)

"""What a look at the server says of WAL and slot, brought to metrics, and for how long each stage
has been behind.

Invariant: a quantity that could not be read is withdrawn, never left at its old value; a failing
question is counted and disturbs nothing. Asks the server alone: while the object store is away, WAL
piles up, and that is when these figures are needed.
"""

import time
from dataclasses import dataclass

from sluice.errors import ServiceError
from sluice.health.facts import Away
from sluice.health.forecast import SlotForecast
from sluice.health.report import away
from sluice.health.source_clock import SourceClock
from sluice.ingest.status import IngestStatus
from sluice.manifest.state import PipelineState
from sluice.source.slot_probe import DecoderTotals, SlotProbe, SlotProbeFacts
from sluice.telemetry import catalogue
from sluice.telemetry.catalogue import Gauge
from sluice.telemetry.metrics import Metrics
from sluice.telemetry.tally import ErrorTally


@dataclass(frozen=True, slots=True)
class Probed:
    """The last look at the server: what it said at `at` (unix seconds), or why it did not answer."""

    at: float
    facts: SlotProbeFacts | None
    away: Away | None


class SourceExport:
    """`look` belongs to one thread; `behind_seconds`, `complete_at` and `probed`, the last look,
    may be read from any.
    """

    def __init__(self, metrics: Metrics, probe: SlotProbe, errors: ErrorTally) -> None:
        self.forecast = SlotForecast()
        self._metrics = metrics
        self._probe = probe
        self._errors = errors
        self._clock = SourceClock()
        self._reached = False
        self.probed: Probed | None = None
        metrics.add(catalogue.PROBE_ERRORS, 0)

    def look(self, *, status: IngestStatus, complete_lsn: int) -> None:
        """Asks the server and exports what it says. `complete_lsn` is where the lake is."""
        at = time.time()
        probed = self._ask()
        if probed is not None:
            self._clock.note(at, probed.server.wal_end_lsn)
            self.forecast.note(at, probed.server.wal_end_lsn)
        self._reached = probed is not None
        self._metrics.set(catalogue.SOURCE_CONNECTED, float(self._reached), role="query")
        self._export_lag(probed, status, complete_lsn)
        self._export_status(probed, status.manifest)
        for gauge, value in self._facts(probed).items():
            self._metrics.show(gauge, value)
        if probed is not None and probed.decoder is not None:
            self._export_decoder(probed.decoder)

    def behind_seconds(self, lsn: int, *, now: float) -> float | None:
        """For how long at least the source has had more than `lsn`, 0 when it has not; None before
        the first look. While the server cannot be asked: the time since it was last known to
        have no more.
        """
        if self._reached:
            since = self._clock.behind_since(lsn)
            return 0.0 if since is None else max(0.0, now - since)
        known = self._clock.complete_at(lsn)
        return None if known is None else max(0.0, now - known)

    def complete_at(self, lsn: int) -> float | None:
        """The latest time at which the source certainly had no more than `lsn`."""
        return self._clock.complete_at(lsn)

    def close(self) -> None:
        self._probe.close()

    def _ask(self) -> SlotProbeFacts | None:
        try:
            facts = self._probe.ask()
            self.probed = Probed(time.time(), facts, None)
            return facts
        except ServiceError as error:
            self.probed = Probed(time.time(), None, away(error))
            self._errors.note("probe", error)
            self._metrics.add(catalogue.PROBE_ERRORS, 1)
            return None

    def _export_lag(self, probed: SlotProbeFacts | None, status: IngestStatus, complete_lsn: int) -> None:
        manifest = status.manifest
        flushed_lsn = max(manifest.through_lsn if manifest else 0, status.complete_lsn)
        for stage, lsn in (
            ("receive", max(status.received_lsn, flushed_lsn)),
            ("flush", flushed_lsn),
            ("apply", complete_lsn),
        ):
            behind = max(0, probed.server.wal_end_lsn - lsn) if probed is not None and lsn else None
            self._metrics.show(catalogue.LAG_BYTES, behind, stage=stage)

    def _export_status(self, probed: SlotProbeFacts | None, manifest: PipelineState | None) -> None:
        opened = manifest.opened if manifest is not None else None
        if probed is None or (probed.slot is None and opened is None):
            self._metrics.withdraw(catalogue.SLOT_STATUS)
        else:
            slot = probed.slot
            usable = (
                slot is not None and not slot.invalidated and slot.wal_status in catalogue.SLOT_STATUS.labels["status"]
            )
            self._metrics.choose(
                catalogue.SLOT_STATUS, "status", slot.wal_status if slot is not None and usable else "lost"
            )
        if probed is not None and opened is not None:
            self._metrics.inform(
                catalogue.PIPELINE_INFO,
                slot=opened.slot,
                publication=opened.publication,
                database=opened.database,
                server_version=str(probed.server.server_version // 10000),
            )

    def _facts(self, probed: SlotProbeFacts | None) -> dict[Gauge, float | None]:
        wal_end = probed.server.wal_end_lsn if probed else None
        slot = probed.slot if probed else None
        restart = slot.restart_lsn if slot else None
        return {
            catalogue.SOURCE_WAL_LSN: wal_end,
            catalogue.SLOT_KEEP_LIMIT: probed.keep_limit_bytes if probed else None,
            # Not from safe_wal_size, which a lost slot lacks too.
            catalogue.SLOT_UNBOUNDED: float(probed.keep_limit_bytes is None) if probed else None,
            catalogue.SLOT_INACTIVE_SINCE: probed.inactive_since if probed else None,
            catalogue.SLOT_ACTIVE: float(slot.active_pid is not None) if slot else None,
            catalogue.CONFIRMED_FLUSH_LSN: slot.confirmed_flush_lsn if slot else None,
            catalogue.SLOT_RETAINED: max(0, wal_end - restart) if wal_end is not None and restart is not None else None,
            catalogue.SLOT_SAFE: slot.safe_wal_size if slot else None,
            catalogue.SLOT_SECONDS_LEFT: self.forecast.seconds_until_lost(slot.safe_wal_size) if slot else None,
            catalogue.SLOT_XMIN_AGE: slot.catalog_xmin_age if slot else None,
        }

    def _export_decoder(self, decoder: DecoderTotals) -> None:
        totals = {
            catalogue.DECODER_SPILL_BYTES: decoder.spill_bytes,
            catalogue.DECODER_SPILL_TRANSACTIONS: decoder.spill_transactions,
            catalogue.DECODER_STREAMED_BYTES: decoder.streamed_bytes,
            catalogue.DECODER_STREAMED_TRANSACTIONS: decoder.streamed_transactions,
            catalogue.DECODER_BYTES: decoder.decoded_bytes,
            catalogue.DECODER_TRANSACTIONS: decoder.decoded_transactions,
        }
        for counter, total in totals.items():
            self._metrics.advance_to(counter, total)

"""What the server says of WAL and slot, and how far each stage is behind, brought to metrics.

Invariant: a quantity that could not be read is withdrawn, never left at its old value. Needs the
server alone: while the object store is away, WAL piles up, and that is when these figures are
needed.
"""

from sluice.health.wal import Headroom, Positions, stages
from sluice.manifest.values import PipelineState
from sluice.source.slot_probe import DecoderTotals, SlotProbeFacts
from sluice.telemetry import catalogue
from sluice.telemetry.catalogue import Gauge
from sluice.telemetry.metrics import Metrics

_STAGES = {"received": "receive", "flushed": "flush", "applied": "apply"}
"""How the stages of /status are named in metrics."""


def export_lag(metrics: Metrics, at: Positions, *, now: float) -> None:
    """Exports how far the stages are behind: what /status shows."""
    for stage in stages(at, now=now):
        if (name := _STAGES.get(stage.stage)) is not None:
            metrics.show(catalogue.LAG_BYTES, stage.behind_bytes, stage=name)
            metrics.show(catalogue.LAG_SECONDS, stage.behind_seconds, stage=name)


def export_answer(
    metrics: Metrics, facts: SlotProbeFacts | None, kept: Headroom | None, *, manifest: PipelineState | None
) -> None:
    """Exports one answer of the server, None for no answer. `manifest` is our own state, None before
    it was opened.
    """
    metrics.set(catalogue.SOURCE_CONNECTED, float(facts is not None), role="query")
    _export_status(metrics, facts, manifest)
    for gauge, value in _figures(facts, kept).items():
        metrics.show(gauge, value)
    if facts is not None and facts.decoder is not None:
        _export_decoder(metrics, facts.decoder)


def _export_status(metrics: Metrics, facts: SlotProbeFacts | None, manifest: PipelineState | None) -> None:
    opened = manifest.opened if manifest is not None else None
    if facts is None or (facts.slot is None and opened is None):
        metrics.withdraw(catalogue.SLOT_STATUS)
    else:
        slot = facts.slot
        usable = slot is not None and not slot.invalidated and slot.wal_status in catalogue.SLOT_STATUS.labels["status"]
        metrics.choose(catalogue.SLOT_STATUS, "status", slot.wal_status if slot is not None and usable else "lost")
    if facts is not None and opened is not None:
        metrics.inform(
            catalogue.PIPELINE_INFO,
            slot=opened.slot,
            publication=opened.publication,
            database=opened.database,
            server_version=str(facts.server.server_version // 10000),
        )


def _figures(facts: SlotProbeFacts | None, kept: Headroom | None) -> dict[Gauge, float | None]:
    slot = facts.slot if facts else None
    return {
        catalogue.SOURCE_WAL_LSN: facts.server.wal_end_lsn if facts else None,
        catalogue.SLOT_KEEP_LIMIT: facts.keep_limit_bytes if facts else None,
        # Not from safe_wal_size, which a lost slot lacks too.
        catalogue.SLOT_UNBOUNDED: float(facts.keep_limit_bytes is None) if facts else None,
        catalogue.SLOT_INACTIVE_SINCE: facts.inactive_since if facts else None,
        catalogue.SLOT_ACTIVE: float(slot.active_pid is not None) if slot else None,
        catalogue.CONFIRMED_FLUSH_LSN: slot.confirmed_flush_lsn if slot else None,
        catalogue.SLOT_RETAINED: kept.retained_bytes if kept else None,
        catalogue.SLOT_SAFE: slot.safe_wal_size if slot else None,
        catalogue.SLOT_SECONDS_LEFT: kept.seconds_left if kept else None,
        catalogue.SLOT_XMIN_AGE: slot.catalog_xmin_age if slot else None,
    }


def _export_decoder(metrics: Metrics, decoder: DecoderTotals) -> None:
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

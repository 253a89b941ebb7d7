"""What ingest shows of itself.

Invariant: written by ingest on its event loop, read by anyone, never a source of truth.
"""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class IngestView:
    """The present, for status, metrics and probes: written by ingest, read by anyone, never a
    source of truth.
    """

    state: str = "starting"
    connected: bool = False
    received_lsn: int = 0
    flushed_lsn: int = 0
    complete_lsn: int = 0
    """Through which nothing that was received is missing from the manifest: beyond `flushed_lsn`
    when only WAL of others came since.
    """
    oldest_unflushed_us: int | None = None
    """Commit time of the oldest transaction received that is not in the manifest."""
    reconnects: int = 0
    reconnect_reasons: Counter[str] = field(default_factory=Counter)
    retry_delay_s: float = 0.0
    last_message_at: float = 0.0
    """Unix seconds, 0 before the first; likewise `last_feedback_at` and `catalog_beat`, when the
    catalog watch last went round.
    """
    last_feedback_at: float = 0.0
    catalog_beat: float = 0.0
    streaming_at: float = 0.0
    """When START_REPLICATION was last sent, monotonic seconds; `reached_at` when the target of a
    bounded run was acknowledged.
    """
    reached_at: float = 0.0
    last_error: str = ""

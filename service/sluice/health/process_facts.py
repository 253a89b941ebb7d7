"""What only a running process knows, as a value: a part of the report that is None when no process
was asked.

Must not import what runs: the command line shows it where only a few packages are installed.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sluice.health.facts import ProcessSeen
from sluice.health.snapshots import SnapshotRound
from sluice.health.wal import shown


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One look at the process; `seen` is what its health is judged by. `complete_lsn` is through
    which nothing that was received is missing from the manifest, `oldest_unflushed_at` (unix
    seconds) the commit time of the oldest transaction that is. `throughput` is the last hour, a
    minute each. `configured_at` is when the settings in force were read.
    """

    seen: ProcessSeen
    started_at: datetime
    instance: str
    reconnects: int
    received_lsn: int
    complete_lsn: int
    oldest_unflushed_at: float | None
    snapshot: SnapshotRound | None
    throughput: tuple[dict[str, Any], ...]
    configured_at: datetime | None = None

    def to_json(self, *, now: datetime) -> dict[str, Any]:
        applier = self.seen.applier
        return {
            "state": self.seen.state,
            "instance": self.instance,
            "started_at": self.started_at.isoformat(),
            "uptime_seconds": max(0.0, (now - self.started_at).total_seconds()),
            "connected": self.seen.connected,
            "reconnects": self.reconnects,
            "received_lsn": shown(self.received_lsn),
            "applier": None if applier is None else {"running": applier.running, "restarts": applier.restarts},
            "configuration": {
                "in_force_since": self.configured_at.isoformat() if self.configured_at else None,
                "refused": self.seen.configuration_refused or None,
            },
            "throughput": list(self.throughput),
        }

"""What only a running process knows, as a value: a part of the report that is None when no process was asked.

Must not import what runs: the command line shows it where only a few packages are installed.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from service.runtime.copyreport import CopyRound
from service.runtime.incidents import Incident
from service.runtime.walreport import shown


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One look at the process. `complete_lsn` is through which nothing that was received is missing from the manifest, `oldest_unflushed_at` (unix seconds)
    the commit time of the oldest transaction that is. `throughput` is the last hour, a minute each."""

    state: str
    started_at: datetime
    instance: str
    connected: bool
    reconnects: int
    received_lsn: int
    complete_lsn: int
    oldest_unflushed_at: float | None
    copy: CopyRound | None
    incidents: tuple[Incident, ...]
    throughput: tuple[dict[str, Any], ...]
    applier_running: bool | None
    applier_restarts: int

    def to_json(self, *, now: datetime) -> dict[str, Any]:
        return {
            "state": self.state,
            "instance": self.instance,
            "started_at": self.started_at.isoformat(),
            "uptime_seconds": max(0.0, (now - self.started_at).total_seconds()),
            "connected": self.connected,
            "reconnects": self.reconnects,
            "received_lsn": shown(self.received_lsn),
            "applier": None if self.applier_running is None else {"running": self.applier_running, "restarts": self.applier_restarts},
            "throughput": list(self.throughput),
        }

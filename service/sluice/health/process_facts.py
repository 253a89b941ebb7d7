"""What only a running process knows, as a value: a part of the report that is None when no process
was asked.

Must not import what runs: the command line shows it where only a few packages are installed.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sluice.errors import ErrorSeen
from sluice.health.facts import ProcessSeen
from sluice.health.neighbours import Neighbour
from sluice.health.problems import BY_CODE
from sluice.health.snapshots import SnapshotRound
from sluice.health.wal import shown
from sluice.telemetry.waits import Wait


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One look at the process; `seen` is what its health is judged by. `complete_lsn` is through
    which nothing that was received is missing from the manifest, `oldest_unflushed_at` (unix
    seconds) the commit time of the oldest transaction that is. `throughput` is the last hour, a
    minute each. `configured_at` is when the settings in force were read. `waits` is what it waits for
    now, `errors` what went wrong since it started, `neighbours` what other pipelines say of themselves.
    `runbook_url` is where the runbooks are served, empty when that is not known. `ddl_signal_lacks` is why
    completeness needs looks at the catalog, empty while the DDL signal says when.
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
    waits: tuple[Wait, ...] = ()
    errors: tuple[ErrorSeen, ...] = ()
    neighbours: tuple[Neighbour, ...] = ()
    runbook_url: str = ""
    ddl_signal_lacks: str = ""

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
            "ddl_signal": {"relied_upon": not self.ddl_signal_lacks, "reason": self.ddl_signal_lacks or None},
            "throughput": list(self.throughput),
            "errors": [_error_json(one) for one in self.errors],
            "neighbours": [one.to_json() for one in self.neighbours],
            "runbook_url": self.runbook_url,
        }


def _error_json(one: ErrorSeen) -> dict[str, Any]:
    return {
        "error": one.error,
        "where": one.where,
        "message": one.message,
        "what_to_do": one.hint,
        "count": one.count,
        "first_at": datetime.fromtimestamp(one.first_at, UTC).isoformat(),
        "last_at": datetime.fromtimestamp(one.last_at, UTC).isoformat(),
        "runbook": BY_CODE["ingest.error"].runbook,
    }

"""One pipeline of a fleet while the fleet runs: its ingest as a child process.

Invariant: at most one ingest of a pipeline at a time. One that ended with an error that a person has to
deal with is not started again until somebody asks, since a lost slot or another owner must not be
tried again blindly; every other one is.
"""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sluice.errors import ApplyError, ServiceError, SourceError, StoreRefused
from sluice.health.endpoint import UNIX
from sluice.process.child_process import ChildProcess, Launch, RestartPolicy
from sluice.process.fleet.asking import ask_json
from sluice.process.fleet.member import Member

PASSING = (ServiceError.exit_code, SourceError.exit_code, StoreRefused.exit_code, ApplyError.exit_code)
"""What may be dealt with elsewhere, by a server or a store that lets us in again. Not 2, 7 and 8."""
_NO_STATUS = "no answer yet"
_ENDED = {
    2: "the configuration is refused",
    7: "the slot is lost, or belongs to another pipeline",
    8: "another process owns the pipeline",
}
_KILL_SECONDS = 1.0


@dataclass
class Running:
    """`member` is what it was started with. `refused` says why its file, as it is now, is not in force."""

    member: Member
    launch: Launch
    sockets: Path
    refused: str = ""
    ended: int | None = None
    """The exit code with which the ingest ended until somebody asks."""
    restarts: int = 0
    """Of processes before this one."""

    def __post_init__(self) -> None:
        self.socket = str(self.sockets / f"{self.member.name}.sock")
        self._lock = threading.Lock()
        self._stopping = False
        self._process = self._new()

    def start(self) -> None:
        self._process.start()

    @property
    def runs(self) -> bool:
        return self._process.running

    @property
    def all_restarts(self) -> int:
        return self.restarts + self._process.restarts

    def again(self) -> None:
        """Somebody asks: an ingest that ended for good is started again, one that runs reads its file again."""
        with self._lock:
            if self._stopping:
                return
            if self.ended is None:
                self._process.reload()
                return
            self.restarts, self.ended = self.all_restarts + 1, None
            self._process = self._new()
            self._process.start()

    def replace(self, member: Member) -> None:
        """Stops the ingest and starts it with `member`. Blocks until it has stopped."""
        self._process.stop(timeout_seconds=self.member.stop_seconds + _KILL_SECONDS)
        with self._lock:
            if self._stopping:
                return
            self.restarts, self.ended, self.member = self.all_restarts + 1, None, member
            self._process = self._new()
            self._process.start()

    def terminate(self) -> None:
        with self._lock:
            self._stopping = True
            self._process.terminate()

    def stop(self) -> None:
        """Returns when the ingest has ended."""
        self.terminate()
        self._process.stop(timeout_seconds=self.member.stop_seconds + _KILL_SECONDS)

    @property
    def last_code(self) -> int:
        """With which the newest ingest ended, 0 when none did."""
        return self._process.last_code or 0

    def status(self) -> dict[str, Any]:
        """For the status of the fleet. Asks the process."""
        said = ask_json(self.socket, "/status") if self.runs else None
        row: dict[str, Any] = {
            "pipeline": self.member.name,
            "config": self.member.config,
            "state": "unknown",
            "headline": _NO_STATUS,
            "problems": [],
            "tables": None,
            "complete_through_lsn": None,
            "lag_seconds": None,
            "configuration_refused": self.refused or None,
            "ingest": {"running": self.runs, "restarts": self.all_restarts, "exit_code": self.ended},
        }
        if said is not None:
            tables = said.get("tables", [])
            lags = [table["lag_seconds"] for table in tables if table.get("lag_seconds") is not None]
            row |= {name: said[name] for name in ("state", "headline", "problems") if name in said}
            row |= {
                "tables": len(tables),
                "complete_through_lsn": said.get("apply", {}).get("complete_through_lsn"),
                "lag_seconds": max(lags, default=None),
            }
        elif self.ended is not None:
            why = _ENDED.get(self.ended, "somebody must act")
            row["state"] = "lost" if self.ended == 7 else "stopped"
            row["headline"] = (
                f"ingest ended with exit code {self.ended}: {why}; the log says more; send SIGHUP to retry"
            )
        elif not self.runs:
            row["state"] = "stopped"
            row["headline"] = f"ingest ended with exit code {self.last_code}, and is started again"
        return row

    def _new(self) -> ChildProcess:
        return ChildProcess(
            [*self.member.arguments, "--listen", f"{UNIX}{self.socket}"],
            on_end=self._on_end,
            policy=RestartPolicy(lease_seconds=0.0),
            part=f"ingest of {self.member.name}",
            passing=PASSING,
            launch=self.launch,
        )

    def _on_end(self, code: int) -> None:
        self.ended = code

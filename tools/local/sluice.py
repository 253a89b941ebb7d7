"""One Sluice pipeline below a folder: its configuration file, its commands, its processes.

Uses the command line and nothing else, as any user would. Invariant: a process started here leads a
process group of its own, so that stopping or killing it reaches its children too and nobody else;
and it does not outlive its owner.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import yaml

from tools.local.binaries import MAJOR_VARIABLE
from tools.local.guard import Guard
from tools.local.ports import free_port

_STOP_DEADLINE_SECONDS = 60.0
_LEAVE_DEADLINE_SECONDS = 10.0
_QUESTION_DEADLINE_SECONDS = 180.0


class Pipeline:
    """`name` below `directory`: `sluice.yaml`, `spool`, `lake` and logs. `spool_uri` and `lake_uri`
    may lie elsewhere.

    `settings` are merged over the file's own, section by section.
    """

    def __init__(
        self,
        directory: Path,
        *,
        name: str,
        dsn: str,
        spool_uri: str = "",
        lake_uri: str = "",
        settings: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.directory = directory.resolve()
        self.name = name
        self.config = self.directory / "sluice.yaml"
        self.spool_uri = spool_uri or (self.directory / "spool").as_uri()
        self.lake_uri = lake_uri or (self.directory / "lake").as_uri()
        sections: dict[str, dict[str, Any]] = {
            "source": {"dsn": dsn},
            "spool": {"uri": self.spool_uri},
            "lake": {"uri": self.lake_uri},
            "telemetry": {"listen": f"127.0.0.1:{free_port()}", "apply_listen": "127.0.0.1:0"},
        }
        for section, values in (settings or {}).items():
            sections.setdefault(section, {}).update(values)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.config.write_text(yaml.safe_dump({"version": 1, "pipeline": name, **sections}, sort_keys=False))

    @property
    def own_spool(self) -> Path:
        """This pipeline's prefix in a local spool."""
        return self.directory / "spool" / self.name

    def start(self, *arguments: str, environment: Mapping[str, str] | None = None) -> "SluiceProcess":
        """`sluice <arguments>` in the background; its output is appended to `<first argument>.log`."""
        return SluiceProcess(
            self._command(arguments), log=self.directory / f"{arguments[0]}.log", environment=_environment(environment)
        )

    def run(
        self, *arguments: str, environment: Mapping[str, str] | None = None, timeout: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """`sluice <arguments>` to its end, whatever its status. What it said is also appended to
        `answers.log`.
        """
        done = subprocess.run(
            self._command(arguments),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
            env=_environment(environment),
        )
        with (self.directory / "answers.log").open("a", encoding="utf-8") as log:
            log.write(f"$ sluice {' '.join(arguments)}\n{done.stdout}{done.stderr}")
        return done

    def tables(self) -> list[dict[str, Any]]:
        """What `sluice tables --json` says; empty while it cannot say anything."""
        outcome = self.run("tables", "--json", timeout=_QUESTION_DEADLINE_SECONDS)
        if outcome.returncode != 0:
            return []
        tables: list[dict[str, Any]] = json.loads(outcome.stdout)["tables"]
        return tables

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        # The command of this very environment, whatever PATH says.
        return [os.fspath(Path(sys.executable).with_name("sluice")), *arguments, "-c", os.fspath(self.config)]


def _environment(added: Mapping[str, str] | None) -> dict[str, str]:
    """Ours, without the choice of a local server: Sluice refuses variables of its own prefix that
    are no settings.
    """
    ours = {
        name: value
        for name, value in os.environ.items()
        if name != MAJOR_VARIABLE and not name.startswith("SLUICE_POSTGRES_")
    }
    return {**ours, **(added or {})}


class SluiceProcess:
    """A running command. Its part of `log` begins at byte `log_start`. Leaving it as a context
    manager stops it.
    """

    def __init__(self, command: list[str], *, log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        with log.open("ab") as output:
            self.log_start = output.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=dict(environment),
            )
        self._guard = Guard(-self._process.pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status, None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float) -> int:
        """The exit status. Raises subprocess.TimeoutExpired."""
        status = self._process.wait(timeout)
        self._guard.dismiss()
        return status

    def stop(self) -> int:
        """SIGTERM, which drains; if that takes too long a second one, which exits at once; then
        force.
        """
        for patience in (_STOP_DEADLINE_SECONDS, _LEAVE_DEADLINE_SECONDS):
            if self.status is None:
                self._process.terminate()
                try:
                    return self.wait(patience)
                except subprocess.TimeoutExpired:
                    continue
        return self.kill()

    def kill(self) -> int:
        """kill -9 for the process and its children."""
        if self.status is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        return self.wait(_LEAVE_DEADLINE_SECONDS)

    def kill_alone(self) -> int:
        """kill -9 for the process, its children live on for as long as they like."""
        if self.status is None:
            self._process.kill()
        return self.wait(_LEAVE_DEADLINE_SECONDS)

    def log_tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

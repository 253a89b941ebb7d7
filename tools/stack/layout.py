"""Where the local stack keeps what it makes, and on which ports it listens.

Invariant: everything lies below one folder that carries our mark, save PostgreSQL's data where the
folder is closed to the account that it runs as; then the mark says where they are. Ports stay what
they were at the first start until others are asked for.
"""

import fcntl
import hashlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tools.local.binaries import LocalServerError, helper_account
from tools.stack.processes import Daemon

PORTS: Mapping[str, int] = {
    "PG_PORT": 15432,
    "S3_PORT": 19000,
    "METRICS_PORT": 9187,
    "APPLY_METRICS_PORT": 9188,
    "PROMETHEUS_PORT": 19090,
}
"""The variables that choose ports, and what they are without."""
_MARK = "stack.json"
_HIGHEST = 65535
_OUTSIDE = Path("/var/tmp")  # noqa: S108  whose it is, is looked at


class Layout:
    """The stack below `directory`, which need not exist yet. Variables in `asked` named as in PORTS
    override its ports.
    """

    def __init__(self, directory: Path, *, asked: Mapping[str, str]) -> None:
        self.directory = directory.resolve()
        self._mark = self.directory / _MARK
        noted = json.loads(self._mark.read_text()) if self._mark.exists() else {}
        self.noted_ports: dict[str, int] = noted.get("ports", {})
        """Those of the last start."""
        self.ports: dict[str, int] = {**PORTS, **self.noted_ports, **_chosen(asked)}
        self._postgres_home: str | None = noted.get("postgres_home")
        if len(set(self.ports.values())) < len(self.ports):
            raise LocalServerError(
                "two members of the stack have the same port: "
                + " ".join(f"{name}={port}" for name, port in self.ports.items())
            )

    @property
    def exists(self) -> bool:
        return self._mark.exists()

    @property
    def postgres_home(self) -> Path:
        """The folder of PostgreSQL's data, below ours where its account can get there."""
        return Path(self._postgres_home) if self._postgres_home else self.directory / "postgres"

    @property
    def data(self) -> tuple[Path, ...]:
        """What is lost with the stack."""
        return (self.postgres_home, self.directory / "s3", self.directory / "prometheus")

    def daemon(self, name: str) -> Daemon:
        return Daemon(self.directory / "run" / f"{name}.pid", log=self.directory / "logs" / f"{name}.log")

    def establish(self) -> None:
        """Makes the folder and its mark. Raises LocalServerError for a folder with somebody else's
        things in it.
        """
        if (
            not self.exists
            and self.directory.exists()
            and any(path.name != "lock" for path in self.directory.iterdir())
        ):
            raise LocalServerError(
                f"{self.directory} is not empty and not a stack's: choose another folder with STACK=..."
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        if self._postgres_home is None:
            self._postgres_home = str(_postgres_home(self.directory))
        part = self._mark.with_suffix(".part")
        part.write_text(json.dumps({"ports": self.ports, "postgres_home": self._postgres_home}, indent=2))
        part.replace(self._mark)

    def remove(self) -> None:
        """Deletes all of it."""
        for folder in (self.postgres_home, self.directory):
            if folder.exists():
                shutil.rmtree(folder)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps other commands that change the stack away. Raises LocalServerError when one is at
        work.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LocalServerError(
                    f"another command is changing the stack in {self.directory}: wait for it"
                ) from None
            yield


def require_free(name: str, port: int) -> None:
    """Raises LocalServerError, naming the variable, when somebody listens on the port already."""
    with socket.socket() as probe:
        # As servers do it: what is left of connections that ended a moment ago is in nobody's way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise LocalServerError(
                f"port {port} of 127.0.0.1 cannot be had ({error.strerror}): free it, or choose another with {name}=..."
            ) from None


def _chosen(asked: Mapping[str, str]) -> dict[str, int]:
    chosen = {}
    for name in PORTS:
        text = asked.get(name, "")
        if not text:
            continue
        if not text.isdigit() or not 0 < int(text) <= _HIGHEST:
            raise LocalServerError(f"{name} must be a port from 1 to {_HIGHEST}")
        chosen[name] = int(text)
    return chosen


def _postgres_home(directory: Path) -> Path:
    """Below `directory`, or in /var/tmp where PostgreSQL's account cannot enter `directory`, as in
    a home of root.
    """
    account = helper_account()
    inside = directory / "postgres"
    if account is None:
        return inside
    entered = subprocess.run(
        ["/bin/sh", "-c", 'cd -- "$1"', "sh", str(directory)],
        user=account.pw_uid,
        group=account.pw_gid,
        extra_groups=[],
        capture_output=True,
        cwd="/",
        check=False,
    )
    if entered.returncode == 0:
        return inside
    outside = _OUTSIDE / f"sluice-stack-{hashlib.sha256(os.fsencode(directory)).hexdigest()[:12]}"
    outside.mkdir(mode=0o755, exist_ok=True)
    if outside.is_symlink() or outside.stat().st_uid != os.geteuid():
        raise LocalServerError(
            f"{outside} belongs to somebody else: put the stack into a folder that {account.pw_name} "
            "can enter, with STACK=..."
        )
    return outside

"""A PostgreSQL server of our own on loopback: started, stopped, restarted and crashed by process
id.

Connections from loopback are trusted: the data is throw-away. Run by root, the server runs as an
unprivileged helper account, for PostgreSQL refuses root. (PostgreSQL: Server Setup and
Operation.)
"""

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import psycopg

from tools.local import binaries
from tools.local.binaries import LocalServerError, helper_account
from tools.local.child import Child, spawn
from tools.local.ports import free_port

StopMode = Literal["smart", "fast", "immediate"]

_SIGNALS: dict[StopMode, signal.Signals] = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_SHARED_MEMORY_SECONDS = 60.0
_STOP_DEADLINE_SECONDS = 120.0
_STATUS_LINE = 7
"""postmaster.pid line that says `ready`: the one pg_ctl waits for."""

DEFAULT_SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # socket paths are limited to 107 bytes, temporary folders are not
    "wal_level": "logical",
    "max_wal_senders": "40",
    "max_replication_slots": "80",
    "max_prepared_transactions": "20",
    "max_connections": "150",
    "log_min_messages": "warning",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
LANGUAGE_VARIABLE = "TEST_PG_LANGUAGE"
"""Names the language of all servers, such as de_DE, where their programs have translations."""
NOT_DURABLE: Mapping[str, str] = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "on"}
"""Survives the death of the server, not of the machine. synchronous_commit stays on: with it off a
commit is shown before its WAL is written.
"""


class PostgresServer:
    """One cluster in `data_dir` (made by the first start) on 127.0.0.1.

    `settings` are added to DEFAULT_SETTINGS; `durable` keeps fsync on. `log_path` is the server's
    log, beside `data_dir`.
    """

    def __init__(
        self,
        data_dir: Path | str,
        *,
        bin_dir: Path | str | None = None,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        durable: bool = False,
    ) -> None:
        self.data_dir = Path(data_dir).resolve()
        self.log_path = self.data_dir.with_name(self.data_dir.name + ".log")
        self.port = port or free_port()
        language = os.environ.get(LANGUAGE_VARIABLE)
        spoken = {"lc_messages": f"{language}.UTF-8"} if language else {}
        self.settings = {**DEFAULT_SETTINGS, **spoken, **({} if durable else NOT_DURABLE), **(settings or {})}
        self._bin_dir = binaries.usable(Path(bin_dir)) if bin_dir else binaries.bin_dir()
        self._account = helper_account()
        self._child = Child("PostgreSQL", last_signal=signal.SIGQUIT, log=self.log_path)

    @property
    def bin_dir(self) -> Path:
        """The folder of this server's programs (pg_recvlogical, pgbench, ...)."""
        return self._bin_dir

    @property
    def pid(self) -> int | None:
        """The postmaster's process id while it runs."""
        return self._child.pid

    def start(self) -> None:
        """Returns when connections are accepted. Does nothing when the server runs already."""
        if self.pid is not None:
            return
        self.initialise()
        deadline = time.monotonic() + _SHARED_MEMORY_SECONDS
        while True:
            try:
                self._child.start(self.command(), is_ready=self.is_ready, account=self._account)
                return
            except LocalServerError:
                # After a crash the old children may hold the shared memory for a moment longer.
                if time.monotonic() > deadline or "still in use" not in self._child.said():
                    raise
            time.sleep(0.1)

    def stop(self, mode: StopMode = "fast") -> None:
        """Returns when the server is gone. Does nothing when it does not run."""
        if self._child.stop(_SIGNALS[mode], patience_seconds=_STOP_DEADLINE_SECONDS):
            raise LocalServerError(
                f"PostgreSQL did not stop in {_STOP_DEADLINE_SECONDS:.0f} s in mode {mode}; it was stopped at once"
            )

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def crash(self) -> None:
        """Kills the postmaster as a power cut would; its children follow by themselves."""
        self._child.stop(signal.SIGKILL)

    def dsn(self, user: str = "postgres", dbname: str = "postgres") -> str:
        return f"postgresql://{quote(user, safe='')}@127.0.0.1:{self.port}/{quote(dbname, safe='')}"

    def superuser(self, dbname: str = "postgres") -> psycopg.Connection:
        """A new autocommit connection as `postgres`; the caller closes it."""
        return psycopg.connect(self.dsn(dbname=dbname), autocommit=True)

    def initialise(self) -> None:
        """Makes the cluster unless it is there."""
        if self.data_dir.exists() and any(self.data_dir.iterdir()):
            return
        # Under another name until it is whole: what an interrupted initdb leaves must not pass for
        # a cluster.
        part = self.data_dir.with_name(self.data_dir.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(mode=0o700, parents=True)
        if self._account is not None:
            os.chown(part, self._account.pw_uid, self._account.pw_gid)
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"]
        command = [str(self._bin_dir / "initdb"), "-D", str(part), *options]
        if spawn(command, log=self.log_path, account=self._account).wait() != 0:
            raise LocalServerError(
                f"initdb failed, see {self.log_path}: {self._child.said()[-400:]}"
                + (
                    f" (every folder above must be open to the account {self._account.pw_name})"
                    if self._account
                    else ""
                )
            )
        part.replace(self.data_dir)

    def command(self) -> list[str]:
        """What runs the server in the foreground, as the account that `binaries.helper_account`
        names.
        """
        command = [str(self._bin_dir / "postgres"), "-D", str(self.data_dir), "-p", str(self.port)]
        for name, value in self.settings.items():
            command += ["-c", f"{name}={value}"]
        return command

    def is_ready(self, pid: int) -> bool:
        """Whether the postmaster `pid` serves this cluster and accepts connections."""
        try:
            lines = (self.data_dir / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) > _STATUS_LINE and lines[0].strip() == str(pid) and lines[_STATUS_LINE].strip() == "ready"


@contextlib.contextmanager
def temporary_server(
    *,
    major: int | None = None,
    bin_dir: Path | None = None,
    settings: Mapping[str, str] | None = None,
    durable: bool = False,
    start: bool = True,
) -> Iterator[PostgresServer]:
    """A server in a temporary folder that the helper account can reach; stopped and removed at the
    end. Its programs are those in `bin_dir`, else of `major`.
    """
    directory = Path(tempfile.mkdtemp(prefix="sluice-pg-"))
    account = helper_account()
    if account is not None:
        os.chown(directory, account.pw_uid, account.pw_gid)
    try:
        server = PostgresServer(
            directory / "data",
            bin_dir=bin_dir or (binaries.bin_dir(major) if major else None),
            settings=settings,
            durable=durable,
        )
        try:
            if start:
                server.start()
            yield server
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(directory, ignore_errors=True)

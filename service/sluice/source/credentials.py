"""What a connection proves itself with: read again, or made anew, for each one.

Invariants: what is read again changes who we are and what proves it, never which server and database
we mean. A secret is in no error of this module, and is hidden from the log before it is used. A
refusal after a connection that worked may be a rotation under way, and is tried again for a while.
(PostgreSQL: libpq, Connection Parameters; The Password File.)
"""

import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import structlog
from psycopg.conninfo import conninfo_to_dict

from sluice.errors import SourceError, SourceRefused, SourceUnavailable, UsageError
from sluice.telemetry import logs

COMMAND_SECONDS = 30.0
"""A cloud's command line that starts on a busy machine and asks its service takes seconds."""
PATIENCE_SECONDS = 120.0
"""As for the object store: a Secret that was changed takes about a minute to reach a pod's files."""
MAY_CHANGE = frozenset(
    {"user", "password", "passfile", "sslcert", "sslkey", "sslpassword", "sslrootcert", "sslcrl", "sslcrldir"}
)
"""The parameters of a connection string that a running process takes anew."""
_LONGEST_PASSWORD = 65_536
_POLL_SECONDS = 0.05


class Credentials:
    """For all connections of one process to one source. Thread-safe.

    `reread` returns the connection string as it is now, or raises UsageError. Then, and where libpq does not
    understand what it returns, the last one that could be read goes on being used. `command` is run without a
    shell for each connection; what it writes to stdout is the password.
    """

    def __init__(
        self,
        *,
        reread: Callable[[], str] | None = None,
        command: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reread = reread
        self._command = tuple(command)
        self._clock = clock
        self._lock = threading.Lock()
        self._last: dict[str, Any] | None = None
        self._refused_since: dict[bool, float | None] = {}

    def parameters(self, dsn: str, *, check: Callable[[], None]) -> dict[str, Any]:
        """The parameters of `dsn` with the credentials of this moment. `check` raises when nobody
        waits for them any more. Raises SourceError and UsageError.
        """
        given = self._current(dsn)
        require_same_place(parsed(dsn), given)
        if not self._command:
            return given
        if "password" in given:
            raise UsageError(
                "source.dsn holds a password, and source.password_command is given as well", hint="keep one of them"
            )
        given["password"] = _answer(self._command, check=check)
        return given

    def worked(self, *, replication: bool) -> None:
        """The server accepted a connection of this kind."""
        with self._lock:
            self._refused_since[replication] = None

    def judged(self, error: SourceRefused, *, replication: bool) -> SourceError:
        """`error` itself, or SourceUnavailable while connections of this kind, which worked before,
        have not been refused for longer than the patience.
        """
        now = self._clock()
        with self._lock:
            if replication not in self._refused_since:
                return error
            since = self._refused_since[replication]
            if since is None:
                since = self._refused_since[replication] = now
        if now - since >= PATIENCE_SECONDS:
            return error
        return SourceUnavailable(
            f"{error}; it worked before, so it is retried for {PATIENCE_SECONDS:.0f} s",
            hint=error.hint,
            reason="connect_failed",
        )

    def _current(self, dsn: str) -> dict[str, Any]:
        if self._reread is None:
            return parsed(dsn)
        try:
            found = parsed(self._reread())
        except UsageError as error:
            structlog.get_logger("source").warning("the credentials cannot be read again", error=error)
            with self._lock:
                return dict(self._last or parsed(dsn))
        with self._lock:
            self._last = found
        return dict(found)


def parsed(dsn: str) -> dict[str, Any]:
    """The parameters of a connection string. Raises UsageError."""
    try:
        return dict(conninfo_to_dict(dsn))
    except psycopg.Error:
        # Its text quotes the part it stumbled over, which may be the password.
        raise UsageError("source.dsn is not a connection string that libpq understands") from None


def require_same_place(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Raises UsageError when the two differ in more than credentials, and names in what."""
    before, after = _with_database(before), _with_database(after)
    differing = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    others = sorted(set(differing) - MAY_CHANGE)
    if others:
        raise UsageError(
            f"source.dsn was changed while the process runs, in {', '.join(others)}: only credentials may change",
            hint="restart the process, or restore the old value",
        )


def _with_database(given: dict[str, Any]) -> dict[str, Any]:
    """`given` with the database that is meant where none is named: libpq takes the user's name."""
    default = os.environ.get("PGDATABASE") or given.get("user")
    return {**given, "dbname": given.get("dbname") or default} if "service" not in given else given


def _answer(command: Sequence[str], *, check: Callable[[], None]) -> str:
    """What `command` writes to stdout. Neither its arguments nor anything it writes is repeated."""
    name = f"source.password_command ({Path(command[0]).name})"
    try:
        child = subprocess.Popen(  # noqa: S603 - an operator's own command, without a shell
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise SourceRefused(
            f"{name} cannot be run ({type(error).__name__})",
            hint="give a program that exists and may be executed, and each argument as an item of the list",
        ) from None
    with child:
        written = _written(child, name, check=check)
    if child.returncode != 0:
        ended = f"signal {-child.returncode}" if child.returncode < 0 else f"exit status {child.returncode}"
        raise SourceUnavailable(f"{name} ended with {ended}", hint=_BY_HAND, reason="connect_failed")
    return _password(written, name)


_BY_HAND = "run the command by hand, as the same user and in the same environment; it must print only the password"


def _written(child: "subprocess.Popen[bytes]", name: str, *, check: Callable[[], None]) -> bytes:
    deadline = time.monotonic() + COMMAND_SECONDS

    def wait() -> None:
        check()
        if time.monotonic() >= deadline:
            raise SourceUnavailable(
                f"{name} did not end within {COMMAND_SECONDS:.0f} s", hint=_BY_HAND, reason="connect_failed"
            )

    try:
        written = b"".join(_printed(child, name, wait=wait))
        while child.poll() is None:
            wait()
            with suppress(subprocess.TimeoutExpired):
                child.wait(_POLL_SECONDS)
    except BaseException:
        # What it started in turn may hold its stdout, and ends with it.
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        raise
    return written


def _printed(child: "subprocess.Popen[bytes]", name: str, *, wait: Callable[[], None]) -> Iterator[bytes]:
    """What it prints, in parts, as long as it can be a password: a program that prints for ever fills no memory."""
    assert child.stdout is not None
    length = 0
    with selectors.DefaultSelector() as ready:
        ready.register(child.stdout, selectors.EVENT_READ)
        while length <= _LONGEST_PASSWORD:
            wait()
            if ready.select(_POLL_SECONDS):
                part = os.read(child.stdout.fileno(), _LONGEST_PASSWORD)
                if not part:
                    return
                length += len(part)
                yield part
    raise _no_password(name)


def _password(written: bytes, name: str) -> str:
    try:
        password = written.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        password = ""
    if not password or any(sign in password for sign in "\r\n\0"):
        raise _no_password(name)
    logs.hide(password)
    return password


def _no_password(name: str) -> SourceUnavailable:
    return SourceUnavailable(
        f"{name} did not print one line of text, which is the password", hint=_BY_HAND, reason="connect_failed"
    )

"""The life of a local server: started and waited for, stopped in order or by force.

Invariant: a server that was started here does not outlive its owner, and no other process is ever
touched.
"""

import pwd
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.local.binaries import LocalServerError
from tools.local.guard import Guard

_START_DEADLINE_SECONDS = 60.0
_POLL_SECONDS = 0.02


class Child:
    """One server process at a time. `name` is for people; `last_signal` is what it gets when its
    owner dies. Its output goes to `log`, which each start begins anew; None for nowhere.
    """

    def __init__(self, name: str, *, last_signal: signal.Signals, log: Path | None = None) -> None:
        self._name = name
        self._last_signal = last_signal
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: Guard | None = None

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(
        self,
        command: Sequence[str],
        *,
        is_ready: Callable[[int], bool],
        account: pwd.struct_passwd | None = None,
        directory: Path | str = "/",
    ) -> None:
        """Returns when `is_ready` says so of the process id. Raises LocalServerError if the server
        ends before, or takes too long; then it is gone.
        """
        process = self._process = spawn(command, log=self._log, account=account, directory=directory)
        self._guard = Guard(process.pid, self._last_signal)
        deadline = time.monotonic() + _START_DEADLINE_SECONDS
        while not is_ready(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                self.stop(self._last_signal)
                raise LocalServerError(f"{self._name} did not start{self._end_of_log()}")
            time.sleep(_POLL_SECONDS)

    def stop(self, number: signal.Signals, *, patience_seconds: float = 0.0) -> bool:
        """Sends the signal and returns when the server is gone. One that is not gone after
        `patience_seconds` (0: no limit) gets the last signal; returns whether that was so.
        """
        process = self._process
        if process is None:
            return False
        forced = False
        if process.poll() is None:
            process.send_signal(number)
        try:
            process.wait(patience_seconds or None)
        except subprocess.TimeoutExpired:
            forced = True
            process.send_signal(self._last_signal)
            process.wait(patience_seconds)
        finally:
            self._process = None
            if self._guard is not None:
                self._guard.dismiss()
                self._guard = None
        return forced

    def said(self) -> str:
        """What it wrote, and what the children of the one before wrote since."""
        try:
            return self._log.read_text(errors="replace") if self._log is not None else ""
        except OSError:
            return ""

    def _end_of_log(self) -> str:
        return f", see {self._log}: {self.said()[-400:]}" if self._log is not None else ""


def spawn(
    command: Sequence[str], *, log: Path | None, account: pwd.struct_passwd | None, directory: Path | str = "/"
) -> subprocess.Popen[bytes]:
    """Starts `command` as `account` in a session of its own: Ctrl-C at a terminal reaches the owner,
    who then stops it in order.
    """
    if log is not None:
        log.write_bytes(b"")
    # Children of a server that was killed may still write: each appends, so that nobody writes over another one's text.
    with (log or Path("/dev/null")).open("ab") as output:
        return subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=directory,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )

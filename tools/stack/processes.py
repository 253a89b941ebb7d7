"""Processes that live on when the command that started them has ended, each known by a file.

Invariant: the number in the file is trusted only together with the time at which that process
started and the boot of the machine it belongs to, and a signal goes through a handle on the very
process (pidfd) that was compared: a number that the kernel has given to somebody else is never
signalled. Linux only. (proc(5), pidfd_open(2).)
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.local.binaries import helper_account

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_STATE, _SESSION, _START = 0, 3, 19
"""Fields of /proc/<pid>/stat behind the name in parentheses."""
_ENDED = ("Z", "X")
_CHILDREN_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Process:
    """One process of this machine, distinct from all that had or will have its number."""

    pid: int
    started: str


@dataclass(frozen=True, slots=True)
class Launch:
    """What to run. `as_helper` runs it as the account that servers get which refuse root."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    as_helper: bool = False


@dataclass(frozen=True, slots=True)
class Stopped:
    """How a process ended; `forced` if it had to be killed."""

    pid: int
    seconds: float
    forced: bool


class Daemon:
    """The process that the file `record` names, if it still runs. Its output is appended to `log`."""

    def __init__(self, record: Path, *, log: Path) -> None:
        self._record = record
        self.log = log

    @property
    def process(self) -> Process | None:
        """The process while it runs, None otherwise."""
        known = self.last
        return known if known is not None and started(known.pid) == known.started else None

    @property
    def last(self) -> Process | None:
        """The process that was started last, gone or not."""
        try:
            noted = json.loads(self._record.read_text())
        except FileNotFoundError:
            return None
        return Process(noted["pid"], noted["started"])

    def start(self, launch: Launch) -> None:
        """Must not be called while it runs."""
        account = helper_account() if launch.as_helper else None
        for folder in (self._record.parent, self.log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            child = subprocess.Popen(
                list(launch.command),
                env=dict(launch.environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                # Ctrl-C at the terminal must not reach it, and its children can be found by its
                # session.
                start_new_session=True,
                user=account.pw_uid if account else None,
                group=account.pw_gid if account else None,
                extra_groups=[] if account else None,
            )
        # Nobody of ours waits for it: it outlives this command, and who it is stands in the record.
        child.returncode = 0
        part = self._record.with_suffix(".part")
        part.write_text(json.dumps({"pid": child.pid, "started": started(child.pid) or "ended at once"}))
        part.replace(self._record)

    def stop(self, steps: Sequence[tuple[signal.Signals, float]]) -> Stopped | None:
        """Sends each signal and waits its seconds, SIGKILL after the last; then its children. None
        when it did not run. Forgets it either way.
        """
        process = self.process
        outcome = None
        if process is not None:
            children = _session(process.pid)
            outcome = _stop(process, steps)
            for child in children:
                _stop(child, (), patience=0.0 if outcome.forced else _CHILDREN_SECONDS)
        self._record.unlink(missing_ok=True)
        return outcome

    def log_tail(self, lines: int = 15) -> str:
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""


def started(pid: int) -> str | None:
    """When the process with this number started, None when there is none; one that waits for its
    parent to notice its end is none.
    """
    fields = _stat(pid)
    if fields is None or fields[_STATE] in _ENDED:
        return None
    return f"{_BOOT.read_text().strip()} {fields[_START]}"


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _session(leader: int) -> list[Process]:
    """The other processes of the session that `leader` leads."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        fields = _stat(pid)
        since = started(pid)
        if pid != leader and fields is not None and since is not None and fields[_SESSION] == str(leader):
            found.append(Process(pid, since))
    return found


def _stop(process: Process, steps: Sequence[tuple[signal.Signals, float]], *, patience: float = 0.0) -> Stopped:
    """Waits `patience`, then takes the steps, then kills."""
    began = time.monotonic()
    forced = False
    with _held(process) as handle:
        if handle is not None and not _ends(handle, patience):
            for number, seconds in steps:
                _send(handle, number)
                if _ends(handle, seconds):
                    break
            else:
                forced = True
                _send(handle, signal.SIGKILL)
                _ends(handle, None)
    return Stopped(process.pid, time.monotonic() - began, forced)


@contextlib.contextmanager
def _held(process: Process) -> Iterator[int | None]:
    """A handle on exactly this process, None when it is gone."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield handle if started(process.pid) == process.started else None
    finally:
        os.close(handle)


def _send(handle: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, number)


def _ends(handle: int, seconds: float | None) -> bool:
    waiter = select.poll()
    waiter.register(handle, select.POLLIN)
    return bool(waiter.poll(None if seconds is None else seconds * 1000))

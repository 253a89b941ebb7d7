"""A part of Sluice as a child process, such as the applier of `up`: started, watched, started again
after what may pass, stopped with us.

Invariant: at most one child at a time, and none outlives this process or `stop`. A child that ended
with a code of `passing` (75 asks for another try) or was killed by a signal is started again, for
replay is safe; any other end is final and handed to `on_end`. Knows nothing of what the child does:
it sees a command and an exit status.
"""

import ctypes
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Protocol

import structlog

from sluice.backoff import Backoff
from sluice.errors import ApplyError, WriterFenced
from sluice.health.facts import ChildSeen

STEADY_SECONDS = 300.0
"""A child that ran this long begins again at the first pause."""
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """`pauses_seconds` before the next start, the last one repeating. A killed applier leaves its
    lease behind until it runs out: for `lease_seconds` after our own start and after each kill,
    "another applier" (exit 8) is taken to mean our last one, and tried again.
    """

    pauses_seconds: Sequence[float] = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
    lease_seconds: float = 60.0


class Child(Protocol):
    """One child, as `subprocess.Popen` shows one."""

    @property
    def pid(self) -> int: ...

    @property
    def stdin(self) -> IO[bytes] | None: ...

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...

    def send_signal(self, number: int, /) -> None: ...


Launch = Callable[[Sequence[str]], Child]
"""Starts a child with this command. Raises OSError."""


class ChildProcess:
    """Runs `command`, by `launch`, from `start` until `stop`. `on_end` is called at most once, from the watching
    thread, when a child ended for good unasked. `part` is what the child is called in the log. Each child
    reads what `feed` returns from its standard input, and again what it returns at `feed_again`.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        launch: Launch,
        on_end: Callable[[int], None],
        policy: RestartPolicy | None = None,
        part: str = "applier",
        passing: Collection[int] = (ApplyError.exit_code,),
        feed: Callable[[], bytes] | None = None,
    ) -> None:
        self._command = list(command)
        self._launch = launch
        self._on_end = on_end
        self._policy = policy or RestartPolicy()
        self._passing = frozenset(passing)
        self._feed = feed
        self._feeding = threading.Lock()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._thread = threading.Thread(target=self._watch, name="applier", daemon=True)
        self._logger = structlog.get_logger(part)
        self._started_at: float | None = None
        self.restarts = 0
        self.last_code: int | None = None
        """As a shell shows it, of the child that ended last."""

    @property
    def running(self) -> bool:
        child = self._child
        return child is not None and child.poll() is None

    def seen(self) -> ChildSeen:
        """For the verdict. An applier names itself after its host and process."""
        child = self._child
        prefix = f"{socket.gethostname()}/{child.pid}/" if child is not None else ""
        return ChildSeen(self.running, self.restarts, prefix, self._started_at)

    def start(self) -> None:
        self._thread.start()

    def reload(self) -> None:
        """Sends SIGHUP to the child that there is."""
        with self._lock:
            if self._child is not None and not self._stopping.is_set():
                self._child.send_signal(signal.SIGHUP)

    def feed_again(self) -> None:
        """The child that there is reads what `feed` returns now. Blocks until it has taken it, or ended."""
        with self._lock:
            child = self._child
        if child is not None:
            self._write(child)

    def terminate(self) -> None:
        """Asks the child to finish, and starts no other. Asks once: to the child a second request
        means to exit at once.
        """
        if not self._stopping.is_set():
            self._signal(signal.SIGTERM)

    def stop(self, *, timeout_seconds: float) -> None:
        """As `terminate`, and returns when the child has ended; kills it when that takes too long,
        which is safe.
        """
        self.terminate()
        if self._thread.ident is None:
            return  # it was never started
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            self._logger.warning("a process did not stop in time, killing it", timeout_seconds=timeout_seconds)
            self._signal(signal.SIGKILL)
            self._thread.join()

    def _signal(self, number: signal.Signals) -> None:
        self._stopping.set()
        with self._lock:
            if self._child is not None:
                self._child.send_signal(number)

    def _watch(self) -> None:
        backoff, forgiving_until = Backoff(self._policy.pauses_seconds), time.monotonic() + self._policy.lease_seconds
        while True:
            started = time.monotonic()
            code = self._run()
            self.last_code = shell_status(code)
            if self._stopping.is_set():
                self._logger.info("the process stopped", exit_status=shell_status(code))
                return
            if code < 0:
                forgiving_until = time.monotonic() + self._policy.lease_seconds
            if not self._may_pass(code, forgiving=time.monotonic() < forgiving_until):
                self._on_end(code)
                return
            if time.monotonic() - started > STEADY_SECONDS:
                backoff.reset()
            pause = backoff.next()
            self._logger.warning(
                "the process ended, restarting it", exit_status=shell_status(code), pause_seconds=pause
            )
            if self._stopping.wait(pause):
                return
            self.restarts += 1

    def _run(self) -> int:
        """One child from start to end; one that cannot be started is one that asks for another try."""
        with self._lock:
            if self._stopping.is_set():
                return 0
            try:
                self._child = child = self._launch(self._command)
            except OSError as error:
                self._logger.error("a process cannot be started", error=str(error))
                return ApplyError.exit_code
            self._started_at = time.time()
        self._write(child)
        try:
            return child.wait()
        finally:
            if child.stdin is not None:
                with suppress(OSError):
                    child.stdin.close()

    def _write(self, child: Child) -> None:
        """One document at a time. A child that ends meanwhile is noticed where it is waited for."""
        if self._feed is None or child.stdin is None:
            return
        with self._feeding, suppress(OSError, ValueError):
            child.stdin.write(self._feed())
            child.stdin.flush()

    def _may_pass(self, code: int, *, forgiving: bool) -> bool:
        return code < 0 or code in self._passing or (forgiving and code == WriterFenced.exit_code)


def executing(environment: Mapping[str, str], *, fed: bool = False) -> Launch:
    """Starts programs. Their standard output joins our logs, because ours carries data."""

    def launch(command: Sequence[str]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(  # noqa: S603 - our own command
            list(command),
            env=dict(environment),
            stdin=subprocess.PIPE if fed else subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            # A session of its own: Ctrl-C in a terminal reaches us alone, and we stop the child in good order.
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - one system call, nothing that could wait for a lock
        )

    return launch


def shell_status(code: int) -> int:
    """An exit code as a shell shows it: 128 and the number for a signal."""
    return code if code >= 0 else 128 - code


def end_with_parent() -> None:
    """In the child before it runs: the kernel sends SIGTERM when the thread that started it is
    gone, kill -9 of this process included. Does nothing where the kernel is not Linux.
    """
    if _LIBC is None:
        return
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def name_process(name: str) -> None:
    """What `ps -o comm` and `top` show for this process: the first 15 bytes. Does nothing where the kernel is not
    Linux.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_NAME, name.encode())

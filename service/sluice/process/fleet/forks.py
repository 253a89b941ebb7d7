"""Children that are forks of one process that has loaded the code: what all of them have loaded is in memory once,
and a start costs no imports. An ingest alone has 50 MB of its own after its imports.

Invariants: the process that forks (the forker) does nothing else, so nothing else of it is in a child: no lock, and
no thread but those of libraries that know of forks (allocators). It hands over each child as a file descriptor
(Linux: pidfd_open), since its number may be another process's once it has ended. A child outlives neither the forker
nor the process that asked for it. A child whose exit code is lost, because the forker was killed or does nothing any
more, counts as killed, once it has ended. Nobody waits for ever for a forker, and who has no room for another child
keeps those that there are.
"""

import errno
import gc
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from sluice import signals
from sluice.process.child_process import end_with_parent

_ARGUMENTS_BYTES, _ANSWER_BYTES = 1 << 16, 64
_CODE_BYTES = 2
ANSWER_SECONDS, CODE_SECONDS = 120.0, 10.0
"""How long the forker may take: to load the code and to fork, and to say the code of a child that has ended."""
_ASKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Forks:
    """Starts children through `command`, a program that calls `serve` with the file descriptor that is added to its
    arguments. It is started when the first child is asked for, and again when it has ended. All of them have the
    same `environment`.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command, self._environment = list(command), dict(environment)
        self._lock = threading.Lock()
        self._forker: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def launch(self, arguments: Sequence[str]) -> "Forked":
        """A child with these arguments. Raises OSError when there is no forker, or it cannot fork."""
        with self._lock:
            control = self._started()
            room = os.pipe()  # as many as a child has: without them here it would be lost
            try:
                try:
                    control.sendall(json.dumps(list(arguments)).encode())
                    if not _is_readable(control.fileno(), ANSWER_SECONDS):
                        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
                finally:
                    for descriptor in room:
                        os.close(descriptor)
                answer, handed, _, _ = socket.recv_fds(control, _ANSWER_BYTES, 2)
                said = json.loads(answer) if answer else {"error": errno.ECHILD}
                if "error" not in said:
                    named, code = handed
                    return Forked(said["pid"], named, code)
            except (OSError, ValueError) as error:
                self._drop()
                raise ChildProcessError("the process that forks does not answer") from error
            if not answer:
                self._drop()
        raise OSError(said["error"], os.strerror(said["error"]))

    def close(self) -> None:
        """Ends the forker, and the children that there are."""
        with self._lock:
            self._drop()

    def _started(self) -> socket.socket:
        if self._forker is None or self._control is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                try:
                    self._forker = subprocess.Popen(  # noqa: S603 - our own command
                        [*self._command, str(theirs.fileno())],
                        env=self._environment,
                        stdin=subprocess.DEVNULL,
                        stdout=sys.stderr.fileno(),
                        pass_fds=[theirs.fileno()],
                        start_new_session=True,
                    )
                except OSError:
                    ours.close()
                    raise
            self._control = ours
        return self._control

    def _drop(self) -> None:
        if self._forker is not None and self._control is not None:
            self._control.close()
            self._forker.kill()
            self._forker.wait()
        self._forker = self._control = None


class Forked:
    """A child, as `subprocess.Popen` shows one. `named` and `code` are file descriptors that it owns."""

    stdin = None

    def __init__(self, pid: int, named: int, code: int) -> None:
        self.pid, self._named, self._code = pid, named, code
        self._lock = threading.Lock()
        self._ended: int | None = None
        weakref.finalize(self, os.close, named)
        weakref.finalize(self, os.close, code)

    def poll(self) -> int | None:
        # The code follows the end, except while the forker is frozen: then `wait` says when it is given up.
        has_ended = self._ended is not None or all(_is_readable(one, 0.0) for one in (self._named, self._code))
        return self.wait() if has_ended else None

    def wait(self) -> int:
        _is_readable(self._named, None)
        with self._lock:
            if self._ended is None:
                code = os.read(self._code, _CODE_BYTES) if _is_readable(self._code, CODE_SECONDS) else b""
                self._ended = int.from_bytes(code, "big", signed=True) if code else -signal.SIGKILL
            return self._ended

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._named, number)


def possible() -> bool:
    """Whether this kernel names processes by file descriptors (Linux 5.3), and lets us, and Python knows how."""
    if not (hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal")):
        return False
    try:
        named = os.pidfd_open(os.getpid())
    except OSError:
        return False
    try:
        signal.pidfd_send_signal(named, 0)
    except OSError:
        return False
    finally:
        os.close(named)
    return True


class _Fork(NamedTuple):
    """`named` is its file descriptor; its exit code is said at `says`."""

    named: int
    pid: int
    says: int


def serve(control: int) -> list[str]:
    """Forks for whoever holds the other end of `control`, and returns in each child, with its arguments and with
    its signals armed. To be called in the main thread, once everything is imported; no other thread of ours may run.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _ASKED)
    gc.collect()
    gc.freeze()  # a collection would write to the pages of all these objects
    children: dict[int, _Fork] = {}
    with socket.socket(fileno=control) as connection, selectors.DefaultSelector() as ready:
        ready.register(connection, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is not connection:
                    ready.unregister(key.fileobj)
                    _end(children.pop(key.fd))
                    continue
                asked = connection.recv(_ARGUMENTS_BYTES)
                if not asked:
                    os._exit(0)  # whoever asked for them has ended; the kernel tells the children
                try:
                    child = _forked(connection, children)
                except OSError as error:
                    connection.send(json.dumps({"error": error.errno}).encode())
                    continue
                if child is None:
                    break
                children[child.named] = child
                ready.register(child.named, selectors.EVENT_READ)
            else:
                continue
            break
    arguments: list[str] = json.loads(asked)
    signals.arm()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ASKED)
    return arguments


def _forked(connection: socket.socket, children: Mapping[int, _Fork]) -> _Fork | None:
    """The new child; None in the child. Raises OSError when there is none."""
    forker, (code, says) = os.getpid(), os.pipe()
    pid = -1
    try:
        pid = os.fork()
        if not pid:
            _part_from(forker, (says, *children, *(child.says for child in children.values())))
            return None
        named = os.pidfd_open(pid)
        socket.send_fds(connection, [json.dumps({"pid": pid}).encode()], [named, code])
    except OSError:
        if pid > 0:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(says)
        raise
    finally:
        os.close(code)
    return _Fork(named, pid, says)


def _part_from(forker: int, descriptors: Iterable[int]) -> None:
    """In a child, which ends here if anything fails: no error of a child may continue as one of the forker."""
    try:
        end_with_parent()
        if os.getppid() != forker:
            os._exit(128 + signal.SIGTERM)
        os.setsid()
        for descriptor in descriptors:
            os.close(descriptor)
    except BaseException:  # noqa: BLE001
        os._exit(1)


def _end(child: _Fork) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
    with suppress(BrokenPipeError):
        os.write(child.says, code.to_bytes(_CODE_BYTES, "big", signed=True))
    os.close(child.says)
    os.close(child.named)


def _is_readable(descriptor: int, seconds: float | None) -> bool:
    ready = select.poll()  # which needs no file descriptor itself
    ready.register(descriptor, select.POLLIN)
    return bool(ready.poll(None if seconds is None else seconds * 1000))

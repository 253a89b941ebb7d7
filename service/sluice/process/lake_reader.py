"""The process that answers questions about the lake, as a child of the command that asks.

Invariant: none outlives this process. Keys of rows pass through its pipes and nowhere else. Knows
nothing of Spark: it sees a command, questions and answers.
"""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

import structlog

from sluice.contract.row_form import ANSWERS, LakeAnswer, LakeQuestion
from sluice.errors import ApplyError
from sluice.process.child_process import end_with_parent

SILENT_SECONDS = 1800.0
"""Without an answer or a sign that one is being made, on top of the wait for ingest. Each task of Spark that ends is a
sign: one takes minutes at most, and so do changes that are not applied yet, of which apply.max_memory is the limit.
How large a table is does not matter.
"""
SAID_SECONDS = 30.0
"""Between two lines of the log about an answer that is being made."""
_END_SECONDS, _END_AT_ONCE_SECONDS = 20.0, 2.0
"""For a process to end by itself; the second when nobody waits for its answer any more."""
_LOOK_SECONDS = 0.05

_log = structlog.get_logger("verify")


class LakeReader:
    """Asks the process that `start` starts, which begins with the first question and ends with `rest`: it
    takes memory. A context: the process ends with it.
    """

    def __init__(self, start: "Callable[[], LakeReaderProcess]", *, silent_seconds: float = SILENT_SECONDS) -> None:
        self._start = start
        self._silent_seconds = silent_seconds
        self._unanswered = False
        self._running: LakeReaderProcess | None = None
        # The kernel ends the process when the thread that started it ends, so that thread is ours: threads
        # that ask live for one table.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lake-reader")

    def ask(self, question: LakeQuestion) -> Callable[[], LakeAnswer]:
        """Asks at once; what is returned waits for the answer. It raises ApplyError when the process ended
        or was silent for too long, and the next question starts another. A question whose answer nobody took ends
        the process: its answer is never taken for that of another question.
        """
        if self._unanswered:
            self._end(at_once=True)
        if self._running is None:
            self._running = self._thread.submit(self._start).result()
        self._unanswered = True
        self._running.send(question)
        return partial(self._answer, self._running, question.wait_seconds + self._silent_seconds)

    def _answer(self, running: "LakeReaderProcess", seconds: float) -> LakeAnswer:
        try:
            answer = running.receive(seconds)
        except ApplyError:
            self._end(at_once=True)
            raise
        self._unanswered = False
        return answer

    def rest(self) -> None:
        """Ends the process until there is another question."""
        self._end(at_once=self._unanswered)

    def _end(self, *, at_once: bool) -> None:
        running, self._running, self._unanswered = self._running, None, False
        if running is not None:
            running.end(at_once=at_once)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(at_once=error is not None or self._unanswered)
        self._thread.shutdown()


class LakeReaderProcess:
    """Starts `command` at once, which takes seconds until its first answer, and ends with `end`."""

    def __init__(self, command: Sequence[str], *, environment: Mapping[str, str]) -> None:
        answers, theirs = os.pipe()
        try:
            self._child = subprocess.Popen(  # noqa: S603 - our own command
                list(command),
                env={**environment, ANSWERS: str(theirs)},
                stdin=subprocess.PIPE,
                stdout=sys.stderr.fileno(),
                pass_fds=(theirs,),
                start_new_session=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - one system call, nothing that could wait for a lock
            )
        finally:
            os.close(theirs)
        assert self._child.stdin is not None
        self._answers, self._questions, self._unsent = answers, self._child.stdin, b""
        os.set_blocking(self._questions.fileno(), False)

    def send(self, question: LakeQuestion) -> None:
        """What the pipe does not take at once, `receive` sends. A process that has ended is noticed there."""
        self._unsent = question.encode() + b"\n"
        self._send()

    def _send(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[os.write(self._questions.fileno(), self._unsent) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._unsent = b""

    def receive(self, seconds: float) -> LakeAnswer:
        """The answer to the question sent. Raises ApplyError when there is no sign of it for `seconds`, or the
        process has ended instead. An empty line is a sign, and a long wait with signs is logged.
        """
        line, began = bytearray(), time.monotonic()
        said = began
        while not line.endswith(b"\n"):
            unsent = [self._questions] if self._unsent else []
            ready, writable, _ = select.select([self._answers], unsent, [], seconds)
            if writable:
                self._send()
            elif not ready:
                raise ApplyError(
                    f"the process that reads the lake has neither answered nor made progress for {seconds:g}s",
                    hint="its log above says how far it got; is the object store of the lake reachable?",
                )
            if not ready:
                continue
            if not (some := os.read(self._answers, 1 << 20)):
                raise ApplyError(
                    f"the process that reads the lake ended {_how(self._child.wait())}",
                    hint="its log above says why; `sluice check` checks Java, Spark and the lake",
                )
            line += some if line else some.lstrip(b"\n")
            if not line and (now := time.monotonic()) - said >= SAID_SECONDS:
                _log.info("the lake is still being read", seconds=round(now - began))
                said = now
        return LakeAnswer.decode(bytes(line))

    def end(self, *, at_once: bool) -> None:
        """Waits for what it does to end, or with `at_once` does not. Java is another process of its group: none is
        left, whatever hangs, and whatever interrupts this.
        """
        deadline = time.monotonic() + (_END_AT_ONCE_SECONDS if at_once else _END_SECONDS)
        try:
            if at_once:
                self._signal(signal.SIGTERM)
            self._questions.close()
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(deadline - time.monotonic())
            while at_once and self._signal(0) and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)  # Java removes its folders
        finally:
            self._signal(signal.SIGKILL)
            self._child.wait()
            os.close(self._answers)

    def _signal(self, number: int) -> bool:
        """To the process and its children; whether there is one of them."""
        try:
            os.killpg(self._child.pid, number)
        except ProcessLookupError:
            return False
        return True


def _how(code: int) -> str:
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"

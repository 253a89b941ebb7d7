"""The process that answers questions about the lake, as a child of the command that asks.

Invariant: none outlives this process. Keys of rows pass through its pipes and nowhere else. Knows
nothing of Spark: it sees a command, questions and answers.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Self

from sluice.contract.row_form import ANSWERS, LakeAnswer, LakeQuestion
from sluice.errors import ApplyError
from sluice.process.applier_process import end_with_parent


class LakeReader:
    """Asks the process that `start` starts, which begins with the first question and ends with `rest`: it
    takes memory. A context: the process ends with it.
    """

    def __init__(self, start: "Callable[[], LakeReaderProcess]") -> None:
        self._start = start
        self._running: LakeReaderProcess | None = None
        # The kernel ends the process when the thread that started it ends, so that thread is ours: threads
        # that ask live for one table.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lake-reader")

    def ask(self, question: LakeQuestion) -> LakeAnswer:
        """Waits for the answer. Raises ApplyError when the process has ended instead; the next question starts
        another.
        """
        if self._running is None:
            self._running = self._thread.submit(self._start).result()
        try:
            return self._running.ask(question)
        except ApplyError:
            self.rest()
            raise

    def rest(self) -> None:
        """Ends the process until there is another question."""
        running, self._running = self._running, None
        if running is not None:
            running.__exit__(None, None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.__exit__(kind, error, trace)
        self._thread.shutdown()


class LakeReaderProcess:
    """Starts `command` at once, which takes seconds until its first answer. A context: the process
    ends with it.
    """

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
        self._answers = os.fdopen(answers, "rb")

    def ask(self, question: LakeQuestion) -> LakeAnswer:
        """Waits for the answer. Raises ApplyError when the process has ended instead."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(question.encode() + b"\n")
            self._child.stdin.flush()
            line = self._answers.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise ApplyError(
                f"the process that reads the lake ended {_how(self._child.wait())}",
                hint="its log above says why; `sluice check` looks at Java, Spark and the lake",
            )
        return LakeAnswer.decode(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._child.stdin is not None
        if error is not None:
            self._child.terminate()
        with suppress(BrokenPipeError):
            self._child.stdin.close()
        try:
            self._child.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._answers.close()


def _how(code: int) -> str:
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"

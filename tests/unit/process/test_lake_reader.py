"""The process that reads the lake, with a real child that answers as Spark's side does."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from sluice.contract.row_form import LakeQuestion
from sluice.errors import ApplyError
from sluice.process.lake_reader import LakeReader, LakeReaderProcess

_ANSWERING = """
import os, sys
from sluice.contract.row_form import ANSWERS, LakeAnswer
with os.fdopen(int(os.environ[ANSWERS]), "wb") as answers:
    for _ in sys.stdin.buffer:
        answers.write(LakeAnswer(delta_version=os.getpid()).encode() + b"\\n")
        answers.flush()
"""
_KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
_SILENT = "import sys; sys.stdin.read()"
_DEAF = """
import os, signal, sys
from sluice.contract.row_form import ANSWERS
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(int(os.environ[ANSWERS]), b"{")
signal.pause()
"""
_INTERRUPTED = """
import os, sys
from sluice.contract.row_form import LakeQuestion
from sluice.process.lake_reader import LakeReader, LakeReaderProcess
start = lambda: LakeReaderProcess([sys.executable, "-c", sys.argv[1]], environment=os.environ)
with LakeReader(start) as lake:
    answer_of = lake.ask(LakeQuestion("1", 1, 1, 1, 1, 6, False, 1.0, ()))
    print("asked", flush=True)
    answer_of()
"""
_QUESTION = LakeQuestion("1", 1, 1, 1, 1, 6, False, 1.0, ())


def _started(program: str) -> LakeReaderProcess:
    return LakeReaderProcess([sys.executable, "-c", program], environment=os.environ)


def _asked_in_a_thread_of_its_own(lake: LakeReader) -> int:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: lake.ask(_QUESTION)()).result().delta_version


def test_one_process_answers_threads_that_each_live_for_one_table() -> None:
    with LakeReader(lambda: _started(_ANSWERING)) as lake:
        assert len({_asked_in_a_thread_of_its_own(lake) for _ in range(5)}) == 1


def test_a_process_that_rested_is_started_again_for_every_thread() -> None:
    with LakeReader(lambda: _started(_ANSWERING)) as lake:
        for _ in range(2):
            assert _asked_in_a_thread_of_its_own(lake) == _asked_in_a_thread_of_its_own(lake)
            lake.rest()


def test_the_signal_that_ended_the_process_is_named() -> None:
    with LakeReader(lambda: _started(_KILLED)) as lake, pytest.raises(ApplyError, match="ended by SIGTERM"):
        lake.ask(_QUESTION)()


def test_an_answer_that_nobody_took_is_never_the_answer_to_another_question() -> None:
    with LakeReader(lambda: _started(_ANSWERING)) as lake:
        first = lake.ask(_QUESTION)().delta_version
        lake.ask(_QUESTION)  # the source side raised
        assert lake.ask(_QUESTION)().delta_version != first


def test_a_question_that_is_never_answered_ends_with_its_time_limit() -> None:
    with (
        LakeReader(lambda: _started(_SILENT), answer_seconds=0.1) as lake,
        pytest.raises(ApplyError, match="has not answered within"),
    ):
        lake.ask(_QUESTION)()


def test_an_interrupt_ends_the_wait_for_a_process_that_ignores_its_end() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED, _DEAF], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"asked\n"
        command.send_signal(signal.SIGINT)
        assert command.wait(timeout=20) == -signal.SIGINT

"""The process that reads the lake, with a real child that answers as Spark's side does."""

import os
import select
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from sluice.contract.row_form import LakeQuestion
from sluice.errors import ApplyError
from sluice.process import lake_reader
from sluice.process.lake_reader import LakeReader, LakeReaderProcess
from tests.support.extent import slow

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
_READS_NOTHING = "import signal; signal.pause()"
_SLOW = """
import os, sys, time
from sluice.contract.row_form import ANSWERS, LakeAnswer
with os.fdopen(int(os.environ[ANSWERS]), "wb", 0) as answers:
    for _ in sys.stdin.buffer:
        for _ in range(12):
            time.sleep(0.25)
            answers.write(b"\\n")
        answers.write(LakeAnswer(delta_version=7).encode() + b"\\n\\n")
"""
_WITH_A_CHILD = """
import os, signal, subprocess, sys
from sluice.contract.row_form import ANSWERS, LakeAnswer
deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
child = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
child.stdout.readline()
os.write(int(os.environ[ANSWERS]), LakeAnswer(delta_version=child.pid).encode() + b"\\n")
sys.stdin.read()
"""
_INTERRUPTED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may ignore it
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


def _lake(program: str, **options: float) -> LakeReader:
    return LakeReader(lambda: _started(program), **options)


def _asked_in_a_thread_of_its_own(lake: LakeReader) -> int:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: lake.ask(_QUESTION)()).result().delta_version


def test_one_process_answers_threads_that_each_live_for_one_table() -> None:
    with _lake(_ANSWERING) as lake:
        assert len({_asked_in_a_thread_of_its_own(lake) for _ in range(5)}) == 1


def test_a_process_that_rested_is_started_again_for_every_thread() -> None:
    with _lake(_ANSWERING) as lake:
        for _ in range(2):
            assert _asked_in_a_thread_of_its_own(lake) == _asked_in_a_thread_of_its_own(lake)
            lake.rest()


def test_the_signal_that_ended_the_process_is_named() -> None:
    with _lake(_KILLED) as lake, pytest.raises(ApplyError, match="ended by SIGTERM"):
        lake.ask(_QUESTION)()


def test_an_answer_that_nobody_took_is_never_the_answer_to_another_question() -> None:
    with _lake(_ANSWERING) as lake:
        first = lake.ask(_QUESTION)().delta_version
        lake.ask(_QUESTION)  # the source side raised
        assert lake.ask(_QUESTION)().delta_version != first


def test_a_question_that_is_never_answered_ends_with_its_time_limit() -> None:
    late = pytest.raises(ApplyError, match=r"neither answered nor made progress for 1\.1s")
    with _lake(_SILENT, silent_seconds=0.1) as lake, late:
        lake.ask(_QUESTION)()


def test_a_question_that_no_pipe_takes_at_once_is_answered_or_ends_with_the_time_limit() -> None:
    large = replace(_QUESTION, ranges=tuple(range(1 << 16)))
    assert len(large.encode()) > 1 << 18
    with _lake(_ANSWERING) as lake:
        assert lake.ask(large)().delta_version == lake.ask(large)().delta_version > 0
    late = pytest.raises(ApplyError, match="neither answered nor made progress")
    with _lake(_READS_NOTHING, silent_seconds=0.1) as lake, late:
        lake.ask(large)()


def test_an_answer_takes_as_long_as_there_are_signs_of_it() -> None:
    with _lake(_SLOW, silent_seconds=1.5) as lake:
        for _ in range(2):
            assert lake.ask(_QUESTION)().delta_version == 7


@pytest.mark.parametrize("unanswered", [False, True])
def test_no_process_that_it_started_outlives_it(unanswered: bool) -> None:
    with _lake(_WITH_A_CHILD) as lake:
        child = os.pidfd_open(lake.ask(_QUESTION)().delta_version)
        if unanswered:
            lake.ask(_QUESTION)
    ended, _, _ = select.select([child], [], [], 10)
    os.close(child)
    assert ended, "a process that was killed takes a moment to end, and no more"


def test_an_interrupt_ends_the_wait_for_a_process_that_ignores_its_end() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED, _DEAF], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as command:
        assert command.stdout is not None
        assert command.stdout.readline() == b"asked\n"
        command.send_signal(signal.SIGINT)
        assert command.wait(timeout=20) == -signal.SIGINT


@slow
def test_a_long_wait_for_an_answer_that_is_being_made_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_reader, "SAID_SECONDS", 1.0)
    with capture_logs() as said, _lake(_SLOW) as lake:
        assert lake.ask(_QUESTION)().delta_version == 7
    assert {one["event"] for one in said} == {"the lake is still being read"}
    seconds = [one["seconds"] for one in said]
    assert 1 <= len(seconds) <= 4
    assert seconds == sorted(seconds)

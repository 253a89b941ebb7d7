"""The process that reads the lake, with a real child that answers as Spark's side does."""

import os
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
_QUESTION = LakeQuestion("1", 1, 1, 1, 1, 6, False, 1.0, ())


def _started(program: str) -> LakeReaderProcess:
    return LakeReaderProcess([sys.executable, "-c", program], environment=os.environ)


def _asked_in_a_thread_of_its_own(lake: LakeReader) -> int:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lake.ask, _QUESTION).result().delta_version


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
        lake.ask(_QUESTION)

"""The process that answers questions about the lake: `python -m sluice_spark.verify`.

It takes the applier's options as the applier does. A question is a line on standard input, its answer
a line on the file descriptor that ANSWERS names; both hold keys of rows at most, and neither is
logged. Empty lines beside the answers are signs that one is being made. Ends when standard input does.
"""

import os
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

import structlog
from pyspark.sql import SparkSession

from sluice import streams
from sluice.contract.row_form import ANSWERS, LakeAnswer, LakeQuestion
from sluice.errors import ApplyError, ServiceError, UnsupportedChange
from sluice.store.opening import open_store
from sluice.telemetry.crash import leave_no_values_behind
from sluice_spark import session
from sluice_spark.cli import configure_logging, read_options
from sluice_spark.verify.lake_side import LakeSide
from sluice_spark.verify.version import WaitedOut

SIGN_SECONDS = 10.0
_log = structlog.get_logger("sluice.verify")


def main() -> int:
    """Exit code 0 when all questions were answered, with an error or not."""
    leave_no_values_behind()
    try:
        options = read_options(None)
        configure_logging(options)
        store = open_store(options.spool_uri, prefix=f"{options.pipeline}/", options=options.spool_options)
        with os.fdopen(int(os.environ[ANSWERS]), "wb") as answers:
            session.fetch_jars(options)
            spark = session.start(options)
            try:
                with signs(spark, answers):
                    serve(LakeSide(options, store, spark), sys.stdin.buffer, answers)
            finally:
                spark.stop()
                session.end_jvm()
    except ServiceError as error:
        _log.error("the lake cannot be read", error=error, hint=error.hint)
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - Python would print its text, which may hold a row
        _log.error("reading the lake failed", exc_info=error)
        return ServiceError.exit_code
    return 0


@contextmanager
def signs(spark: SparkSession, answers: BinaryIO) -> Iterator[None]:
    """While it is open, an empty line says that tasks of Spark have ended since the last look. It is never between
    the bytes of an answer: each is one call of `write`.
    """
    tracker, ended = spark.sparkContext.statusTracker(), threading.Event()

    def examine() -> None:
        before: set[tuple[int, int]] = set()
        with suppress(Exception):  # no Spark, no sign
            while not ended.wait(SIGN_SECONDS):
                stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
                now = {(stage.stageId, stage.numCompletedTasks) for stage in stages if stage is not None}
                if now != before:
                    answers.write(b"\n")
                    answers.flush()
                before = now

    thread = threading.Thread(target=examine, name="signs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(1.0)


def serve(side: LakeSide, questions: Iterable[bytes], answers: BinaryIO) -> None:
    """Answers one question after the other."""
    for line in questions:
        answers.write(_answer(side, LakeQuestion.decode(line)).encode().replace(b"\n", b" ") + b"\n")
        answers.flush()


def _answer(side: LakeSide, question: LakeQuestion) -> LakeAnswer:
    try:
        return side.answer(question)
    except UnsupportedChange as error:
        return LakeAnswer(error=str(error), hint=error.hint, exit_code=ApplyError.exit_code)
    except ServiceError as error:
        waited = isinstance(error, WaitedOut)
        return LakeAnswer(error=str(error), hint=error.hint, exit_code=error.exit_code, waited=waited)


if __name__ == "__main__":
    streams.prepare()
    sys.exit(main())

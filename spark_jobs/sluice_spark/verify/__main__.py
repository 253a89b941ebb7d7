"""The process that answers questions about the lake: `python -m sluice_spark.verify`.

It takes the applier's options as the applier does. A question is a line on standard input, its answer
a line on the file descriptor that ANSWERS names; both hold keys of rows at most, and neither is
logged. Ends when standard input does.
"""

import os
import sys
from collections.abc import Iterable
from typing import BinaryIO

import structlog

from sluice.contract.row_form import ANSWERS, LakeAnswer, LakeQuestion
from sluice.errors import ApplyError, ServiceError, UnsupportedChange
from sluice.store.opening import open_store
from sluice.telemetry.crash import leave_no_values_behind
from sluice_spark import session
from sluice_spark.cli import configure_logging, read_options
from sluice_spark.verify.lake_side import LakeSide

_log = structlog.get_logger("sluice.verify")


def main() -> int:
    """Exit code 0 when all questions were answered, with an error or not."""
    leave_no_values_behind()
    try:
        options = read_options(None)
        configure_logging(options)
        store = open_store(options.spool_uri, prefix=f"{options.pipeline}/", options=options.spool_options)
        with os.fdopen(int(os.environ[ANSWERS]), "wb") as answers:
            spark = session.start(options)
            try:
                serve(LakeSide(options, store, spark), sys.stdin.buffer, answers)
            finally:
                spark.stop()
    except ServiceError as error:
        _log.error("the lake cannot be read", error=error, hint=error.hint)
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - Python would print its text, which may hold a row
        _log.error("reading the lake failed", exc_info=error)
        return ServiceError.exit_code
    return 0


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
        return LakeAnswer(error=str(error), hint=error.hint, exit_code=error.exit_code)


if __name__ == "__main__":
    sys.exit(main())

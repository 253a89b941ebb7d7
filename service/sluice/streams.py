"""stdin, stdout and stderr, as whoever started the process gave them to it.

Invariants: no other file and no connection gets the number of one that was closed. A log line that cannot be
written, because its disk is full, is left out, and ends nothing: the pipeline goes on. Data that cannot be written
is an error. Imports nothing of ours: it is called before anything else is loaded.
"""

import io
import os
import sys
from typing import Any


def prepare() -> None:
    """At the start of a process, before it opens anything."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    sys.stdin = sys.stdin or io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)))
    sys.stdout, sys.stderr = _text(_Data(), sys.stdout), _text(_Lines(), sys.stderr)


def unwritten() -> OSError | None:
    """Why something of stdout could not be written, None when all was. Raises BrokenPipeError."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _Data.failure = error
    if _Data.failure is not None:
        # What is left would fail again while the interpreter ends, and change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _Data.failure


class _Data(io.FileIO):
    failure: OSError | None = None
    """Of the process."""

    def __init__(self) -> None:
        super().__init__(1, "w", closefd=False)

    def write(self, content: Any) -> int:
        try:
            return super().write(content)
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                _Data.failure = error
            raise


class _Lines(io.FileIO):
    def __init__(self) -> None:
        super().__init__(2, "w", closefd=False)

    def write(self, content: Any) -> int:
        try:
            return super().write(content)
        except BrokenPipeError:
            raise
        except OSError:
            return memoryview(content).nbytes


def _text(raw: io.FileIO, before: Any) -> io.TextIOWrapper:
    """In the encoding of `before`; what it lacks is escaped: a name that a terminal cannot show is no reason to
    show nothing.
    """
    encoding = before.encoding if before is not None else "utf-8"
    lines = raw.isatty() or isinstance(raw, _Lines)
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors="backslashreplace", line_buffering=lines)

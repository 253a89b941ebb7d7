"""What a process leaves behind when it fails in a way that nobody foresaw: its place, never its
values.

Invariants: no core file, for a core holds rows, keys and passwords. No exception's text from
Python's own last-resort printers, in no thread. On a fatal signal only file names, lines and
functions. Called before anything else of a command. (Python: faulthandler, sys.excepthook,
threading.excepthook.)
"""

import faulthandler
import resource
import sys
import threading
from types import TracebackType

import structlog

from sluice.errors import ServiceError
from sluice.telemetry.logs import describe, frames


def leave_no_values_behind() -> None:
    """For this process and the ones it starts (the limit is inherited). May be called again."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable(all_threads=True)
    sys.excepthook = _uncaught
    sys.unraisablehook = _unraisable
    threading.excepthook = _in_thread


def _uncaught(_kind: type[BaseException], error: BaseException, _trace: TracebackType | None) -> None:
    _say("the process failed", error)


def _unraisable(failure: "sys.UnraisableHookArgs") -> None:
    _say("an error that could not be raised", failure.exc_value)


def _in_thread(failure: threading.ExceptHookArgs) -> None:
    if failure.exc_type is not SystemExit:
        _say("a thread failed", failure.exc_value)


def _say(what: str, error: BaseException | None) -> None:
    """To the logs, which know what not to write; past them before they are set up, when their own
    ways would show the text.
    """
    if error is None:
        return
    if structlog.is_configured():
        structlog.get_logger().error(what, exc_info=error)
        return
    lines = [f"{what}: {describe(error)}", *(f"  {frame}" for frame in frames(error))]
    if isinstance(error, ServiceError) and error.hint:
        lines.append(f"hint: {error.hint}")
    sys.stderr.write("\n".join([*lines, ""]))

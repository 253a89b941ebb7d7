"""Exit codes: the one place where an error becomes a process status and words on stderr.

Invariants: every ServiceError ends the process with its own `exit_code` and without a traceback. An
error that is not ours shows where it happened but never its message, which may quote a row. With
--json the same failure is one JSON object on stdout, so that a script always gets a document.
"""

import json
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click
from click.shell_completion import shell_complete

from sluice import printable, signals, streams
from sluice.cli import deadline
from sluice.cli.output import ANSWERED
from sluice.errors import Disposition, ServiceError, SlotLost, UsageError
from sluice.health.verdict import State
from sluice.telemetry.crash import leave_no_values_behind
from sluice.telemetry.logs import describe, frames

OK = 0
UNEXPECTED = 1
INTERRUPTED = 130
"""128 and the number of SIGINT, as shells count."""
INTERRUPT_SECONDS = 4.0
"""Until a command has ended after Ctrl-C. Ending the process that reads the lake takes two of them."""
PIPE_CLOSED = 141
PLAN_SNAPSHOT, PLAN_STOP = 13, 14

MEANINGS: dict[int, str] = {
    0: "all went well",
    1: "unexpected: a bug, or bytes from the server that its documentation does not allow; none of them "
    "was acknowledged",
    2: "usage or configuration: the command line, the file or a variable is not valid, or a limit that "
    "it sets was reached",
    3: "`check` found something critical, or with --strict a warning",
    4: "verification found a difference, between source and lake or between the manifest and the objects it names",
    5: "the source cannot be reached, or refuses: connection, authentication, privileges, settings",
    6: "the object store refuses, or an object in it is damaged",
    7: "the slot is lost or does not continue the manifest: never retry blindly; "
    "docs/operations/disasters.md says how to continue (`status` and `check` end with it too)",
    8: "another writer owns the pipeline",
    9: "`status`: degraded, changes are received and something needs attention; `apply --once` and "
    "`rebuild`: a table is stale, quarantined or has a gap, and everything else is applied",
    10: "`status`: stopped, no changes are received",
    11: "`status`: new, nothing has been received yet",
    12: "`status`: unknown, the state cannot be determined, for example because the store does not answer",
    PLAN_SNAPSHOT: "`plan`: rows of a table would be read again",
    PLAN_STOP: "`plan`: a table would stop until somebody acts",
    75: "temporary: a later retry may succeed",
    130: "interrupted by Ctrl-C",
    PIPE_CLOSED: "the program that reads the output closed the pipe, as `| head` does",
}
"""A contract: scripts and Kubernetes policies depend on it."""
HEALTH: dict[State, int] = {
    "healthy": OK,
    "degraded": 9,
    "stopped": 10,
    "lost": SlotLost.exit_code,
    "new": 11,
    "unknown": 12,
}
"""How `status` ends, by the state that it shows."""


def end_with(command: click.Command, arguments: Sequence[str]) -> NoReturn:
    """Runs the command line as all that this process does, and ends the process."""
    leave_no_values_behind()
    signals.bound_interrupts(INTERRUPT_SECONDS)
    code = execute(command, arguments)
    if deadline.abandoned.is_set():
        os._exit(code)
    sys.exit(code)


def execute(command: click.Command, arguments: Sequence[str]) -> int:
    """Runs the command line and returns its exit code, having said on stderr what went wrong."""
    try:
        result = _executed(command, arguments)
        if (unwritten := streams.unwritten()) is None:
            return result
    except BrokenPipeError:
        # The reader has seen enough; writing what is left at exit would fail again.
        for stream in (sys.stdout, sys.stderr):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return PIPE_CLOSED
    except OSError as error:  # only what stdout has refused comes as far as this
        unwritten = streams.unwritten() or error
    click.echo(f"error: stdout cannot be written: {unwritten.strerror}", err=True)
    return UsageError.exit_code


def _executed(command: click.Command, arguments: Sequence[str]) -> int:
    """Not by click's own `main`, which ends with 1 when a pipe is closed. Raises BrokenPipeError."""
    as_json = _wants_document(arguments)
    meta: dict[str, Any] = {}
    try:
        if instruction := os.environ.get("_SLUICE_COMPLETE"):
            return shell_complete(command, {}, "sluice", "_SLUICE_COMPLETE", instruction)
        with command.make_context("sluice", list(arguments)) as context:
            meta = context.meta
            result = command.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except ServiceError as error:
        # What ends a command after its answer is not a second document.
        answered = meta.get(ANSWERED, False)
        return _fail(
            str(error),
            kind=type(error).__name__,
            hint=error.hint,
            code=error.exit_code,
            as_json=as_json and not answered,
        )
    except click.Abort:
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return error.exit_code
    except click.ClickException as error:
        command_path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "sluice"
        return _fail(
            error.format_message(),
            kind="UsageError",
            hint=f"`{command_path} --help` explains",
            code=error.exit_code,
            as_json=as_json,
        )
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:  # the last place that can keep its message off the terminal
        if isinstance(error, OSError) and streams.unwritten() is not None:
            raise
        return _unexpected(error, as_json=as_json)
    return result if isinstance(result, int) else OK


def _wants_document(arguments: Sequence[str]) -> bool:
    """Whether a program reads the answer. JSON is YAML too, so a failure needs no form of its own."""
    forms = (
        f"{option}{between}{form}"
        for option in ("-o", "--output")
        for between in ("", " ", "=")
        for form in ("json", "yaml")
    )
    return "--json" in arguments or any(f" {form} " in f" {' '.join(arguments)} " for form in forms)


def _unexpected(error: Exception, *, as_json: bool) -> int:
    for frame in frames(error):
        click.echo(f"  {frame}", err=True)
    message = f"unexpected {describe(error)}; its message is not shown because it may quote a row"
    return _fail(
        message,
        kind=type(error).__name__,
        hint="please report the lines above with the version",
        code=UNEXPECTED,
        as_json=as_json,
    )


def _fail(message: str, *, kind: str, hint: str, code: int, as_json: bool) -> int:
    click.echo(f"error: {printable.lines(message)}", err=True)
    if hint:
        click.echo(f"hint: {printable.lines(hint)}", err=True)
    if as_json:
        failure: dict[str, Any] = {"class": kind, "message": message, "hint": hint, "exit_code": code}
        click.echo(json.dumps({"schema_version": 1, "error": failure}))
    return code


def page() -> str:
    """docs/exit-codes.md."""
    errors = [error for error in _errors(ServiceError) if error.disposition is not Disposition.LOCAL]
    rows = [
        f"| {code} | {meaning} | {', '.join(error.__name__ for error in errors if error.exit_code == code)} |"
        for code, meaning in MEANINGS.items()
    ]
    return "\n".join([_PAGE_HEAD, *rows, ""])


def _errors(root: type[ServiceError]) -> list[type[ServiceError]]:
    # A package may refine an error for itself; the contract is with the classes that all share.
    below = [
        found for child in root.__subclasses__() if child.__module__ == root.__module__ for found in _errors(child)
    ]
    return [root, *below] if root is not ServiceError else below


_PAGE_HEAD = """\
# Exit codes

Scripts may depend on these codes. `run`, `up` and `apply` retry temporary failures themselves. If
they end with 75, start them again. After 2, 3 and 7 a restart cannot help until somebody acts. In a
Kubernetes Job, let the `podFailurePolicy` not retry these codes.

After SIGTERM the process drains and ends with 0, even if the signal arrives while `run` or `up` is
still loading. It ends with 75 if `stop_timeout` was over before it had published everything that it
received; the server sends the rest again after the next start. A second SIGTERM ends the process at
once, with 143.

The code of `status` is the state that it shows ([the states](status.md#states)), with and without
`--json`: 0 healthy, 9 degraded, 10 stopped, 7 lost, 11 new, 12 unknown. `check` ends with 7 when
the slot of the pipeline is lost, and with 3 when something else is critical.

<!-- Generated from service/sluice/cli/exits.py by `make docs`; `make check` compares. -->

| code | meaning | errors |
|---|---|---|"""

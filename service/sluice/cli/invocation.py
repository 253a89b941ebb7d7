"""What every command has in common: which configuration, how loud, in which colours.

Invariant: settings are read here and nowhere else, and logging is armed with their secrets before
any other package is loaded.
"""

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

import click
from click.core import ParameterSource
from rich.console import Console

from sluice.cli.output import FORM
from sluice.settings import DEFAULT_FILE, Loaded, Settings, load, secret_strings
from sluice.telemetry import logs

P = ParamSpec("P")
R = TypeVar("R")
_UNFOLDED = 1_000_000
"""Columns that no line ever has."""
_LEVELS = ("error", "warning", "info", "debug")
_BEFORE = "sluice.invocation"
NAMES = ("config", "verbose", "quiet", "no_color", "log_format")
"""Of the options that all commands take."""


@dataclass(frozen=True, slots=True)
class Invocation:
    """The options that all commands take."""

    config: str
    verbosity: int
    color: bool
    log_format: str | None

    def with_config(self, config: str) -> "Invocation":
        """The same for another configuration."""
        return replace(self, config=config)

    def settings(self) -> Loaded:
        """The checked settings; from here on logs are written as they say. Raises UsageError."""
        loaded = self.read()
        self.log_as(loaded.settings)
        return loaded

    def read(self) -> Loaded:
        """The checked settings as they are in file and environment now. Raises UsageError."""
        return load(self.config, environ=os.environ)

    def log_as(self, settings: Settings) -> None:
        """From here on logs are written as `settings` say."""
        logs.configure(
            log_format=self.log_format or settings.telemetry.log_format,
            level=self.log_level(settings),
            secrets=secret_strings(settings),
            color=self.color and sys.stderr.isatty(),
        )

    def log_level(self, settings: Settings) -> str:
        """The least severe line to write: as configured, -v and -q on top."""
        step = _LEVELS.index(settings.telemetry.log_level) + self.verbosity
        return _LEVELS[min(max(step, 0), len(_LEVELS) - 1)]

    def console(self) -> Console:
        """For tables on stdout: as wide as the terminal. What is piped is for programs and files,
        and is never folded.
        """
        return _Console(no_color=not self.color, highlight=False, width=None if sys.stdout.isatty() else _UNFOLDED)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Called where the error is handled. `exits` decides what it means, as for every other output."""
        raise  # noqa: PLE0704 - the error that is being handled


def common(command: Callable[Concatenate[Invocation, P], R]) -> Callable[P, R]:
    """Adds the options that all commands take and hands them over as an Invocation, the command's
    first argument. A group takes them too: what stands before a command counts, unless it is given
    again behind it.
    """

    @click.option(
        "-c",
        "--config",
        envvar="SLUICE_CONFIG",
        default=DEFAULT_FILE,
        show_default=True,
        metavar="FILE",
        help="Configuration file of the pipeline.",
    )
    @click.option("-v", "--verbose", count=True, help="Log more; repeat to log even more.")
    @click.option("-q", "--quiet", count=True, help="Log less; repeat to log only errors.")
    @click.option("--no-color", is_flag=True, help="No colors (also: NO_COLOR in the environment).")
    @click.option(
        "--log-format",
        type=click.Choice(["auto", "console", "json"]),
        help="Form of log lines on stderr.  [default: telemetry.log_format]",
    )
    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        options: dict[str, Any] = dict(kwargs)
        config, verbose, quiet, no_color, log_format = (options.pop(name) for name in NAMES)
        context = click.get_current_context()
        before: Invocation | None = context.meta.get(_BEFORE)
        if before is not None and context.get_parameter_source("config") != ParameterSource.COMMANDLINE:
            config = before.config
        invocation = context.meta[_BEFORE] = Invocation(
            config=config,
            verbosity=verbose - quiet + (before.verbosity if before else 0),
            color=not no_color and (before.color if before else "NO_COLOR" not in os.environ),
            log_format=log_format or (before.log_format if before else None),
        )
        return command(invocation, *args, **options)

    return wrapped


def offer_forms(command: click.Command) -> None:
    """Gives every command below `command` that can answer in JSON the option `-o`, whose `json` is
    what `--json` says.
    """
    if isinstance(command, click.Group):
        for below in command.commands.values():
            offer_forms(below)
    wanted = [position for position, parameter in enumerate(command.params) if parameter.name == "json_wanted"]
    answer = command.callback
    if not wanted or answer is None:
        return

    @functools.wraps(answer)
    def in_form(*args: Any, form: str | None, **options: Any) -> Any:
        if form is not None:
            click.get_current_context().meta[FORM] = form
            options["json_wanted"] = form != "table"
        return answer(*args, **options)

    command.callback = in_form
    option = click.Option(
        ["-o", "--output", "form"], type=click.Choice(["table", "json", "yaml"]), help="Form of the answer."
    )
    command.params.insert(wanted[0] + 1, option)

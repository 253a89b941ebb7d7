"""Options that take an amount of time. One that is none is refused before the command does anything."""

import math
from collections.abc import Callable
from typing import Any

import click

from sluice.settings.values import LONGEST_RETENTION, parse_duration, show_duration


class Seconds(click.FloatRange):
    """A number of seconds within a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):  # it is within any range
            self.fail(f"{value!r} is not a number of seconds", param, ctx)
        return seconds


def duration(*, least: float) -> Callable[[click.Context, click.Parameter, str], float]:
    """The callback of an option that is spelled as in the configuration, such as 90s or 1h: gives seconds."""

    def read(_context: click.Context, _option: click.Parameter, text: str) -> float:
        try:
            seconds = float(parse_duration(text))
        except ValueError as error:
            raise click.BadParameter(f"{text!r}: {error}") from error
        if seconds > LONGEST_RETENTION:
            raise click.BadParameter("it is longer than a hundred years")
        if seconds < least:
            raise click.BadParameter(f"{text!r} is too short: it must be at least {show_duration(least)}")
        return seconds

    return read


SHORTEST_TIMEOUT = 0.001
"""To wait for nothing is no way to wait."""

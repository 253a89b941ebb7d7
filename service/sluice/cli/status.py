"""`status`: where the pipeline stands. Works while nothing runs, and says what it could not reach."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from sluice.cli import deadline, exits, fleet_status, output, status_view, wiring
from sluice.cli.invocation import Invocation, common
from sluice.cli.times import Seconds
from sluice.errors import FormatTooNew, ManifestCorrupt, ServiceError, StoreError, UsageError
from sluice.health.facts import Away, Facts
from sluice.health.verdict import Verdict, judge

if TYPE_CHECKING:
    from sluice.health.report import Report
    from sluice.health.reporter import Reporter

Look: TypeAlias = "Report | ServiceError"


@click.command()
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@click.option(
    "--watch",
    is_flag=True,
    help="Show the status repeatedly until Ctrl-C; with --json, print one document after the other.",
)
@click.option(
    "--interval",
    type=Seconds(0.1, 86_400),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="With --watch: the time between two readings.",
)
@click.option(
    "--top",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    metavar="N",
    help="How many tables to show: stopped ones first, then by lag.",
)
@click.option(
    "--fleet",
    "folder",
    metavar="DIR",
    help="Show one row for each pipeline whose configuration is in DIR. The exit code is that of the worst state.",
)
@common
def status(
    invocation: Invocation,
    json_wanted: bool,  # noqa: FBT001 - a command's parameter
    watch: bool,  # noqa: FBT001 - likewise
    interval: float,
    top: int,
    folder: str | None,
) -> int:
    """Show where the pipeline stands, and its problems.

    It shows the server's WAL, the slot's headroom, the spool, snapshots, the lake, and the tables
    that are furthest behind. It reads all of this from the spool and, if the server answers, from
    the server. The pipeline need not be running. Positions are read one after the other, not at one
    instant. Only the running process knows what it has received, its throughput and its errors:
    read its /status or its page (telemetry.listen).

    The exit code shows the state: 0 healthy, 9 degraded, 10 stopped, 7 lost, 11 new, 12 unknown.

    \b
    Examples:
      sluice status
      sluice status --watch
      sluice status --json | jq .apply.complete_through_lsn
      sluice status --fleet pipelines
    """
    wiring.require(*deadline.PACKAGES)
    if folder is not None:
        if watch:
            raise UsageError("--fleet and --watch exclude each other", hint="the page of a fleet updates itself")
        return fleet_status.show(invocation, folder, json_wanted=json_wanted)
    reporter = wiring.reporter(invocation.settings().settings)
    console = invocation.console()
    if not watch:
        seen = look(reporter)
        output.as_json(_document(seen)) if json_wanted else console.print(_shown(seen, console, top=top))
        return exits.HEALTH[verdict_of(seen).state]
    looks = _looks(reporter, interval_seconds=interval)
    if json_wanted:
        for seen in looks:
            output.as_json(_document(seen))
    else:
        _watch((_fitted(seen, console, top=top) for seen in looks), console)
    return exits.OK


def look(reporter: "Reporter") -> Look:
    """A report; what the store refuses or does not answer, as an error: whoever looks needs the
    verdict most then.
    """
    try:
        return deadline.take(reporter)
    except (StoreError, ManifestCorrupt, FormatTooNew) as error:
        return error


def _looks(reporter: "Reporter", *, interval_seconds: float) -> Iterator[Look]:
    """One look after the other, for ever."""
    while True:
        yield look(reporter)
        time.sleep(interval_seconds)


def verdict_of(seen: Look) -> Verdict:
    """What is to be said of a look; of one that failed, that the state is not known."""
    if isinstance(seen, ServiceError):
        return judge(Facts(now=time.time(), unread=Away.of(seen)))
    return seen.verdict


def _shown(seen: Look, console: Console, *, top: int) -> RenderableType:
    if isinstance(seen, ServiceError):
        verdict = verdict_of(seen)
        return Group(Text(f"State  {verdict.state}"), *status_view.problems(verdict))
    return status_view.status(seen, width=console.width, unicode=console.encoding.startswith("utf"), top=top)


def _fitted(seen: Look, console: Console, *, top: int) -> RenderableType:
    """On a terminal with as many tables as it has lines for: problems come after them, and must be seen."""
    top = min(top, console.height) if console.is_terminal else top
    shown = _shown(seen, console, top=top)
    while console.is_terminal and top > 0 and len(console.render_lines(shown)) >= console.height:
        top -= 1
        shown = _shown(seen, console, top=top)
    return shown


def _document(seen: Look) -> dict[str, object]:
    if isinstance(seen, ServiceError):
        verdict = verdict_of(seen)
        return {
            "schema_version": 1,
            "state": verdict.state,
            "headline": verdict.headline,
            "problems": verdict.to_json(),
        }
    return seen.to_json()


def _watch(blocks: Iterator[RenderableType], console: Console) -> None:
    """In place on a terminal; elsewhere one block after the other, each with the time in its first
    line.
    """
    if not console.is_terminal:
        for block in blocks:
            console.print(block)
            console.print()
        return
    with Live(next(blocks), console=console, auto_refresh=False, vertical_overflow="crop") as live:
        for block in blocks:
            live.update(block, refresh=True)

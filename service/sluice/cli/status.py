"""`status` and `tables`: where the pipeline stands. Work while nothing runs, and say what they
could not reach.
"""

import queue
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from sluice.cli import exits, output, status_view, wiring
from sluice.cli.invocation import Invocation, common
from sluice.contract.table_state import State
from sluice.errors import FormatTooNew, ManifestCorrupt, ServiceError, StoreError, StoreUnavailable
from sluice.health.facts import Facts
from sluice.health.verdict import Verdict, judge

if TYPE_CHECKING:
    from sluice.health.report import Report, Reporter
    from sluice.health.tables import TableReport

_PACKAGES = ("psycopg", "obstore")
Look: TypeAlias = "Report | ServiceError"
LOOK_SECONDS = 20.0
"""All that a look may take."""
_NO_LAG = -1.0
"""A table without a lag to compare comes after those that are up to date."""


@click.command()
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@click.option(
    "--watch", is_flag=True, help="Show again and again, until Ctrl-C; with --json one document after the other."
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two looks of --watch.",
)
@click.option(
    "--top",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    metavar="N",
    help="Tables shown: stopped ones first, then by lag.",
)
@common
def status(invocation: Invocation, json_wanted: bool, watch: bool, interval: float, top: int) -> int:  # noqa: FBT001 - a command's parameters
    """Show where the pipeline stands: the server's WAL, the slot's headroom, the spool, copies, the
    lake, the tables that are furthest behind, problems.

    Read from the spool and, when it answers, from the server; the pipeline need not be running.
    Positions are read one after the other, not at one instant. What only the running process knows
    (what it has received, throughput, its errors) is in its /status and on its page, see
    telemetry.listen.

    Ends with 0 when the pipeline is healthy, 9 degraded, 10 stopped, 7 lost, 11 new, 12 unknown.

    \b
    Examples:
      sluice status
      sluice status --watch
      sluice status --json | jq .apply.complete_through_lsn
    """
    wiring.require(*_PACKAGES)
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
        _watch((_shown(seen, console, top=top) for seen in looks), console)
    return exits.OK


@click.command()
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in State]),
    help="Only tables in this state; may be repeated.",
)
@click.option(
    "--sort",
    "order",
    type=click.Choice(["name", "lag", "rows"]),
    default="name",
    show_default=True,
    help="lag and rows: the greatest first.",
)
@common
def tables(invocation: Invocation, json_wanted: bool, states: tuple[str, ...], order: str) -> None:  # noqa: FBT001 - a command's parameter
    """List every table: its state, through which LSN the lake is complete, and how far it is
    behind.

    A table's state is the worse of what ingest and applier say. `stale` means that the lake table
    is known not to equal the source; the reason is given. What is wrong with the pipeline itself is
    one line on stderr, and in `problems` with --json.

    \b
    Examples:
      sluice tables --sort lag
      sluice tables --state stale --json
    """
    wiring.require(*_PACKAGES)
    settings = invocation.settings().settings
    report = _taken(wiring.reporter(settings))
    chosen = _sorted([table for table in report.tables if not states or table.state in states], order)
    if json_wanted:
        output.as_json({**report.tables_json(), "tables": [table.to_json() for table in chosen]})
        return
    console = invocation.console()
    console.print(status_view.table_list(chosen, width=console.width))
    click.echo(f"pipeline {settings.pipeline} is {report.verdict.headline}", err=True)


def _sorted(found: "list[TableReport]", order: str) -> "list[TableReport]":
    if order == "lag":
        return sorted(found, key=lambda table: -(_NO_LAG if table.lag_seconds is None else table.lag_seconds))
    if order == "rows":
        return sorted(found, key=lambda table: -table.rows_applied)
    return found


def look(reporter: "Reporter") -> Look:
    """A report; what the store refuses or does not answer, as an error: whoever looks needs the
    verdict most then.
    """
    try:
        return _taken(reporter)
    except (StoreError, ManifestCorrupt, FormatTooNew) as error:
        return error


def _taken(reporter: "Reporter") -> "Report":
    """A report within LOOK_SECONDS, whatever hangs: libraries try for minutes, and who asks wants
    to know now. What it raises, and StoreUnavailable.
    """
    answer: queue.SimpleQueue[Report | BaseException] = queue.SimpleQueue()

    def take() -> None:
        try:
            answer.put(reporter.take())
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            answer.put(error)

    # The process does not wait for it.
    threading.Thread(target=take, name="look", daemon=True).start()
    try:
        taken = answer.get(timeout=LOOK_SECONDS)
    except queue.Empty:
        raise StoreUnavailable(
            f"looking took more than {LOOK_SECONDS:.0f} s: the object store or the server accepts "
            "connections and does not answer",
            hint="check spool.uri, its endpoint, the server, and the network and proxies between",
        ) from None
    if isinstance(taken, BaseException):
        raise taken
    return taken


def _looks(reporter: "Reporter", *, interval_seconds: float) -> Iterator[Look]:
    """One look after the other, for ever."""
    while True:
        yield look(reporter)
        time.sleep(interval_seconds)


def verdict_of(seen: Look) -> Verdict:
    """What is to be said of a look; of one that failed, that the state is not known."""
    if isinstance(seen, ServiceError):
        from sluice.health.report import away

        return judge(Facts(now=time.time(), unread=away(seen)))
    return seen.verdict


def _shown(seen: Look, console: Console, *, top: int) -> RenderableType:
    if isinstance(seen, ServiceError):
        verdict = verdict_of(seen)
        return Group(Text(f"State  {verdict.state}"), *status_view.problems(verdict))
    return status_view.status(seen, width=console.width, unicode=console.encoding.startswith("utf"), top=top)


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

"""`tables`: every table, and how far it is behind; below it, what may be asked for one of them."""

from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from sluice.cli import (
    deadline,
    output,
    resync,
    status_view,
    tables_add_remove,
    tables_columns,
    tables_pause_resume,
    wiring,
)
from sluice.cli.invocation import NAMES, Invocation, common
from sluice.contract.table_state import State
from sluice.errors import UsageError

if TYPE_CHECKING:
    from sluice.health.tables import TableReport

_NO_LAG = -1.0
"""A table without a lag to compare comes after those that are up to date."""


@click.group(invoke_without_command=True)
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
    help="The order of the rows; with lag and rows, the greatest comes first.",
)
@click.option(
    "--columns", "columns_wanted", is_flag=True, help="List the columns of each table instead of its position."
)
@common
def tables(
    invocation: Invocation,
    json_wanted: bool,  # noqa: FBT001 - a command's parameter
    states: tuple[str, ...],
    order: str,
    columns_wanted: bool,  # noqa: FBT001 - a command's parameter
) -> None:
    """List every table with its state, the LSN through which the lake is complete, and its lag. The
    subcommands change single tables; all other tables continue as before.

    Ingest and the applier each report a state of a table; the worse one is shown. `stale` means
    that the lake table is known to differ from the source; the reason is shown. Problems of the
    pipeline itself are one line on stderr, and in `problems` with --json.

    With --columns it lists the columns of each table: the type at the source, the type in the lake,
    and the column rule that excludes the column or changes its values before anything is stored.

    \b
    Examples:
      sluice tables --sort lag
      sluice tables --state stale --json
      sluice tables --columns
    """
    if click.get_current_context().invoked_subcommand is not None:
        _no_options_before_the_command()
        return
    wiring.require(*deadline.PACKAGES)
    settings = invocation.settings().settings
    if columns_wanted:
        from sluice.manifest.reader import load_state

        manifest = deadline.within(deadline.LOOK_SECONDS, lambda: load_state(wiring.open_spool(settings)))
        if json_wanted:
            output.as_json(tables_columns.to_json(manifest, states))
        else:
            invocation.console().print(tables_columns.table(manifest, states))
        return
    report = deadline.take(wiring.reporter(settings))
    chosen = _sorted([table for table in report.tables if not states or table.state in states], order)
    if json_wanted:
        output.as_json({**report.tables_json(), "tables": [table.to_json() for table in chosen]})
        return
    console = invocation.console()
    console.print(status_view.table_list(chosen, width=console.width))
    click.echo(f"pipeline {settings.pipeline} is {report.verdict.headline}", err=True)


def _no_options_before_the_command() -> None:
    """An option that would have no effect is refused."""
    context = click.get_current_context()
    given = [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name
        and parameter.name not in NAMES
        and context.get_parameter_source(parameter.name) == ParameterSource.COMMANDLINE
    ]
    if given:
        raise UsageError(f"{', '.join(given)} stands before the command", hint="give options after the command")


for _command in (
    tables_add_remove.add,
    tables_add_remove.remove,
    resync.resync,
    tables_pause_resume.pause,
    tables_pause_resume.resume,
):
    tables.add_command(_command)


def _sorted(found: "list[TableReport]", order: str) -> "list[TableReport]":
    if order == "lag":
        return sorted(found, key=lambda table: -(_NO_LAG if table.lag_seconds is None else table.lag_seconds))
    if order == "rows":
        return sorted(found, key=lambda table: -table.rows_applied)
    return found

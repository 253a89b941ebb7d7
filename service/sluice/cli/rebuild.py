"""`rebuild`: make lake tables again from the spool, without the source."""

import os
import sys
from typing import TYPE_CHECKING

import click

from sluice.cli import output, table_names, wiring
from sluice.cli.invocation import Invocation, common
from sluice.printable import counted, one_line

if TYPE_CHECKING:
    from sluice.manifest.values import PipelineState


@click.command()
@click.argument("tables", nargs=-1, required=True, metavar="TABLE...", shell_complete=table_names.completed)
@click.option("--yes", is_flag=True, help="Make the tables again. Without this option nothing is changed.")
@common
def rebuild(invocation: Invocation, tables: tuple[str, ...], yes: bool) -> None:  # noqa: FBT001 - a command's parameter
    """Rebuild lost or damaged lake tables from the spool, in place. This does not read
    PostgreSQL. Stop the applier first: while one runs, the exit code is 8.

    The spool must have everything since the table's snapshot began; spool.retention decides how
    long the spool keeps it. If something is missing, the command names it and changes nothing. With
    --yes it removes the log of each lake table and applies everything that the manifest has, as
    `sluice apply --once` does. Nobody can read the tables meanwhile. Afterwards the tables can no
    longer be read at earlier boundaries. If the command is interrupted, run it again.

    A history, or a mirror with soft deletes, that keeps rows from before the snapshot is not
    changed, because the spool does not have these rows. To make the table again without these rows,
    remove its folder first.

    \b
    Examples:
      sluice rebuild public.orders
      sluice rebuild public.orders --yes
    """
    wiring.require("obstore", *(("pyspark", "pyarrow") if yes else ()))
    settings = invocation.settings().settings
    from sluice.manifest import rebuilding
    from sluice.manifest.reader import load_state

    store = wiring.open_spool(settings)
    state = load_state(store)
    names = _named(state, tables)
    for name, table_id in names.items():
        plan = rebuilding.plan(store, state, state.tables[table_id])
        click.echo(
            one_line(
                f"{name}: {counted(plan.segments, 'segment')}, {output.amount(plan.bytes)}, "
                f"of the entries {plan.first_seq} to {plan.last_seq}"
            )
        )
    if not yes:
        click.echo("nothing was changed; --yes makes them again", err=True)
        return
    log_format = wiring.applier_log_format(settings, asked=invocation.log_format)
    level = invocation.log_level(settings)
    options = wiring.apply_options(settings, log_format=log_format, log_level=level, once=True, rebuild=tuple(names))
    command = wiring.applier_command()
    sys.stdout.flush()
    os.execve(command[0], command, wiring.applier_environment(options, dict(os.environ)))  # noqa: S606 - our own command, and it needs no shell


def _named(state: "PipelineState", tables: tuple[str, ...]) -> dict[str, str]:
    """The ids of the tables, by schema.table. Raises UsageError for a name that is none."""
    known = table_names.carried(state.tables.values())
    found = [table_names.named(name, known, what="a table that the pipeline carries") for name in tables]
    return {".".join(name): known[name].table_id for name in dict.fromkeys(found)}

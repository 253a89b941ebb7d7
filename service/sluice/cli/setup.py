"""`setup`: the publication and the slot of a new pipeline."""

import sys
from dataclasses import asdict

import click

from sluice import printable
from sluice.cli import output, wiring
from sluice.cli.invocation import Invocation, common


@click.command()
@click.option("--dry-run", is_flag=True, help="Show what is missing and create nothing.")
@click.option("--print-sql", is_flag=True, help="Print the SQL alone, for somebody else to run; create nothing.")
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@common
def setup(invocation: Invocation, dry_run: bool, print_sql: bool, json_wanted: bool) -> None:  # noqa: FBT001 - a command's parameters
    """Create the publication and the slot of a new pipeline, if they are missing.

    `run` and `up` do the same when they start. Once the pipeline has a manifest nothing is ever
    created again: this then checks that it can go on, and makes the slot's two_phase flag agree
    with the configuration, which nothing else does. From the moment the slot exists the server
    keeps WAL for it.

    \b
    Examples:
      sluice setup --dry-run
      sluice setup --print-sql > for-the-dba.sql
    """
    wiring.require("psycopg", "pyarrow", "obstore")
    settings = invocation.settings().settings
    from sluice.operate.setup import prepare

    only_look = dry_run or print_sql
    steps = prepare(wiring.ingest_options(settings, instance=""), wiring.open_spool(settings), dry_run=only_look)
    if print_sql:
        # Byte for byte into a file or psql; spelled in printable characters for a person.
        shown = [
            (printable.sql(step.statement) or printable.HIDDEN) if sys.stdout.isatty() else step.statement
            for step in steps
            if step.statement
        ]
        click.echo("".join(f"{statement};\n" for statement in shown), nl=False)
    elif json_wanted:
        output.as_json({"schema_version": 1, "created": not only_look, "steps": [asdict(step) for step in steps]})
    else:
        missing = "missing" if only_look else "done"
        rows = [
            (
                step.kind,
                step.name,
                missing if step.statement else "exists",
                step.statement and (printable.sql(step.statement) or printable.HIDDEN),
            )
            for step in steps
        ]
        invocation.console().print(output.table("", ("what", "name", "", "SQL"), rows))

"""`init` and `setup`: from nothing to a pipeline that can run."""

import re
import sys
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

import click

from sluice import printable
from sluice.cli import output, wiring
from sluice.cli.invocation import Invocation, common
from sluice.cli.templates import CONFIGURATION, GRANTS, VARIABLES
from sluice.errors import UsageError
from sluice.settings.model import PIPELINE_NAME


@click.command()
@click.argument("directory", default=".", metavar="[DIR]")
@click.option("--pipeline", default="main", show_default=True, help="Name of the pipeline: a-z, 0-9 and _.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@common
def init(invocation: Invocation, directory: str, pipeline: str, force: bool) -> None:  # noqa: ARG001, FBT001 - a command's parameters
    """Write a configuration with comments, a file of variables and the SQL for the role.

    \b
    Examples:
      sluice init
      sluice init shop --pipeline shop
    """
    if not re.fullmatch(PIPELINE_NAME, pipeline):
        raise UsageError(
            f"{pipeline[:100]!r} cannot be the name of a pipeline: it is made of a-z, 0-9 and _, 1 to 50 of them",
            hint="choose another --pipeline",
        )
    target = Path(directory)
    place = "file://" + quote(str(target.resolve()))
    files = {"sluice.yaml": CONFIGURATION, ".env.example": VARIABLES, "grants.sql": GRANTS}
    existing = [name for name in files if (target / name).exists()]
    if existing and not force:
        raise UsageError(
            f"{', '.join(existing)} in {directory} would be overwritten",
            hint="--force overwrites, or name another directory",
        )
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, template in files.items():
            (target / name).write_text(
                template.replace("@PIPELINE@", pipeline).replace("@PLACE@", place), encoding="utf-8"
            )
    except OSError as error:
        raise UsageError(f"cannot write into {directory}: {error.strerror}") from error
    click.echo(f"Wrote {', '.join(files)} into {directory}. Next:", err=True)
    click.echo(
        "  1. grants.sql: give the role its rights, as a superuser\n  2. sluice.yaml: your "
        "connection string and addresses",
        err=True,
    )
    click.echo("  3. sluice check\n  4. sluice up", err=True)


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

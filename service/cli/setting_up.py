"""`init`, `check` and `setup`: from nothing to a pipeline that can run."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click
from rich.text import Text

from service.cli import output, rooms
from service.cli.invocation import Invocation, common
from service.cli.templates import CONFIGURATION, GRANTS, VARIABLES
from service.errors import PreflightFailed, UsageError

if TYPE_CHECKING:
    from service.source.preflight import Finding

_STYLES = {"critical": "bold red", "warning": "yellow", "info": ""}
_ORDER = ("critical", "warning", "info")


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
    target = Path(directory)
    place = "file://" + quote(str(target.resolve()))
    files = {"sluice.yaml": CONFIGURATION, ".env.example": VARIABLES, "grants.sql": GRANTS}
    existing = [name for name in files if (target / name).exists()]
    if existing and not force:
        raise UsageError(f"{', '.join(existing)} in {directory} would be overwritten", hint="--force overwrites, or name another directory")
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, template in files.items():
            (target / name).write_text(template.replace("@PIPELINE@", pipeline).replace("@PLACE@", place), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write into {directory}: {error.strerror}") from error
    click.echo(f"Wrote {', '.join(files)} into {directory}. Next:", err=True)
    click.echo("  1. grants.sql: give the role its rights, as a superuser\n  2. sluice.yaml: your connection string and addresses", err=True)
    click.echo("  3. sluice check\n  4. sluice up", err=True)


@click.command()
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@click.option("--sql-out", type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Write the SQL that mends the findings to this file.")
@click.option("--strict", is_flag=True, help="Fail on warnings as well.")
@common
def check(invocation: Invocation, json_wanted: bool, sql_out: Path | None, strict: bool) -> None:  # noqa: FBT001 - a command's parameters
    """Look for everything that would keep the pipeline from running, or harm the source. Changes nothing.

    Rights, wal_level, free slots and senders, replica identities and keys, names that cannot be carried, limits on retained WAL, and whether the object
    store keeps the promises that the manifest stands on. Each finding comes with the SQL or the setting that mends it. Ends with 3 when one is critical.

    \b
    Examples:
      sluice check
      sluice check --strict --sql-out mend.sql
    """
    rooms.require("psycopg", "obstore")
    settings = invocation.settings().settings
    from service.source.preflight import run_preflight
    from service.store.probe import probe

    store = rooms.open_spool(settings)
    found = run_preflight(rooms.source_options(settings), settings.source.tables, lambda: probe(store))
    found = sorted(found, key=lambda finding: _ORDER.index(finding.severity))
    if sql_out is not None:
        sql_out.write_text("".join(_script(finding) for finding in found if finding.fix_sql), encoding="utf-8")
    if json_wanted:
        output.as_json({"schema_version": 1, "findings": [asdict(finding) for finding in found]})
    else:
        _show(invocation, found)
    counts = {severity: sum(finding.severity == severity for finding in found) for severity in _ORDER}
    if counts["critical"] or (strict and counts["warning"]):
        raise PreflightFailed(f"{counts['critical']} critical findings, {counts['warning']} warnings", hint="mend them and run `sluice check` again")
    click.echo(f"ready: nothing critical, {counts['warning']} warnings", err=True)


@click.command()
@click.option("--dry-run", is_flag=True, help="Show what is missing and create nothing.")
@click.option("--print-sql", is_flag=True, help="Print the SQL alone, for somebody else to run; create nothing.")
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@common
def setup(invocation: Invocation, dry_run: bool, print_sql: bool, json_wanted: bool) -> None:  # noqa: FBT001 - a command's parameters
    """Create the publication and the slot of a new pipeline, if they are missing.

    `run` and `up` do the same when they start. Once the pipeline has a manifest nothing is ever created again: this then checks that it can go on, and
    makes the slot's two_phase flag agree with the configuration, which nothing else does. From the moment the slot exists the server keeps WAL for it.

    \b
    Examples:
      sluice setup --dry-run
      sluice setup --print-sql > for-the-dba.sql
    """
    rooms.require("psycopg", "pyarrow", "obstore")
    settings = invocation.settings().settings
    from service.runtime.setup import prepare

    only_look = dry_run or print_sql
    steps = prepare(rooms.ingest_options(settings, instance=""), rooms.open_spool(settings), dry_run=only_look)
    if print_sql:
        click.echo("".join(f"{step.statement};\n" for step in steps if step.statement), nl=False)
    elif json_wanted:
        output.as_json({"schema_version": 1, "created": not only_look, "steps": [asdict(step) for step in steps]})
    else:
        missing = "missing" if only_look else "done"
        rows = [(step.kind, step.name, missing if step.statement else "exists", step.statement) for step in steps]
        invocation.console().print(output.table("", ("what", "name", "", "SQL"), rows))


def _script(finding: "Finding") -> str:
    """A finding's SQL under a comment of one line: a hostile name with a line break must not end the comment."""
    comment = " ".join(f"{finding.object}: {finding.seen}".split())
    return f"-- {comment}\n{finding.fix_sql.rstrip().rstrip(';')};\n"


def _show(invocation: Invocation, found: "list[Finding]") -> None:
    console = invocation.console()
    for finding in found:
        console.print(Text.assemble((f"{finding.severity:8} ", _STYLES[finding.severity]), (finding.object, "bold"), f": {finding.seen}"))
        if finding.fix_sql:
            console.print(Text(f"         SQL: {finding.fix_sql}"))
        if finding.fix_setting:
            restart = " (needs a restart of the server)" if finding.needs_restart else ""
            console.print(Text(f"         setting: {finding.fix_setting}{restart}"))

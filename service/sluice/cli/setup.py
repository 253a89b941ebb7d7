"""`setup`: the publication and the slot of a new pipeline."""

import sys
from dataclasses import asdict

import click

from sluice import printable
from sluice.cli import deadline, output, wiring
from sluice.cli.invocation import Invocation, common
from sluice.errors import StoreUnavailable, UsageError


@click.command()
@click.option("--dry-run", is_flag=True, help="Show what is missing and create nothing.")
@click.option("--print-sql", is_flag=True, help="Print only the SQL, for somebody else to run; create nothing.")
@click.option("--ddl-signal", is_flag=True, help="Print only the SQL of the DDL signal, for a superuser to run.")
@click.option("--apply", "creates", is_flag=True, help="With --ddl-signal: run it.")
@click.option("--json", "json_wanted", is_flag=True, help="As JSON.")
@common
def setup(
    invocation: Invocation,
    dry_run: bool,  # noqa: FBT001
    print_sql: bool,  # noqa: FBT001
    ddl_signal: bool,  # noqa: FBT001
    creates: bool,  # noqa: FBT001
    json_wanted: bool,  # noqa: FBT001
) -> None:
    """Create the publication and the slot of a new pipeline, if they are missing.

    `run` and `up` do the same when they start. Once the pipeline has a manifest, `setup` never
    creates anything again. It then checks that the pipeline can continue, and makes the slot's
    two_phase flag agree with the configuration; no other command changes that flag. From the moment
    the slot exists, the server keeps WAL for it.

    The DDL signal is a set of event triggers that put a message into the stream when DDL runs. A
    database needs it only once. Sluice creates it only with --ddl-signal --apply.

    \b
    Examples:
      sluice setup --dry-run
      sluice setup --print-sql > for-the-dba.sql
      sluice setup --ddl-signal | psql -1 shop
    """
    wiring.require("psycopg", "pyarrow", "obstore")
    only_look = dry_run or print_sql
    if creates and (only_look or not ddl_signal):
        raise UsageError("--apply needs --ddl-signal, and excludes --dry-run and --print-sql")
    settings = invocation.settings().settings
    from sluice.operate.setup import prepare, signal_steps

    if ddl_signal:
        steps = signal_steps(wiring.source_options(settings), create=creates)
        if json_wanted:
            output.as_json({"schema_version": 1, "created": creates, "steps": [asdict(step) for step in steps]})
        elif creates:
            invocation.console().print(
                "The DDL signal is there." if any(s.statement for s in steps) else "It was there."
            )
        else:
            click.echo("".join(f"{step.statement};\n" for step in steps), nl=False)
        return
    store = deadline.PromptStore(wiring.open_spool(settings))
    try:
        steps = prepare(wiring.ingest_options(settings, instance=""), store, dry_run=only_look)
    except StoreUnavailable as error:  # the manifest is read before anything is made
        unknown = f"whether the pipeline has run before is not known, and nothing was created: {error}"
        raise StoreUnavailable(unknown, hint=error.hint) from None
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

"""`replay`: make tables as of one position in another lake, from the spool."""

import os
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from sluice import lsn
from sluice.cli import output, table_names, wiring
from sluice.cli.invocation import Invocation, common
from sluice.cli.policies import targets_of
from sluice.errors import UsageError
from sluice.lsn import show
from sluice.printable import counted, one_line
from sluice.settings.addresses import lake_uri as checked_uri

if TYPE_CHECKING:
    from sluice.manifest.replaying import Moment
    from sluice.operate.replay import Plan


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE...]", shell_complete=table_names.completed)
@click.option(
    "--to",
    "position",
    required=True,
    metavar="LSN|TIME|latest",
    help="Include what ended at or before this LSN, or what came before the first commit after this time.",
)
@click.option(
    "--lake", "lake_uri", required=True, metavar="URI", help="Where to create the tables. Nothing may be there yet."
)
@click.option("--dry-run", is_flag=True, help="Print what would be created, and write nothing.")
@common
def replay(invocation: Invocation, tables: tuple[str, ...], position: str, lake_uri: str, dry_run: bool) -> None:  # noqa: FBT001 - a command's parameter
    """Create tables in another lake from the spool, as of one position. This does not read PostgreSQL, and does not
    affect the pipeline, which may run meanwhile.

    The configuration decides kinds, targets and layout; -c may name another configuration. Without
    TABLE, the command creates every table that the pipeline carried at that position. The spool
    must have everything since the snapshot of a table began; spool.retention decides how long the
    spool keeps it. If a table cannot be created, the command names it and writes nothing. If the
    command is interrupted, run it again: it continues. At its end it prints a list of the created
    tables as JSON.

    \b
    Examples:
      sluice replay --to 16/B374D848 --lake s3://lakes/before
      sluice replay --to 2026-01-31T12:00:00Z --lake file:///tmp/noon public.orders
      sluice replay --to latest --lake file:///tmp/now --dry-run public.orders
    """
    wiring.require("obstore", *(() if dry_run else ("pyspark", "pyarrow")))
    to = _moment(position)
    try:
        checked_uri(lake_uri)
    except ValueError as error:
        raise UsageError(f"--lake: {error}") from None
    settings = invocation.settings().settings
    from sluice.operate import replay as replays
    from sluice.store.opening import open_store

    own = {"the spool of the pipeline": settings.spool.uri, "the lake of the pipeline": settings.lake.uri}
    replays.require_apart(lake_uri, own)
    lake = open_store(lake_uri, options=wiring.plain(settings.lake_options))
    plan = replays.plan(
        wiring.open_spool(settings),
        lake,
        to,
        tables,
        pipeline=settings.pipeline,
        targets_of=lambda name: targets_of(settings, name),
        metadata_columns=settings.lake.metadata_columns,
    )
    _say(plan)
    if dry_run:
        click.echo("nothing was written; without --dry-run the command creates the tables", err=True)
        return
    options = wiring.replay_options(
        settings,
        first_seq=min(table.generation_seq for table in plan.tables),
        last_seq=plan.record.seq,
        last_lsn=plan.record.lsn,
        lake_uri=lake_uri,
        others=plan.others,
        log_format=wiring.applier_log_format(settings, asked=invocation.log_format),
        log_level=invocation.log_level(settings),
    )
    replays.begin(lake, plan.record)
    command = wiring.applier_command()
    sys.stderr.flush()
    os.execve(command[0], command, wiring.applier_environment(options, dict(os.environ)))  # noqa: S606 - our own command, and it needs no shell


def _moment(given: str) -> "Moment":
    """Raises UsageError for what is neither."""
    if given == "latest":
        return None
    if "/" in given:
        return lsn.parse(given)
    with suppress(ValueError):
        at = datetime.fromisoformat(given)
        if at.tzinfo is None:
            raise UsageError(f"{given} has no time zone", hint="add Z or an offset, such as 2026-01-31T12:00:00Z")
        return at
    raise UsageError(
        f"neither an LSN nor a time: {given[:40]!r}",
        hint="an LSN is like 16/B374D848, a time is ISO 8601, such as 2026-01-31T12:00:00Z",
    )


def _say(plan: "Plan") -> None:
    at = datetime.fromtimestamp(plan.time_us / 1e6, UTC).isoformat(timespec="milliseconds") if plan.time_us else ""
    click.echo(
        f"as of {show(plan.record.lsn)}{f', committed at {at}' if at else ''}, in entry {plan.record.seq}", err=True
    )
    for table in plan.tables:
        part = plan.parts.get(table.table_id)
        of = f"{counted(part.segments, 'segment')}, {output.amount(part.bytes)}" if part else "goes on"
        again = f"; since its snapshot number {table.generation}" if table.generation > 1 else ""
        click.echo(one_line(f"{table.source_name}: {of}{again}"), err=True)

"""`run`: ingest alone."""

import click

from sluice import lsn
from sluice.cli import config_reload, start_ingest, wiring
from sluice.cli.invocation import Invocation, common
from sluice.errors import UsageError


@click.command()
@click.option(
    "--until-caught-up",
    is_flag=True,
    help="End when everything that was committed before the start is in the spool and every snapshot is "
    "finished. The exit code is 75 if a table could not be read.",
)
@click.option("--until-lsn", metavar="X/Y", help="End when everything through this LSN is in the spool.")
@common
def run(invocation: Invocation, until_caught_up: bool, until_lsn: str | None) -> int:  # noqa: FBT001 - a command's parameter
    """Stream into the spool, until stopped. It runs only ingest, and needs neither Java nor Spark.

    \b
    Examples:
      sluice run
      sluice run --until-caught-up && sluice apply --once      a batch, for a scheduler
      sluice run --until-lsn 16/B374D848
    """
    if until_caught_up and until_lsn is not None:
        raise UsageError("--until-caught-up and --until-lsn exclude each other")
    wiring.require("psycopg", "pyarrow", "obstore")
    target = lsn.parse(until_lsn) if until_lsn is not None else None
    seen = config_reload.seen(invocation)
    settings = invocation.settings().settings
    return start_ingest.start(invocation, settings, seen=seen, until_lsn=target, until_caught_up=until_caught_up)

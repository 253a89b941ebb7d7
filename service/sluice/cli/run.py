"""`up`, `run` and `apply`: the processes that move changes."""

import os
import socket
import sys
import uuid
from typing import TYPE_CHECKING

import click
import structlog

from sluice import lsn
from sluice.cli import wiring
from sluice.cli.invocation import Invocation, common
from sluice.errors import UsageError
from sluice.settings import Settings
from sluice.settings.present import fingerprint

if TYPE_CHECKING:
    from sluice.process.pipeline import ApplierCommand


@click.command()
@common
def up(invocation: Invocation) -> int:
    """Copy, stream and apply, all on this machine, until stopped.

    Ingest runs in this process and the applier (Spark) as its child, started again when it fails
    for a reason that may pass. A new pipeline is set up first: a missing publication and slot are
    created, and said. SIGTERM and Ctrl-C let both finish what they hold; a second one leaves at
    once, and nothing is lost either way.

    \b
    Examples:
      sluice up
      sluice up -c shop/sluice.yaml --log-format json
    """
    wiring.require("psycopg", "pyarrow", "obstore", "pyspark")
    settings = invocation.settings().settings
    from sluice.process.pipeline import ApplierCommand

    options = wiring.apply_options(settings, log_format=_child_format(invocation, settings))
    applier = ApplierCommand(
        wiring.applier_command(), environment=wiring.applier_environment(options, dict(os.environ))
    )
    return _ingest(settings, applier=applier)


@click.command()
@click.option(
    "--until-caught-up",
    is_flag=True,
    help="End when everything that was committed at the start is in the spool and every copy is finished; "
    "with 75 if a table could not be copied.",
)
@click.option("--until-lsn", metavar="X/Y", help="End when everything through this LSN is in the spool.")
@common
def run(invocation: Invocation, until_caught_up: bool, until_lsn: str | None) -> int:  # noqa: FBT001 - a command's parameter
    """Stream into the spool, until stopped. Ingest only: needs neither Java nor Spark.

    \b
    Examples:
      sluice run
      sluice run --until-caught-up && sluice apply --once      a batch, for a scheduler
      sluice run --until-lsn 16/B374D848
    """
    if until_caught_up and until_lsn:
        raise UsageError("--until-caught-up and --until-lsn exclude each other")
    wiring.require("psycopg", "pyarrow", "obstore")
    target = lsn.parse(until_lsn) if until_lsn else None
    return _ingest(invocation.settings().settings, until_lsn=target, until_caught_up=until_caught_up)


@click.command()
@click.option("--once", is_flag=True, help="End when everything that is in the manifest now is applied.")
@common
def apply(invocation: Invocation, once: bool) -> None:  # noqa: FBT001 - a command's parameter
    """Apply the spool to the Delta tables, until stopped. The Spark side only: needs no PostgreSQL.

    One applier per pipeline; a second one ends with 8. `apply.spark_master` decides where the work
    is done.

    \b
    Examples:
      sluice apply
      sluice apply --once
    """
    wiring.require("pyspark", "obstore")
    settings = invocation.settings().settings
    options = wiring.apply_options(settings, log_format=_child_format(invocation, settings), once=once)
    command = wiring.applier_command()
    sys.stdout.flush()
    os.execve(command[0], command, wiring.applier_environment(options, dict(os.environ)))  # noqa: S606 - our own command, and it needs no shell


def _ingest(
    settings: Settings,
    *,
    applier: "ApplierCommand | None" = None,
    until_lsn: int | None = None,
    until_caught_up: bool = False,
) -> int:
    from sluice.process import pipeline
    from sluice.source.sessions import transport_of

    options = wiring.ingest_options(settings, instance=f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}")
    trouble = transport_of(options.source).trouble
    if trouble and options.source.allow_insecure:
        structlog.get_logger("sluice").warning(
            "the source is not proven to be who it says, source.allow_insecure permits it", seen=trouble
        )
    return pipeline.run(
        options,
        store=wiring.open_spool(settings),
        reporter=wiring.reporter(settings),
        telemetry=pipeline.TelemetryOptions(
            listen=settings.telemetry.listen,
            max_tables=settings.telemetry.max_tables,
            config_hash=fingerprint(settings),
        ),
        applier=applier,
        until_lsn=until_lsn,
        until_caught_up=until_caught_up,
    )


def _child_format(invocation: Invocation, settings: Settings) -> str:
    """The applier writes to the same stderr, so that `auto` is decided once."""
    chosen = invocation.log_format or settings.telemetry.log_format
    return chosen if chosen != "auto" else "console" if sys.stderr.isatty() else "json"

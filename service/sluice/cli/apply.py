"""`apply`: the applier alone."""

import os
import sys

import click

from sluice.cli import config_reload, wiring
from sluice.cli.invocation import Invocation, common


@click.command()
@click.option("--once", is_flag=True, help="End when everything that the manifest has at the start is applied.")
@common
def apply(invocation: Invocation, once: bool) -> None:  # noqa: FBT001 - a command's parameter
    """Apply the spool to the Delta tables, until stopped. The Spark side only: needs no PostgreSQL.

    A pipeline has one applier; a second one ends with 8. `apply.spark_master` decides where Spark
    does the work.

    \b
    Examples:
      sluice apply
      sluice apply --once
    """
    wiring.require("pyspark", "obstore")
    seen = config_reload.seen(invocation)
    settings = invocation.settings().settings
    log_format = wiring.applier_log_format(settings, asked=invocation.log_format)
    options = wiring.apply_options(
        settings,
        log_format=log_format,
        log_level=invocation.log_level(settings),
        once=once,
        reread=config_reload.of_applier(invocation, seen=seen, log_format=log_format),
    )
    command = wiring.applier_command()
    sys.stdout.flush()
    os.execve(command[0], command, wiring.applier_environment(options, dict(os.environ)))  # noqa: S606 - our own command, and it needs no shell

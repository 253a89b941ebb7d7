"""`apply`: the applier alone."""

import os
import sys
from typing import NoReturn

import click

from sluice.cli import config_reload, wiring
from sluice.cli.fleet import DEFAULT_WORKERS, read
from sluice.cli.invocation import Invocation, common
from sluice.errors import UsageError


@click.command()
@click.option(
    "--once",
    is_flag=True,
    help="End when everything that the manifest had at the start is applied. The exit code is 9 if a table is "
    "stale, quarantined or has a gap.",
)
@click.option(
    "--fleet",
    "folder",
    metavar="DIR",
    help="Apply all pipelines whose configurations are in DIR, in one Spark session.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --fleet: how many windows are applied at the same time, in all pipelines together.  "
    f"[default: {DEFAULT_WORKERS}]",
)
@common
def apply(invocation: Invocation, once: bool, folder: str | None, workers: int | None) -> int:  # noqa: FBT001 - a command's parameter
    """Apply the spool to the Delta tables, until stopped. It runs only the applier, and needs no
    PostgreSQL.

    A pipeline has one applier; a second one ends with exit code 8. `apply.spark_master` decides where Spark
    does the work.

    With --fleet, one process applies the pipelines of a folder, as in `sluice fleet`, but starts no
    ingest. Each pipeline needs a `sluice run` elsewhere. A pipeline that fails stops no other.
    After SIGHUP it reads the folder again.

    \b
    Examples:
      sluice apply
      sluice apply --once
      sluice apply --fleet pipelines
    """
    wiring.require("pyspark", "obstore")
    if folder is not None:
        if once:
            raise UsageError("--once applies one pipeline, not a fleet", hint="leave out --once or --fleet")
        return _all_of(invocation, folder, workers=workers or DEFAULT_WORKERS)
    if workers is not None:
        raise UsageError("--workers needs --fleet", hint="set apply.workers in the configuration of one pipeline")
    return _one(invocation, once=once)


def _one(invocation: Invocation, *, once: bool) -> NoReturn:
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


def _all_of(invocation: Invocation, folder: str, *, workers: int) -> int:
    from sluice.process.fleet import applying, fleet
    from sluice.process.pipeline import ApplierCommand

    found = read(invocation, folder)
    if found.members:
        invocation.with_config(next(iter(found.members.values())).config).settings()  # logs as the first one says
    applier = ApplierCommand(wiring.fleet_applier_command(), environment=fleet.environment())
    return applying.run(lambda: read(invocation, folder), applier, workers=workers)

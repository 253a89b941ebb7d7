"""`up`: ingest and the applier, on one machine."""

import os

import click

from sluice.cli import config_reload, start_ingest, wiring
from sluice.cli.invocation import Invocation, common


@click.command()
@common
def up(invocation: Invocation) -> int:
    """Snapshot, stream and apply, all on this machine, until stopped.

    Ingest runs in this process. The applier (Spark) runs as its child, and is started again if it
    fails for a temporary reason. `up` first sets up a new pipeline: it creates a missing
    publication and slot, and says so. After SIGTERM or Ctrl-C, ingest and the applier finish the
    work that they have begun. A second signal ends both at once. Nothing is lost in either case.

    \b
    Examples:
      sluice up
      sluice up -c shop/sluice.yaml --log-format json
    """
    wiring.require("psycopg", "pyarrow", "obstore", "pyspark")
    seen = config_reload.seen(invocation)
    settings = invocation.settings().settings
    from sluice.process.pipeline import ApplierCommand

    log_format = wiring.applier_log_format(settings, asked=invocation.log_format)
    options = wiring.apply_options(
        settings,
        log_format=log_format,
        log_level=invocation.log_level(settings),
        reread=config_reload.of_applier(invocation, seen=seen, log_format=log_format),
    )
    applier = ApplierCommand(
        wiring.applier_command(),
        environment=wiring.applier_environment(options, dict(os.environ)),
        lease_seconds=wiring.left_behind_seconds(settings),
    )
    return start_ingest.start(invocation, settings, seen=seen, applier=applier)

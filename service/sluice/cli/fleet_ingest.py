"""`python -m sluice.cli.fleet_ingest`: the ingest of one pipeline of a fleet. No command of `sluice`: only
`sluice fleet` starts it.
"""

import sys

import click

from sluice import signals
from sluice.cli import config_reload, exits, start_ingest
from sluice.cli.invocation import Invocation, common
from sluice.telemetry import logs


@click.command()
@click.option("--listen", required=True, help="Where the fleet asks for metrics and status.")
@common
def fleet_ingest(invocation: Invocation, listen: str) -> int:
    """Stream into the spool, until stopped."""
    seen = config_reload.seen(invocation)
    settings = invocation.settings().settings
    logs.carry(pipeline=settings.pipeline)
    return start_ingest.start(invocation, settings, seen=seen, listen=listen)


if __name__ == "__main__":
    signals.arm()
    exits.end_with(fleet_ingest, sys.argv[1:])

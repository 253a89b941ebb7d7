"""`python -m sluice.cli.fleet_ingest`: the ingest of one pipeline of a fleet. No command of `sluice`: only
`sluice fleet` starts it. With `--fork` and a file descriptor instead, it becomes one for each line of arguments
that it reads there.
"""

import sys

import click

from sluice import signals
from sluice.cli import config_reload, exits, start_ingest
from sluice.cli.invocation import Invocation, common
from sluice.process.child_process import name_process
from sluice.telemetry import logs

FORK = "--fork"


@click.command()
@click.option("--listen", required=True, help="Where the fleet asks for metrics and status.")
@common
def fleet_ingest(invocation: Invocation, listen: str) -> int:
    """Stream into the spool, until stopped."""
    seen = config_reload.seen(invocation)
    settings = invocation.settings().settings
    logs.carry(pipeline=settings.pipeline)
    name_process(settings.pipeline)  # forks have one command line
    return start_ingest.start(invocation, settings, seen=seen, listen=listen)


def forked(control: str) -> list[str]:
    """The arguments of each process that is forked from this one."""
    # What an ingest needs, so that it is loaded once.
    from sluice.process import pipeline
    from sluice.process.fleet import forks
    from sluice.store import opening

    del pipeline, opening
    arguments = forks.serve(int(control))
    # A process of which the source was promoted begins again by its own command line.
    sys.argv[-2:] = arguments
    sys.orig_argv[-2:] = arguments
    return arguments


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[0] == FORK:
        arguments = forked(arguments[1])
    signals.arm()
    exits.end_with(fleet_ingest, arguments)

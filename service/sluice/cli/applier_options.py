"""`python -m sluice.cli.applier_options`: the options of an applier, read again, for one that runs.

Prints them as JSON, which holds secrets: for a pipe, never for a terminal. What cannot be read is
said on stdout, with exit code 2. No command of `sluice`: only the applier calls it.
"""

import sys

import click

from sluice.cli import wiring
from sluice.cli.invocation import Invocation, common
from sluice.errors import UsageError


@click.command()
@common
def applier_options(invocation: Invocation) -> None:
    """Print the options of the applier."""
    settings = invocation.read().settings
    assert invocation.log_format is not None
    click.echo(
        wiring.apply_options(settings, log_format=invocation.log_format, log_level=invocation.log_level(settings))
    )


if __name__ == "__main__":
    try:
        applier_options.main(standalone_mode=False)
    except UsageError as error:
        click.echo(f"{error}; {error.hint}" if error.hint else str(error))
        sys.exit(error.exit_code)

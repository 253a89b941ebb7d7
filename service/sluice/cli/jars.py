"""`jars`: Spark's jars for Delta and S3, fetched before anything needs them."""

import os
import sys

import click

from sluice.cli import wiring
from sluice.cli.invocation import Invocation, common
from sluice.cli.texts import given


@click.group(no_args_is_help=True)
@common
def jars(invocation: Invocation) -> None:
    """Fetch the jars that Spark needs for Delta and S3."""


@jars.command()
@click.option(
    "--to", metavar="DIR", callback=given, help="Folder for the jars.  [default: SLUICE_JARS, else the user's cache]"
)
@click.option("--s3", is_flag=True, help="Also fetch the jars for a spool or a lake on S3.")
@common
def fetch(invocation: Invocation, to: str | None, s3: bool) -> None:  # noqa: ARG001, FBT001 - a command's parameters
    """Fetch the jars from a Maven repository and compare each with its recorded checksum.

    `sluice apply` and `sluice up` do this themselves when jars are missing in the user's cache. Use
    this command for a machine without internet: run it elsewhere, copy the folder, and set
    SLUICE_JARS to it. A start never writes to a folder that SLUICE_JARS names.

    \b
    Examples:
      sluice jars fetch
      sluice jars fetch --s3 --to /srv/sluice/jars
    """
    wiring.require("pyspark")
    command = wiring.jars_command(to=to, s3=s3)
    sys.stdout.flush()
    os.execv(command[0], command)  # noqa: S606 - our own command, and it needs no shell

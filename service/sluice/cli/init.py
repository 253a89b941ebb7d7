"""`init`: a configuration to begin with."""

import re
from pathlib import Path
from urllib.parse import quote

import click

from sluice.cli.invocation import Invocation, common
from sluice.cli.templates import CONFIGURATION, GRANTS, VARIABLES
from sluice.cli.texts import given
from sluice.errors import UsageError
from sluice.settings.model import PIPELINE_NAME


@click.command()
@click.argument("directory", default=".", metavar="[DIR]", callback=given)
@click.option("--pipeline", default="main", show_default=True, help="Name of the pipeline: a-z, 0-9 and _.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@common
def init(invocation: Invocation, directory: str, pipeline: str, force: bool) -> None:  # noqa: ARG001, FBT001 - a command's parameters
    """Write a commented configuration, a file of environment variables and the SQL for the role.

    \b
    Examples:
      sluice init
      sluice init shop --pipeline shop
    """
    if not re.fullmatch(PIPELINE_NAME, pipeline):
        raise UsageError(
            f"{pipeline[:100]!r} cannot be the name of a pipeline: a name has 1 to 50 characters of a-z, 0-9 and _",
            hint="choose another --pipeline",
        )
    target = Path(directory)
    files = {"sluice.yaml": CONFIGURATION, ".env.example": VARIABLES, "grants.sql": GRANTS}
    try:
        place = "file://" + quote(str(target.resolve()))
        existing = [name for name in files if (target / name).exists()]
        if existing and not force:
            raise UsageError(
                f"{', '.join(existing)} in {directory} would be overwritten",
                hint="name another directory, or overwrite with --force",
            )
        target.mkdir(parents=True, exist_ok=True)
        for name, template in files.items():
            (target / name).write_text(
                template.replace("@PIPELINE@", pipeline).replace("@PLACE@", place), encoding="utf-8"
            )
    except UnicodeEncodeError:
        raise UsageError(
            f"the name of {directory} is not valid UTF-8, so no address can name a place in it",
            hint="name another directory",
        ) from None
    except OSError as error:
        raise UsageError(f"cannot write into {directory}: {error.strerror}") from error
    where = "this folder" if target == Path() else directory
    click.echo(f"Wrote {', '.join(files)} into {where}. Next:", err=True)
    click.echo(
        "  1. grants.sql: run it as a superuser; it gives the role its privileges\n  2. sluice.yaml: your "
        "connection string and addresses",
        err=True,
    )
    click.echo("  3. sluice check\n  4. sluice up", err=True)

"""`version`: what is installed. Works without any of the extras."""

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version

import click

from sluice.cli import output
from sluice.cli.invocation import Invocation, common

_LIBRARIES = ("psycopg", "pyarrow", "obstore", "numpy", "pyspark", "delta-spark", "pydantic", "click")


@click.command()
@click.option("--json", "json_wanted", is_flag=True, help="As JSON, with the libraries that are installed.")
@common
def version(invocation: Invocation, json_wanted: bool) -> None:  # noqa: ARG001, FBT001 - as above
    """Print the version."""
    own = installed_version("sluice-cdc")
    if json_wanted:
        libraries = {name: found for name in _LIBRARIES if (found := _installed(name))}
        output.as_json(
            {
                "schema_version": 1,
                "version": own,
                "python": platform.python_version(),
                "platform": platform.platform(),
                "libraries": libraries,
            }
        )
    else:
        click.echo(f"sluice {own}")


def _installed(name: str) -> str | None:
    try:
        return installed_version(name)
    except PackageNotFoundError:
        return None

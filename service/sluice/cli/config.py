"""`config`: what is in force. Works without any of the extras."""

import click

from sluice.cli import output
from sluice.cli.invocation import Invocation, common
from sluice.settings import display


@click.group()
@common
def config(invocation: Invocation) -> None:
    """Show, check and describe the configuration."""


@config.command("show")
@click.option("--json", "json_wanted", is_flag=True, help="As JSON, with sizes and durations as numbers.")
@common
def show(invocation: Invocation, json_wanted: bool) -> None:  # noqa: FBT001 - a command's parameter
    """Print the settings in force, and where each value comes from.

    Secrets are masked. The origin is `default`, a line of the file, or a variable.

    \b
    Examples:
      sluice config show
      SLUICE_SPOOL__MAX_DELAY=500ms sluice config show -c shop/sluice.yaml
    """
    lines = display.effective(invocation.settings())
    if json_wanted:
        settings = {line.name: {"value": line.value, "origin": line.origin} for line in lines}
        output.as_json({"schema_version": 1, "settings": settings})
        return
    invocation.console().print(
        output.table("", ("key", "value", "origin"), [(line.name, line.text, line.origin) for line in lines])
    )


@config.command("validate")
@common
def validate(invocation: Invocation) -> None:
    """Check the configuration without contacting any server.

    If the configuration is not valid, the exit code is 2, and the command names every problem:
    where it is, what is allowed, and the nearest known name if a name is mistyped.
    """
    loaded = invocation.settings()
    click.echo(f"{invocation.config} is valid: pipeline {loaded.settings.pipeline}", err=True)


@config.command("schema")
@common
def schema(invocation: Invocation) -> None:  # noqa: ARG001 - takes the common options as every command
    """Print the JSON Schema of the configuration file.

    \b
    For an editor with a YAML language server:
      sluice config schema > sluice.schema.json
      and as the first line of sluice.yaml:  # yaml-language-server: $schema=sluice.schema.json
    """
    output.as_json(display.json_schema())


@config.command("env")
@common
def env(invocation: Invocation) -> None:
    """List the variables that override the file.

    Add _FILE to a name to give the name of a file that holds the value, such as a mounted secret.
    """
    invocation.console().print(output.table("", ("variable", "sets"), display.variables()))

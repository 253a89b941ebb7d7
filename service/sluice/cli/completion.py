"""`completion`: the script with which a shell completes `sluice`."""

import click
from click.shell_completion import get_completion_class

from sluice.cli.invocation import Invocation, common


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@common
def completion(invocation: Invocation, shell: str) -> None:  # noqa: ARG001 - every command takes it
    """Print the script that lets a shell complete commands, options and names of tables.

    \b
    Examples:
      sluice completion bash > /etc/bash_completion.d/sluice
      sluice completion zsh > "${fpath[1]}/_sluice"
      sluice completion fish > ~/.config/fish/completions/sluice.fish
    """
    found = get_completion_class(shell)
    root = click.get_current_context().find_root().command
    assert found is not None
    click.echo(found(root, {}, "sluice", "_SLUICE_COMPLETE").source())
